import asyncio

import pytest

from dragoman_service.errors import DrainingError, OverloadedError, RateLimitedError, StartingError
from dragoman_service.security.api_keys import Caller, Permission
from dragoman_service.security.rate_limits import Charge, ConcurrencyLimiter, RateLimiter, TokenBucket
from tests.fakes import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_burst_is_limited_to_the_capacity(clock: ManualClock) -> None:
    bucket = TokenBucket(rate_per_s=2, capacity=3, clock=clock)

    assert [bucket.take(1) for _ in range(4)] == [0, 0, 0, 0.5]


def test_amount_is_available_after_the_returned_wait(clock: ManualClock) -> None:
    bucket = TokenBucket(rate_per_s=2, capacity=3, clock=clock)
    bucket.take(3)

    wait_s = bucket.take(2)
    clock.advance(wait_s)

    assert wait_s == 1.0
    assert bucket.take(2) == 0


def test_rejection_takes_nothing(clock: ManualClock) -> None:
    bucket = TokenBucket(rate_per_s=1, capacity=3, clock=clock)
    bucket.take(2)

    assert [bucket.take(2), bucket.take(2), bucket.take(1)] == [1.0, 1.0, 0]


def test_full_bucket_serves_more_than_its_capacity_on_credit(clock: ManualClock) -> None:
    bucket = TokenBucket(rate_per_s=1, capacity=3, clock=clock)

    assert bucket.take(10) == 0
    assert bucket.take(1) == 8.0
    assert bucket.take(10) == 10.0


def test_refunded_amount_is_available_again(clock: ManualClock) -> None:
    bucket = TokenBucket(rate_per_s=1, capacity=3, clock=clock)
    bucket.take(3)

    bucket.refund(3)

    assert bucket.take(3) == 0


def test_idle_bucket_fills_only_to_its_capacity(clock: ManualClock) -> None:
    bucket = TokenBucket(rate_per_s=1, capacity=3, clock=clock)

    clock.advance(1000.0)

    assert [bucket.take(3), bucket.take(3)] == [0, 3.0]


def caller(name: str = "shop", **limits: float) -> Caller:
    return Caller(
        name=name,
        certificates=(name,),
        permissions=frozenset(Permission),
        **limits,  # type: ignore[arg-type]
    )


def take_tokens(limiter: RateLimiter, who: Caller | None, num_tokens: int, *, work: int = 0) -> tuple[Charge, ...]:
    return limiter.take_tokens("shop", who, num_tokens, work=lambda: work)


def test_work_is_only_counted_if_limited(clock: ManualClock) -> None:
    limiter, answers = RateLimiter(clock), iter(range(1, 9))

    for limits in (caller(), caller(tokens_per_min=60)):
        limiter.take_tokens("shop", limits, 1, work=answers.__next__)
    charges = limiter.take_tokens("shop", caller(decode_cost_per_min=60), 1, work=answers.__next__)

    assert [charge.amount for charge in charges] == [1]
    assert next(answers) == 2


def test_caller_without_quota_is_not_rejected(clock: ManualClock) -> None:
    limiter = RateLimiter(clock)

    for _ in range(1000):
        limiter.take_request(caller())
        take_tokens(limiter, caller(), 10**9)


def test_small_rate_allows_one_request(clock: ManualClock) -> None:
    limiter, slow = RateLimiter(clock), caller(requests_per_s=0.001)
    limiter.take_request(slow)

    with pytest.raises(RateLimitedError, match=r"caller 'shop' is limited to 0.001 requests/s; retry in 1000.0 s"):
        limiter.take_request(slow)


def test_tokens_of_a_minute_can_be_used_at_once(clock: ManualClock) -> None:
    limiter, small = RateLimiter(clock), caller(tokens_per_min=600)
    take_tokens(limiter, small, 600)

    with pytest.raises(RateLimitedError, match=r"limited to 600 source tokens/min; retry in 10.0 s") as caught:
        take_tokens(limiter, small, 100)
    clock.advance(caught.value.retry_after_s)

    take_tokens(limiter, small, 100)


def test_refunded_tokens_are_available_again(clock: ManualClock) -> None:
    limiter, small = RateLimiter(clock), caller(tokens_per_min=600)
    charges = take_tokens(limiter, small, 600)

    limiter.refund(charges)

    take_tokens(limiter, small, 600)


def test_rejected_work_takes_no_tokens(clock: ManualClock) -> None:
    limiter, small = RateLimiter(clock), caller(tokens_per_min=100, decode_cost_per_min=600)
    take_tokens(limiter, small, 50, work=590)
    charges = take_tokens(limiter, small, 0, work=10)

    with pytest.raises(RateLimitedError, match=r"limited to 600 decode cost/min; retry in 1.0 s"):
        take_tokens(limiter, small, 50, work=10)

    limiter.refund(charges)
    take_tokens(limiter, small, 50, work=10)


def test_removed_caller_keeps_its_quota(clock: ManualClock) -> None:
    limiter = RateLimiter(clock)
    take_tokens(limiter, caller(tokens_per_min=60), 60)

    with pytest.raises(RateLimitedError):
        take_tokens(limiter, None, 1)


def test_only_changed_quotas_start_a_new_bucket(clock: ManualClock) -> None:
    limiter = RateLimiter(clock)
    take_tokens(limiter, caller(tokens_per_min=60), 60)

    with pytest.raises(RateLimitedError):
        take_tokens(limiter, caller(tokens_per_min=60), 60)

    take_tokens(limiter, caller(tokens_per_min=61), 60)


def enter(limiter: ConcurrencyLimiter) -> None:
    with limiter.admitted():
        pass


def test_new_limiter_is_closed() -> None:
    with pytest.raises(StartingError):
        enter(ConcurrencyLimiter(max_concurrent=1))


def test_closed_limiter_keeps_admitted_calls() -> None:
    limiter = ConcurrencyLimiter(max_concurrent=2)
    limiter.open()

    with limiter.admitted():
        limiter.close(DrainingError())
        with pytest.raises(DrainingError):
            enter(limiter)


def test_full_limiter_reports_its_limit() -> None:
    limiter = ConcurrencyLimiter(max_concurrent=1)
    limiter.open()

    with limiter.admitted(), pytest.raises(OverloadedError, match="limit of 1 concurrent requests"):
        enter(limiter)


def test_failed_call_frees_its_slot() -> None:
    limiter = ConcurrencyLimiter(max_concurrent=1)
    limiter.open()
    with pytest.raises(ZeroDivisionError), limiter.admitted():
        raise ZeroDivisionError

    enter(limiter)


async def test_limiter_is_idle_after_the_last_call() -> None:
    limiter = ConcurrencyLimiter(max_concurrent=2)
    limiter.open()
    with limiter.admitted(), limiter.admitted():
        waiting = asyncio.ensure_future(limiter.wait_until_idle())
        await asyncio.sleep(0)
        assert not waiting.done()

    await waiting


async def test_unused_limiter_is_idle() -> None:
    waiting = asyncio.ensure_future(ConcurrencyLimiter(max_concurrent=1).wait_until_idle())
    await asyncio.sleep(0)

    assert waiting.done()


def retry_after_s(limiter: ConcurrencyLimiter) -> float:
    """Fill a limiter with one slot, and return the retry delay of the next call."""
    with limiter.admitted(), pytest.raises(OverloadedError) as refusal:
        enter(limiter)
    return refusal.value.retry_after_s


def test_retry_delay_is_the_mean_duration_of_calls() -> None:
    clock = ManualClock()
    limiter = ConcurrencyLimiter(max_concurrent=1, clock=clock)
    limiter.open()
    for _ in range(3):
        with limiter.admitted():
            clock.advance(4.0)

    assert retry_after_s(limiter) == 4.0


@pytest.mark.parametrize(("stay_s", "expected_s"), [(0.0, 0.1), (1000.0, 10.0)])
def test_retry_delay_is_bounded(stay_s: float, expected_s: float) -> None:
    clock = ManualClock()
    limiter = ConcurrencyLimiter(max_concurrent=1, clock=clock)
    limiter.open()
    with limiter.admitted():
        clock.advance(stay_s)

    assert retry_after_s(limiter) == expected_s


def test_retry_delay_before_the_first_call_is_one_second() -> None:
    limiter = ConcurrencyLimiter(max_concurrent=1)
    limiter.open()

    assert retry_after_s(limiter) == 1.0


async def test_wait_until_closed_returns_the_rejection() -> None:
    limiter = ConcurrencyLimiter(max_concurrent=1)
    limiter.open()
    waiting = asyncio.create_task(limiter.wait_until_closed())
    await asyncio.sleep(0)
    assert not waiting.done()

    limiter.close(DrainingError())

    assert isinstance(await waiting, DrainingError)


def test_repeated_rejection_keeps_no_earlier_frames() -> None:
    limiter = ConcurrencyLimiter(max_concurrent=1)
    depths = []
    for _ in range(3):
        with pytest.raises(StartingError) as caught:
            enter(limiter)
        depths.append(len(caught.traceback))

    assert len(set(depths)) == 1
