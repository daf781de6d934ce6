"""Callers are served fairly and in order, and every segment is served, whatever is queued or removed."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.datatypes import Priority
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission_queue import (
    AdmissionQueue,
    BatchBudget,
    FairQueue,
    QueuedSegment,
    select_segments,
)
from tests.fakes import make_segment

MAX_COST = 20
CALLERS = "abcd"
LOOKAHEAD = 6
MAX_BULK_WAIT_S = 5.0

COSTS = st.integers(1, MAX_COST)
ARRIVALS = st.lists(st.tuples(st.sampled_from(CALLERS), COSTS), min_size=1, max_size=60)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(CALLERS), COSTS),
        st.tuples(st.just("discard"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("dequeue"), st.just(0), st.just(0)),
        st.tuples(st.just("dequeue"), st.just(0), st.just(0)),
    ),
    max_size=120,
)


def make_queued(
    caller: str,
    decode_cost: int,
    *,
    priority: Priority = Priority.INTERACTIVE,
    admitted_at_s: float = 0.0,
    num_words: int = 1,
) -> QueuedSegment:
    return QueuedSegment(
        segment=make_segment(*[7] * num_words),
        context=RequestContext(priority=priority, caller=caller, deadline_s=1e9),
        decode_cost=decode_cost,
        admitted_at_s=admitted_at_s,
    )


def fill(queue: FairQueue, arrivals: Sequence[tuple[str, int]]) -> list[QueuedSegment]:
    added = [make_queued(caller, cost) for caller, cost in arrivals]
    for segment in added:
        queue.add(segment)
    return added


@given(ARRIVALS)
def test_peek_returns_the_segments_that_are_served_next(arrivals: list[tuple[str, int]]) -> None:
    queue = FairQueue()
    fill(queue, arrivals)

    expected = queue.peek(1000)
    for limit in (1, 2, 7):
        assert queue.peek(limit) == expected[:limit]
    for segment in expected:
        assert queue.peek(1) == [segment]
        queue.dequeue(segment)
    assert len(queue) == 0


@given(ARRIVALS)
def test_segments_of_a_caller_are_served_in_order(arrivals: list[tuple[str, int]]) -> None:
    queue = FairQueue()
    added = fill(queue, arrivals)

    served = queue.peek(1000)

    for caller in CALLERS:
        assert [segment for segment in served if segment.context.caller == caller] == [
            segment for segment in added if segment.context.caller == caller
        ]


class Race:
    """Serves a queue, and records for each pair of callers the lead of one while both have queued segments."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self._lead: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._lowest: defaultdict[tuple[str, str], int] = defaultdict(int)

    def act(self, action: str, target: str | int, cost: int) -> None:
        if action == "add":
            self.queue.add(make_queued(str(target), cost))
        elif action == "discard":
            queued = list(self.queue)
            if isinstance(target, int) and target < len(queued):
                self.queue.discard(queued[target])
        elif self.queue:
            (segment,) = self.queue.peek(1)
            self.queue.dequeue(segment)
            self._record(segment)
        self._forget_idle()

    @property
    def widest_lead(self) -> int:
        """Largest lead of a caller over another, in decode cost."""
        return max((self._lead[pair] - self._lowest[pair] for pair in list(self._lead)), default=0)

    def _record(self, served: QueuedSegment) -> None:
        for other in {segment.context.caller for segment in self.queue} - {served.context.caller}:
            self._lead[served.context.caller, other] += served.decode_cost
            self._lead[other, served.context.caller] -= served.decode_cost
            self._lowest[other, served.context.caller] = min(
                self._lowest[other, served.context.caller], self._lead[other, served.context.caller]
            )

    def _forget_idle(self) -> None:
        queued = {segment.context.caller for segment in self.queue}
        for pair in list(self._lead):
            if not queued.issuperset(pair):
                del self._lead[pair]
                self._lowest.pop(pair, None)


@given(ACTIONS)
def test_lead_between_two_queued_callers_is_at_most_a_segment_of_each(
    actions: list[tuple[str, str | int, int]],
) -> None:
    race = Race()

    for action in actions:
        race.act(*action)

        assert race.widest_lead <= 2 * MAX_COST


@given(ACTIONS)
def test_queue_counts_its_segments(actions: list[tuple[str, str | int, int]]) -> None:
    race = Race()

    for action in actions:
        race.act(*action)

        queued = list(race.queue)
        assert race.queue.decode_cost == sum(segment.decode_cost for segment in queued)
        assert race.queue.num_callers == len({segment.context.caller for segment in queued})
        assert set(race.queue.peek(1000)) == set(queued)
        for caller in CALLERS:
            own = [segment.decode_cost for segment in queued if segment.context.caller == caller]
            assert race.queue.held_by(caller) == (len(own), sum(own))


@given(
    st.lists(st.tuples(st.sampled_from(CALLERS), COSTS, st.sampled_from(Priority), st.integers(1, 30)), max_size=40),
    st.integers(1, 6),
)
def test_every_segment_is_served_under_a_flood_of_interactive_segments(
    arrivals: list[tuple[str, int, Priority, int]], max_segments: int
) -> None:
    queue = AdmissionQueue(max_bulk_wait_s=MAX_BULK_WAIT_S)
    remaining = {
        make_queued(caller, cost, priority=priority, num_words=num_words)
        for caller, cost, priority, num_words in arrivals
    }
    for segment in remaining:
        queue.add([segment])

    for turn in range(100 * (len(arrivals) + 1)):
        if not remaining:
            break
        queue.add([make_queued("flood", MAX_COST, admitted_at_s=float(turn))])
        for segment in selected_of(queue, now_s=float(turn), max_segments=max_segments):
            queue.dequeue(segment)
            remaining.discard(segment)

    assert not remaining


@given(ARRIVALS, st.integers(1, 4))
def test_segments_are_overtaken_only_within_the_lookahead(arrivals: list[tuple[str, int]], max_segments: int) -> None:
    queue = AdmissionQueue(max_bulk_wait_s=MAX_BULK_WAIT_S)
    for caller, cost in arrivals:
        queue.add([make_queued(caller, cost, num_words=cost)])
    positions = []

    while queue.num_segments:
        positions.append({segment: place for place, segment in enumerate(queue.peek(0.0, limit=LOOKAHEAD))})
        for segment in selected_of(queue, now_s=0.0, max_segments=max_segments):
            assert segment in positions[-1]
            queue.dequeue(segment)

    for before, after in pairwise(positions):
        head = next(iter(before))
        assert head not in after


def selected_of(queue: AdmissionQueue, *, now_s: float, max_segments: int) -> list[QueuedSegment]:
    budget = BatchBudget(max_segments=max_segments, max_padded_tokens=10**6, max_rows=10**6)
    return select_segments(queue.peek(now_s, limit=LOOKAHEAD), BatchLoad(), budget)
