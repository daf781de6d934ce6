import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.errors import RateLimitedError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.security.api_keys import Caller, Permission
from dragoman_service.security.rate_limits import Charge, RateLimiter
from dragoman_service.security.redis_quota import RedisBuckets
from dragoman_service.security.shared_quota import RETRY_INTERVAL_S, SharedQuota
from tests.captured_logs import capture_logs
from tests.fakes import ManualClock, SharedBuckets

SHOP = Caller(
    name="shop", certificates=("shop",), permissions=frozenset(Permission), tokens_per_min=60, decode_cost_per_min=600
)
TIMEOUT_S = 0.01


class Replica:
    """The quota of a caller on one replica."""

    def __init__(self, store: SharedBuckets, clock: ManualClock) -> None:
        self.metrics = Metrics(CollectorRegistry())
        self.limiter = RateLimiter(clock)
        self.shared = SharedQuota(self.limiter, store, self.metrics, timeout_s=TIMEOUT_S, clock=clock)

    async def take(self, num_tokens: int, *, decode_cost: int = 0) -> object:
        return await self.shared.confirm(
            self.limiter.take_tokens("shop", SHOP, num_tokens, decode_cost=lambda: decode_cost)
        )

    def num_checks(self, decided_by: str) -> float:
        value = self.metrics.registry.get_sample_value("dragoman_quota_checks_total", {"decided_by": decided_by})
        return value or 0.0


class HaltedStore(SharedBuckets):
    """Never answers."""

    async def take(self, charges: Sequence[Charge]) -> None:
        self.num_asked += 1
        await asyncio.Event().wait()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> SharedBuckets:
    return SharedBuckets(clock)


def test_byte_order_mark_before_the_url_of_the_store_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "quota-store.url"
    file.write_bytes(b"\xef\xbb\xbfredis://store.example:6379/0\r\n")

    RedisBuckets(file, timeout_s=TIMEOUT_S, fail=pytest.fail)


async def test_replicas_share_quotas(store: SharedBuckets, clock: ManualClock) -> None:
    one, other = Replica(store, clock), Replica(store, clock)
    await one.take(50)

    with pytest.raises(RateLimitedError, match=r"caller 'shop' is limited to 60 source tokens/min; retry in 10.0 s"):
        await other.take(20)
    clock.advance(10.0)

    await other.take(20)


async def test_rejection_of_the_store_refunds_the_replica(store: SharedBuckets, clock: ManualClock) -> None:
    one, other = Replica(store, clock), Replica(store, clock)
    await one.take(10, decode_cost=600)

    with pytest.raises(RateLimitedError, match="decode cost/min"):
        await other.take(50, decode_cost=10)

    await other.take(50)
    store.is_away = True
    await other.take(10)


async def test_rejection_of_a_replica_does_not_call_the_store(store: SharedBuckets, clock: ManualClock) -> None:
    replica = Replica(store, clock)
    await replica.take(60)

    for _ in range(5):
        with pytest.raises(RateLimitedError):
            await replica.take(60)

    assert store.num_asked == 1


async def test_replicas_enforce_quotas_without_the_store(store: SharedBuckets, clock: ManualClock) -> None:
    one, other = Replica(store, clock), Replica(store, clock)
    await one.take(40)
    store.is_away = True

    await one.take(20)
    await other.take(60)
    for replica in (one, other):
        with pytest.raises(RateLimitedError, match=r"limited to 60 source tokens/min; retry in 1.0 s"):
            await replica.take(1)

    assert (one.num_checks("store"), one.num_checks("local")) == (1, 1)


async def test_lost_store_is_logged_once_and_retried(store: SharedBuckets, clock: ManualClock) -> None:
    replica = Replica(store, clock)
    store.is_away = True

    with capture_logs() as records:
        for _ in range(30):
            await replica.take(1)
            clock.advance(RETRY_INTERVAL_S / 10)
        store.is_away = False
        clock.advance(RETRY_INTERVAL_S)
        await replica.take(1)

    assert [(record["log_level"], record.get("reason")) for record in records] == [
        ("warning", "ConnectionError: refused"),
        ("info", None),
    ]
    assert store.num_asked == 4
    assert (replica.num_checks("store"), replica.num_checks("local")) == (1, 30)


async def test_one_call_at_a_time_waits_for_an_unresponsive_store(clock: ManualClock) -> None:
    store = HaltedStore(clock)
    replica = Replica(store, clock)
    await replica.take(1)
    clock.advance(RETRY_INTERVAL_S)

    retrying = asyncio.ensure_future(replica.take(1))
    await asyncio.sleep(0)
    await asyncio.gather(*(replica.take(1) for _ in range(10)))

    assert store.num_asked == 2
    assert not retrying.done()
    await retrying
    assert replica.num_checks("local") == 12


@pytest.mark.parametrize(
    "answer",
    [None, [], b"OK", [1], [3, b"1", 0], [-1, b"1", 0], [1, b"x", 0], [1, None, 0], ["1", b"1", 0], [1.5, b"1", 0]],
)
async def test_invalid_answer_of_the_store_counts_as_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, answer: object
) -> None:
    async def run(**_: object) -> object:
        return answer

    file = tmp_path / "quota-store.url"
    file.write_text("redis://store.example:6379/0")
    buckets = RedisBuckets(file, timeout_s=TIMEOUT_S, fail=pytest.fail)
    monkeypatch.setattr(buckets, "_script", run)
    limiter, metrics = RateLimiter(clock), Metrics(CollectorRegistry())
    shared = SharedQuota(limiter, buckets, metrics, timeout_s=TIMEOUT_S, clock=clock)

    with capture_logs() as records:
        await shared.confirm(limiter.take_tokens("shop", SHOP, 10))

    assert [record["event"] for record in records] == ["quota store unavailable, falling back to local limits"]


@pytest.mark.parametrize(("wait", "retry_after_s"), [(b"nan", 86400), (b"inf", 86400), (b"-5", 0), (b"1e308", 86400)])
async def test_retry_delay_of_the_store_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, wait: bytes, retry_after_s: float
) -> None:
    async def run(**_: object) -> object:
        return [1, wait, 1]

    file = tmp_path / "quota-store.url"
    file.write_text("redis://store.example:6379/0")
    buckets = RedisBuckets(file, timeout_s=TIMEOUT_S, fail=pytest.fail)
    monkeypatch.setattr(buckets, "_script", run)

    with capture_logs() as records:
        shortfall = await buckets.take([Charge(caller="shop", unit="requests/s", limit=1.0, amount=1)])

    assert shortfall is not None
    assert shortfall.charge.to_error(shortfall.retry_after_s).retry_after_s == retry_after_s
    assert [record["event"] for record in records] == ["damaged quota buckets reset"]


async def test_refund_reaches_the_store(store: SharedBuckets, clock: ManualClock) -> None:
    one, other = Replica(store, clock), Replica(store, clock)
    give_back = await one.shared.confirm(one.limiter.take_tokens("shop", SHOP, 60))

    give_back()
    await one.shared.close()

    await other.take(60)


async def test_local_charges_are_not_refunded_to_the_store(store: SharedBuckets, clock: ManualClock) -> None:
    one, other = Replica(store, clock), Replica(store, clock)
    await other.take(60)
    store.is_away = True
    give_back = await one.shared.confirm(one.limiter.take_tokens("shop", SHOP, 60))
    store.is_away = False
    clock.advance(RETRY_INTERVAL_S)

    give_back()
    await one.shared.close()

    with pytest.raises(RateLimitedError):
        await one.take(60)
