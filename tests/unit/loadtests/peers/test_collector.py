from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from loadtests.peers.batching import Collector

_MAX_BATCH_SIZE = 4
_MAX_WAIT_S = 1.0


def _collector() -> Collector[str, int]:
    return Collector(max_batch_size=_MAX_BATCH_SIZE, max_wait_s=_MAX_WAIT_S)


def test_a_full_batch_is_due_at_once() -> None:
    collector = _collector()

    collector.add("a", range(_MAX_BATCH_SIZE), now_s=5.0)

    assert collector.next_due_s() == 5.0
    assert collector.take(5.0) == ("a", (0, 1, 2, 3))
    assert len(collector) == 0


def test_a_small_batch_is_due_when_its_first_member_has_waited_long_enough() -> None:
    collector = _collector()
    collector.add("a", [1], now_s=5.0)
    collector.add("a", [2], now_s=5.9)

    assert collector.take(5.99) is None
    assert collector.next_due_s() == 6.0
    assert collector.take(6.0) == ("a", (1, 2))


def test_what_does_not_fit_waits_on() -> None:
    collector = _collector()
    collector.add("a", range(6), now_s=0.0)

    assert collector.take(0.0) == ("a", (0, 1, 2, 3))
    assert collector.take(0.0) is None
    assert collector.take(_MAX_WAIT_S) == ("a", (4, 5))
    assert collector.next_due_s() is None


def test_of_two_due_batches_the_one_with_the_older_member_comes_first() -> None:
    collector = _collector()
    collector.add("full", range(4), now_s=0.5)
    collector.add("old", [7], now_s=0.0)

    taken = [collector.take(_MAX_WAIT_S) for _ in range(2)]

    assert [batch[0] for batch in taken if batch] == ["old", "full"]


_EVENTS = st.lists(
    st.tuples(st.floats(0.0, 0.7), st.sampled_from("abc"), st.integers(0, 6)),  # after a while, options, members
    max_size=30,
)


@given(_EVENTS)
def test_every_member_leaves_once_in_time_and_in_order(events: list[tuple[float, str, int]]) -> None:
    """A thread is always free: each arrival and each due moment is followed by taking whatever is due."""
    collector: Collector[str, tuple[str, int]] = _collector()  # type: ignore[assignment]
    arrived_s: dict[tuple[str, int], float] = {}
    left: list[tuple[float, str, tuple[tuple[str, int], ...]]] = []
    now_s = 0.0

    def take_all(at_s: float) -> None:
        while (batch := collector.take(at_s)) is not None:
            left.append((at_s, *batch))

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

    gone = [member for _, _, members in left for member in members]
    assert sorted(gone) == sorted(arrived_s)
    assert len(collector) == 0
    for at_s, batch_options, batch in left:
        assert len(batch) <= _MAX_BATCH_SIZE
        assert all(options == batch_options for options, _ in batch)
        assert all(at_s - arrived_s[member] <= _MAX_WAIT_S + 1e-9 for member in batch)
    for options in "abc":
        assert all(first < second for first, second in pairwise(one for one in gone if one[0] == options))


def test_options_are_never_mixed() -> None:
    collector = _collector()
    collector.add("a", [1, 2, 3], now_s=0.0)
    collector.add("b", [4, 5, 6], now_s=0.0)

    assert [collector.take(2.0) for _ in range(3)] == [("a", (1, 2, 3)), ("b", (4, 5, 6)), None]
