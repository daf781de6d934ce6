import pytest

from service.api.rate_limits import TokenBucket
from tests.fakes import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_burst_goes_up_to_the_capacity(clock: ManualClock) -> None:
    bucket = TokenBucket(rate_per_s=2, capacity=3, clock=clock)

    assert [bucket.take(1) for _ in range(4)] == [0, 0, 0, 0.5]


def test_after_the_time_it_names_an_amount_is_there(clock: ManualClock) -> None:
    bucket = TokenBucket(rate_per_s=2, capacity=3, clock=clock)
    bucket.take(3)

    wait_s = bucket.take(2)
    clock.advance(wait_s)

    assert wait_s == 1.0
    assert bucket.take(2) == 0


def test_a_refusal_takes_nothing(clock: ManualClock) -> None:
    bucket = TokenBucket(rate_per_s=1, capacity=3, clock=clock)
    bucket.take(2)

    assert [bucket.take(2), bucket.take(2), bucket.take(1)] == [1.0, 1.0, 0]


def test_more_than_the_capacity_is_taken_from_a_full_bucket_and_paid_for_afterwards(clock: ManualClock) -> None:
    bucket = TokenBucket(rate_per_s=1, capacity=3, clock=clock)

    assert bucket.take(10) == 0
    assert bucket.take(1) == 8.0
    assert bucket.take(10) == 10.0


def test_what_is_given_back_can_be_taken_again(clock: ManualClock) -> None:
    bucket = TokenBucket(rate_per_s=1, capacity=3, clock=clock)
    bucket.take(3)

    bucket.give_back(3)

    assert bucket.take(3) == 0


def test_an_idle_time_fills_no_more_than_the_capacity(clock: ManualClock) -> None:
    bucket = TokenBucket(rate_per_s=1, capacity=3, clock=clock)

    clock.advance(1000.0)

    assert [bucket.take(3), bucket.take(3)] == [0, 3.0]
