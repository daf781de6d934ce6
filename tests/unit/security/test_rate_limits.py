import pytest

from dragoman_service.errors import RateLimitedError
from dragoman_service.security.api_keys import Caller, Permission
from dragoman_service.security.rate_limits import Charge, RateLimiter, TokenBucket
from tests.fakes import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bucket(clock: ManualClock) -> TokenBucket:
    return TokenBucket(rate_per_s=2, capacity=3, clock=clock)


@pytest.fixture
def limiter(clock: ManualClock) -> RateLimiter:
    return RateLimiter(clock)


@pytest.mark.parametrize(
    ("amounts", "waits_s"),
    [
        pytest.param([1, 1, 1, 1], [0, 0, 0, 0.5], id="the capacity limits a burst"),
        pytest.param([2, 2, 2, 1], [0, 0.5, 0.5, 0], id="a rejection takes nothing"),
        pytest.param([10, 1, 10], [0, 4.0, 5.0], id="a full bucket serves more than its capacity on credit"),
    ],
)
def test_bucket_returns_the_wait_for_each_amount(
    bucket: TokenBucket, amounts: list[float], waits_s: list[float]
) -> None:
    assert [bucket.take(amount) for amount in amounts] == waits_s


def test_bucket_is_refilled_by_refunds_and_by_time_up_to_its_capacity(bucket: TokenBucket, clock: ManualClock) -> None:
    bucket.take(3)
    bucket.refund(3)
    waits_s = [bucket.take(3), bucket.take(2)]
    clock.advance(1.0)
    waits_s += [bucket.take(2), bucket.take(3)]
    clock.advance(1000.0)

    assert [*waits_s, bucket.take(3), bucket.take(3)] == [0, 1.0, 0, 1.5, 0, 1.5]


def caller(**limits: float) -> Caller:
    return Caller(name="shop", certificates=("shop",), permissions=frozenset(Permission), **limits)  # type: ignore[arg-type]


def take_tokens(
    limiter: RateLimiter, who: Caller | None, num_tokens: int, *, decode_cost: int = 0
) -> tuple[Charge, ...]:
    return limiter.take_tokens("shop", who, num_tokens, decode_cost=lambda: decode_cost)


def test_decode_cost_is_only_computed_if_limited(limiter: RateLimiter) -> None:
    answers = iter(range(1, 9))

    for limits in (caller(), caller(tokens_per_min=60)):
        limiter.take_tokens("shop", limits, 1, decode_cost=answers.__next__)
    charges = limiter.take_tokens("shop", caller(decode_cost_per_min=60), 1, decode_cost=answers.__next__)

    assert [charge.amount for charge in charges] == [1]
    assert next(answers) == 2


def test_caller_without_quota_is_not_charged(limiter: RateLimiter) -> None:
    assert take_tokens(limiter, caller(), 10**9) == ()


def test_small_rate_allows_one_request(limiter: RateLimiter) -> None:
    limiter.take_request("shop", 0.001)

    with pytest.raises(RateLimitedError, match=r"caller 'shop' is limited to 0.001 requests/s; retry in 1000.0 s"):
        limiter.take_request("shop", 0.001)


def test_tokens_of_a_minute_can_be_used_at_once(limiter: RateLimiter, clock: ManualClock) -> None:
    small = caller(tokens_per_min=600)
    take_tokens(limiter, small, 600)

    with pytest.raises(RateLimitedError, match=r"limited to 600 source tokens/min; retry in 10.0 s") as caught:
        take_tokens(limiter, small, 100)
    clock.advance(caught.value.retry_after_s)

    take_tokens(limiter, small, 100)


def test_rejection_takes_no_tokens_and_refunded_decode_cost_is_available_again(limiter: RateLimiter) -> None:
    small = caller(tokens_per_min=100, decode_cost_per_min=600)
    take_tokens(limiter, small, 50, decode_cost=590)
    charges = take_tokens(limiter, small, 0, decode_cost=10)

    with pytest.raises(RateLimitedError, match=r"limited to 600 decode cost/min; retry in 1.0 s"):
        take_tokens(limiter, small, 50, decode_cost=10)

    limiter.refund(charges)
    take_tokens(limiter, small, 50, decode_cost=10)


@pytest.mark.parametrize("later", [None, caller(tokens_per_min=60)], ids=["removed", "unchanged"])
def test_only_a_changed_quota_starts_a_new_bucket(limiter: RateLimiter, later: Caller | None) -> None:
    take_tokens(limiter, caller(tokens_per_min=60), 60)

    with pytest.raises(RateLimitedError):
        take_tokens(limiter, later, 1)

    take_tokens(limiter, caller(tokens_per_min=61), 60)
