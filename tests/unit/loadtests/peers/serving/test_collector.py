from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.peers.serving.collector import Batch, Collector

_MAX_BATCH_SIZE = 4
_MAX_WAIT_S = 1.0


def _collector() -> Collector[str, int]:
    return Collector(max_batch_size=_MAX_BATCH_SIZE, max_wait_s=_MAX_WAIT_S)


def test_a_full_batch_is_due_at_once() -> None:
    collector = _collector()

    collector.add("a", range(_MAX_BATCH_SIZE), now_s=5.0)

    assert collector.next_due_s() == 5.0
    assert collector.take(5.0) == Batch(options="a", members=(0, 1, 2, 3))
    assert len(collector) == 0


def test_a_small_batch_is_due_when_its_first_member_has_waited_long_enough() -> None:
    collector = _collector()
    collector.add("a", [1], now_s=5.0)
    collector.add("a", [2], now_s=5.9)

    assert collector.take(5.99) is None
    assert collector.next_due_s() == 6.0
    assert collector.take(6.0) == Batch(options="a", members=(1, 2))


def test_what_does_not_fit_waits_on() -> None:
    collector = _collector()
    collector.add("a", range(6), now_s=0.0)

    assert collector.take(0.0) == Batch(options="a", members=(0, 1, 2, 3))
    assert collector.take(0.0) is None
    assert collector.take(_MAX_WAIT_S) == Batch(options="a", members=(4, 5))
    assert collector.next_due_s() is None


def test_of_two_due_batches_the_one_with_the_older_member_comes_first() -> None:
    collector = _collector()
    collector.add("full", range(4), now_s=0.5)
    collector.add("old", [7], now_s=0.0)

    taken = [collector.take(_MAX_WAIT_S) for _ in range(2)]

    assert [batch.options for batch in taken if batch] == ["old", "full"]


_EVENTS = st.lists(
    st.tuples(st.floats(0.0, 0.7), st.sampled_from("abc"), st.integers(0, 6)),  # after a while, options, members
    max_size=30,
)


@given(_EVENTS)
def test_every_member_leaves_once_in_time_and_in_order(events: list[tuple[float, str, int]]) -> None:
    """A thread is always free: each arrival and each due moment is followed by taking whatever is due."""
    collector: Collector[str, tuple[str, int]] = _collector()  # type: ignore[assignment]
    arrived_s: dict[tuple[str, int], float] = {}
    left: list[tuple[float, Batch[str, tuple[str, int]]]] = []
    now_s = 0.0

    def take_all(at_s: float) -> None:
        while (batch := collector.take(at_s)) is not None:
            left.append((at_s, batch))

    def wait_until(until_s: float) -> None:
        while (due_s := collector.next_due_s()) is not None and due_s <= until_s:
            take_all(due_s)

    for pause_s, options, count in events:
        wait_until(now_s + pause_s)
        now_s += pause_s
        members = [(options, len(arrived_s) + index) for index in range(count)]
        arrived_s |= dict.fromkeys(members, now_s)
        collector.add(options, members, now_s=now_s)
        take_all(now_s)
    wait_until(now_s + _MAX_WAIT_S)

    gone = [member for _, batch in left for member in batch.members]
    assert sorted(gone) == sorted(arrived_s)
    assert len(collector) == 0
    for at_s, batch in left:
        assert len(batch.members) <= _MAX_BATCH_SIZE
        assert all(options == batch.options for options, _ in batch.members)
        assert all(at_s - arrived_s[member] <= _MAX_WAIT_S + 1e-9 for member in batch.members)
    for options in "abc":
        assert all(first < second for first, second in pairwise(one for one in gone if one[0] == options))


def test_nobody_waits_in_an_empty_collector() -> None:
    assert _collector().take(0.0) is None


@pytest.mark.parametrize("options", ["a", "b"])
def test_options_are_never_mixed(options: str) -> None:
    collector = _collector()
    collector.add("a", [1, 2, 3], now_s=0.0)
    collector.add("b", [4, 5, 6], now_s=0.0)

    batches = {batch.options: batch.members for batch in (collector.take(2.0), collector.take(2.0)) if batch}

    assert batches[options] == {"a": (1, 2, 3), "b": (4, 5, 6)}[options]
