import pytest

from service.api.callers import Caller, Permission
from service.api.rate_limits import RateLimiter
from service.errors import OverloadedError, RateLimitedError
from tests.fakes import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def caller(name: str = "shop", *, requests_per_s: float | None = None, tokens_per_min: float | None = None) -> Caller:
    return Caller(
        name=name,
        certificates=(name,),
        permissions=frozenset(Permission),
        requests_per_s=requests_per_s,
        tokens_per_min=tokens_per_min,
    )


def take_tokens(limiter: RateLimiter, who: Caller, num_tokens: int) -> None:
    with limiter.charge_tokens(who, num_tokens):
        pass


def test_a_caller_without_limits_is_never_refused(clock: ManualClock) -> None:
    limiter = RateLimiter(clock)

    for _ in range(1000):
        limiter.take_request(caller())
        take_tokens(limiter, caller(), 10**9)


def test_one_request_is_allowed_however_small_the_rate(clock: ManualClock) -> None:
    limiter, slow = RateLimiter(clock), caller(requests_per_s=0.001)
    limiter.take_request(slow)

    with pytest.raises(RateLimitedError, match=r"caller 'shop' is limited to 0.001 requests/s; retry in 1000.0 s"):
        limiter.take_request(slow)


def test_tokens_of_a_minute_may_be_used_at_once_and_are_back_after_it(clock: ManualClock) -> None:
    limiter, small = RateLimiter(clock), caller(tokens_per_min=600)
    take_tokens(limiter, small, 600)

    with pytest.raises(RateLimitedError, match=r"limited to 600 source tokens/min; retry in 10.0 s") as caught:
        take_tokens(limiter, small, 100)
    clock.advance(caught.value.retry_after_s)

    take_tokens(limiter, small, 100)


def test_tokens_are_given_back_if_what_they_are_for_fails(clock: ManualClock) -> None:
    limiter, small = RateLimiter(clock), caller(tokens_per_min=600)

    with pytest.raises(OverloadedError), limiter.charge_tokens(small, 600):
        raise OverloadedError(queued=1, limit=1, unit="segments", retry_after_s=1.0)

    take_tokens(limiter, small, 600)


def test_limits_that_stay_the_same_keep_what_is_used_and_others_begin_anew(clock: ManualClock) -> None:
    limiter = RateLimiter(clock)
    take_tokens(limiter, caller(tokens_per_min=60), 60)

    with pytest.raises(RateLimitedError):
        take_tokens(limiter, caller(tokens_per_min=60), 60)

    take_tokens(limiter, caller(tokens_per_min=61), 60)
