import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from dragoman_service.errors import RateLimitedError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.security.api_keys import Caller, Permission
from dragoman_service.security.rate_limits import RateLimiter, TokenBucket
from dragoman_service.security.shared_quota import SharedQuota
from tests.fakes import ManualClock, SharedBuckets

amounts = st.floats(min_value=0.01, max_value=50)
pauses_s = st.floats(min_value=0, max_value=20)
ROUNDING = 1e-6
METRICS = Metrics(CollectorRegistry())


@given(
    calls=st.lists(st.tuples(pauses_s, amounts), min_size=1, max_size=60),
    rate_per_s=st.floats(min_value=0.1, max_value=10),
    capacity=st.floats(min_value=0.1, max_value=20),
)
def test_taken_amount_is_at_most_inflow_plus_one_burst_and_one_call(
    calls: list[tuple[float, float]], rate_per_s: float, capacity: float
) -> None:
    clock = ManualClock()
    began_s = clock()
    bucket = TokenBucket(rate_per_s=rate_per_s, capacity=capacity, clock=clock)
    taken = 0.0

    for pause_s, amount in calls:
        clock.advance(pause_s)
        taken += amount if bucket.take(amount) == 0 else 0.0

        assert taken <= (clock() - began_s) * rate_per_s + capacity + max(amount for _, amount in calls) + ROUNDING


@given(calls=st.lists(amounts, min_size=1, max_size=20))
def test_amount_is_available_after_the_returned_wait(calls: list[float]) -> None:
    clock = ManualClock()
    bucket = TokenBucket(rate_per_s=1.5, capacity=4, clock=clock)

    for amount in calls:
        wait_s = bucket.take(amount)
        clock.advance(wait_s)

        assert wait_s == 0 or bucket.take(amount) == pytest.approx(0, abs=ROUNDING)


class Replica:
    """A server that enforces its own limits before those of the store."""

    def __init__(self, store: SharedBuckets, clock: ManualClock, limit: float) -> None:
        self._limiter = RateLimiter(clock)
        self._shared = SharedQuota(self._limiter, store, METRICS, timeout_s=60.0, clock=clock)
        self._limits = Caller(
            name="shop", certificates=("shop",), permissions=frozenset(Permission), tokens_per_min=limit
        )

    async def admits(self, amount: int) -> bool:
        try:
            await self._shared.confirm(self._limiter.take_tokens("shop", self._limits, amount))
        except RateLimitedError:
            return False
        return True


shared_calls = st.lists(
    st.tuples(pauses_s, st.integers(0, 1), st.integers(1, 50), st.booleans()), min_size=1, max_size=60
)


@given(calls=shared_calls, limit=st.integers(1, 200))
def test_replicas_with_shared_buckets_admit_at_most_one_bucket(
    calls: list[tuple[float, int, int, bool]], limit: int
) -> None:
    clock = ManualClock()
    store = SharedBuckets(clock)
    replicas = [Replica(store, clock, limit) for _ in range(2)]
    admitted = 0

    for pause_s, replica, amount, _ in calls:
        clock.advance(pause_s)
        admitted += amount if asyncio.run(replicas[replica].admits(amount)) else 0

        assert admitted <= clock() * limit / 60 + limit + max(amount for _, _, amount, _ in calls) + ROUNDING


@given(calls=shared_calls, limit=st.integers(1, 200))
def test_replica_admits_at_most_its_own_bucket_while_the_store_is_unreliable(
    calls: list[tuple[float, int, int, bool]], limit: int
) -> None:
    clock = ManualClock()
    store = SharedBuckets(clock)
    replicas = [Replica(store, clock, limit) for _ in range(2)]
    admitted = [0, 0]

    for pause_s, replica, amount, is_away in calls:
        clock.advance(pause_s)
        store.is_away = is_away
        admitted[replica] += amount if asyncio.run(replicas[replica].admits(amount)) else 0

        assert max(admitted) <= clock() * limit / 60 + limit + max(amount for _, _, amount, _ in calls) + ROUNDING
