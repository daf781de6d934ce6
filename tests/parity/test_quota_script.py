"""The buckets in the store against the buckets of a single server: equal decisions on equal calls."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.security.rate_limits import TokenBucket
from dragoman_service.security.redis_quota import SCRIPT
from tests.fakes import ManualClock
from tests.redis_server import redis_server

STORE_CLOCK = "redis.call('TIME')"
MANUAL_CLOCK = "cjson.decode(redis.call('GET', 'now'))"
EPOCH_S = 1_800_000_000
"""The store counts time since 1970, in which a double resolves less than a microsecond."""
TOLERANCE = 1e-3
"""Resolution of the content of a bucket at the highest rate of these tests. A request within this distance of the
content may be admitted or rejected."""

calls = st.lists(
    st.tuples(st.floats(0, 120), st.integers(0, 1), st.integers(1, 80), st.booleans()), min_size=1, max_size=40
)


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    """Runs the script in a store, and sets the time there."""
    with redis_server() as server, server.client() as client:
        yield client


class StoredBuckets:
    """Two buckets in the store, with the time of the test."""

    def __init__(self, store: Any, clock: ManualClock, rates: list[float], capacities: list[float]) -> None:
        assert SCRIPT.count(STORE_CLOCK) == 1
        store.flushall()
        self._run = store.register_script(SCRIPT.replace(STORE_CLOCK, MANUAL_CLOCK))
        self._store, self._clock, self.rates, self.capacities = store, clock, rates, capacities

    def take(self, *amounts: tuple[int, float]) -> tuple[int, float]:
        """Take amounts of buckets by number; return the answer."""
        seconds, microseconds = divmod(round(self._clock() * 1e6), 1_000_000)
        self._store.set("now", f'["{EPOCH_S + seconds}", "{microseconds}"]')
        numbers = [number for i, amount in amounts for number in (self.rates[i], self.capacities[i], amount)]
        rejected, wait_s, self.num_reset = self._run(keys=[f"bucket-{i}" for i, _ in amounts], args=numbers)
        return rejected, float(wait_s)


@given(calls=calls, rates=st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), capacity=st.floats(1, 100))
def test_the_store_answers_as_the_bucket_of_one_server(
    store: Any, calls: list[tuple[float, int, int, bool]], rates: tuple[float, float], capacity: float
) -> None:
    clock = ManualClock()
    stored = StoredBuckets(store, clock, list(rates), [capacity, capacity])
    buckets = [TokenBucket(rate_per_s=rate, capacity=capacity, clock=clock) for rate in rates]

    for pause_s, number, amount, is_given_back in calls:
        clock.advance(round(pause_s, 6))
        expected_s, (rejected, wait_s) = buckets[number].take(amount), stored.take((number, amount))
        store.persist(f"bucket-{number}")  # keys expire by the clock of the store, which goes on
        if (expected_s > 0) != bool(rejected):
            assert max(expected_s, wait_s) * rates[number] < TOLERANCE
            return
        assert wait_s * rates[number] == pytest.approx(expected_s * rates[number], abs=TOLERANCE)
        if is_given_back and not rejected:
            buckets[number].refund(amount)
            assert stored.take((number, -amount)) == (0, 0.0)


def test_all_is_taken_or_nothing_and_the_first_that_lacks_something_is_named(store: Any) -> None:
    stored = StoredBuckets(store, ManualClock(), [1.0, 2.0], [10.0, 20.0])
    assert stored.take((1, 15)) == (0, 0.0)

    assert stored.take((0, 10), (1, 10)) == (2, 2.5)

    assert stored.take((0, 10)) == (0, 0.0)


def test_a_bucket_that_is_full_again_needs_no_key(store: Any) -> None:
    clock = ManualClock()
    stored = StoredBuckets(store, clock, [2.0], [10.0])
    stored.take((0, 10))
    assert 5000 <= store.pttl("bucket-0") <= 5001

    clock.advance(4.0)
    stored.take((0, -2))

    assert not store.exists("bucket-0")


def test_a_clock_that_is_set_back_holds_nobody_up_for_longer(store: Any) -> None:
    clock = ManualClock(100_000.0)
    stored = StoredBuckets(store, clock, [1.0], [10.0])
    stored.take((0, 10))

    clock.advance(-50_000.0)
    assert stored.take((0, 5)) == (1, 5.0)
    clock.advance(5.0)

    assert stored.take((0, 5)) == (0, 0.0)


@pytest.mark.parametrize("used", ["", "x", "nan", "inf", "-inf", "-1", "1e308", "1e400", "1,5", "\0", "9" * 400])
@pytest.mark.parametrize("field", ["used", "at"])
def test_damaged_number_is_reset(store: Any, field: str, used: str) -> None:
    stored = StoredBuckets(store, ManualClock(), [1.0], [10.0])
    store.hset("bucket-0", mapping={"used": 5, "at": EPOCH_S, field: used})

    assert stored.take((0, 10)) == (0, 0.0)

    assert stored.num_reset == 1
    assert stored.take((0, 5)) == (1, 5.0)
    assert stored.num_reset == 0


def test_key_of_another_type_is_reset_without_effect_on_other_buckets(store: Any) -> None:
    stored = StoredBuckets(store, ManualClock(), [1.0, 1.0], [10.0, 10.0])
    assert stored.take((1, 10)) == (0, 0.0)
    store.set("bucket-0", "a text")

    assert stored.take((0, 10), (1, 5)) == (2, 5.0)
    assert stored.num_reset == 1

    assert stored.take((0, 10)) == (0, 0.0)


def test_a_limit_that_changes_leaves_what_was_used(store: Any) -> None:
    stored = StoredBuckets(store, ManualClock(), [1.0], [10.0])
    stored.take((0, 10))

    stored.rates, stored.capacities = [2.0], [15.0]

    assert stored.take((0, 5)) == (0, 0.0)
    assert stored.take((0, 5)) == (1, 2.5)
