import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.rate_limits import TokenBucket
from tests.fakes import ManualClock

amounts = st.floats(min_value=0.01, max_value=50)
pauses_s = st.floats(min_value=0, max_value=20)
ROUNDING = 1e-6


@given(
    calls=st.lists(st.tuples(pauses_s, amounts), min_size=1, max_size=60),
    rate_per_s=st.floats(min_value=0.1, max_value=10),
    capacity=st.floats(min_value=0.1, max_value=20),
)
def test_in_any_time_no_more_is_taken_than_flows_in_and_one_burst_and_one_call(
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
def test_whoever_waits_as_long_as_told_is_served(calls: list[float]) -> None:
    clock = ManualClock()
    bucket = TokenBucket(rate_per_s=1.5, capacity=4, clock=clock)

    for amount in calls:
        wait_s = bucket.take(amount)
        clock.advance(wait_s)

        assert wait_s == 0 or bucket.take(amount) == pytest.approx(0, abs=ROUNDING)
