"""Callers that wait are served alike, in order, and every one of them, whatever arrives or leaves in between."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.datatypes import Priority
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission_queue import AdmissionQueue, FairQueue, QueuedSegment
from dragoman_service.scheduling.batch_policy import BatchBudget, select_segments
from dragoman_service.scheduling.settings import SchedulingSettings
from tests.fakes import make_segment

MAX_WORK = 20
CALLERS = "abcd"
LOOKAHEAD = 6
PATIENCE_S = 5.0

WORKS = st.integers(1, MAX_WORK)
ARRIVALS = st.lists(st.tuples(st.sampled_from(CALLERS), WORKS), min_size=1, max_size=60)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(CALLERS), WORKS),
        st.tuples(st.just("drop"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("serve"), st.just(0), st.just(0)),
        st.tuples(st.just("serve"), st.just(0), st.just(0)),
    ),
    max_size=120,
)


def make_pending(
    caller: str,
    work: int,
    *,
    priority: Priority = Priority.INTERACTIVE,
    admitted_at_s: float = 0.0,
    num_words: int = 1,
) -> QueuedSegment:
    return QueuedSegment(
        segment=make_segment(*[7] * num_words),
        context=RequestContext(priority=priority, caller=caller, deadline_s=1e9),
        work=work,
        admitted_at_s=admitted_at_s,
    )


def fill(queue: FairQueue, arrivals: Sequence[tuple[str, int]]) -> list[QueuedSegment]:
    added = [make_pending(caller, work) for caller, work in arrivals]
    for pending in added:
        queue.add(pending)
    return added


@given(ARRIVALS)
def test_what_is_looked_at_is_what_is_served_next(arrivals: list[tuple[str, int]]) -> None:
    queue = FairQueue()
    fill(queue, arrivals)

    expected = queue.peek(1000)
    for limit in (1, 2, 7):
        assert queue.peek(limit) == expected[:limit]
    for pending in expected:
        assert queue.peek(1) == [pending]
        queue.serve(pending)
    assert len(queue) == 0


@given(ARRIVALS)
def test_each_caller_is_served_in_order(arrivals: list[tuple[str, int]]) -> None:
    queue = FairQueue()
    added = fill(queue, arrivals)

    served = queue.peek(1000)

    for caller in CALLERS:
        assert [one for one in served if one.context.caller == caller] == [
            one for one in added if one.context.caller == caller
        ]


class Race:
    """Serves a queue, and notes for each pair of callers how far one got ahead while both had something waiting."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self._lead: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._lowest: defaultdict[tuple[str, str], int] = defaultdict(int)

    def act(self, action: str, what: str | int, work: int) -> None:
        if action == "add":
            self.queue.add(make_pending(str(what), work))
        elif action == "drop":
            waiting = list(self.queue)
            if isinstance(what, int) and what < len(waiting):
                self.queue.drop(waiting[what])
        elif self.queue:
            (pending,) = self.queue.peek(1)
            self.queue.serve(pending)
            self._note(pending)
        self._forget_idle()

    @property
    def widest_lead(self) -> int:
        """Most work by which a caller ever got ahead of another in a time in which both waited."""
        return max((self._lead[pair] - self._lowest[pair] for pair in list(self._lead)), default=0)

    def _note(self, served: QueuedSegment) -> None:
        for other in {pending.context.caller for pending in self.queue} - {served.context.caller}:
            self._lead[served.context.caller, other] += served.work
            self._lead[other, served.context.caller] -= served.work
            self._lowest[other, served.context.caller] = min(
                self._lowest[other, served.context.caller], self._lead[other, served.context.caller]
            )

    def _forget_idle(self) -> None:
        waiting = {pending.context.caller for pending in self.queue}
        for pair in list(self._lead):
            if not waiting.issuperset(pair):
                del self._lead[pair]
                self._lowest.pop(pair, None)


@given(ACTIONS)
def test_of_two_callers_that_wait_none_gets_ahead_by_more_than_a_segment_of_each(
    actions: list[tuple[str, str | int, int]],
) -> None:
    race = Race()

    for action in actions:
        race.act(*action)

        assert race.widest_lead <= 2 * MAX_WORK


@given(ACTIONS)
def test_what_a_queue_says_it_holds_is_what_it_holds(actions: list[tuple[str, str | int, int]]) -> None:
    race = Race()

    for action in actions:
        race.act(*action)

        waiting = list(race.queue)
        assert race.queue.work == sum(pending.work for pending in waiting)
        assert race.queue.num_callers == len({pending.context.caller for pending in waiting})
        assert set(race.queue.peek(1000)) == set(waiting)
        for caller in CALLERS:
            own = [pending.work for pending in waiting if pending.context.caller == caller]
            assert race.queue.held_by(caller) == (len(own), sum(own))


@given(
    st.lists(st.tuples(st.sampled_from(CALLERS), WORKS, st.sampled_from(Priority), st.integers(1, 30)), max_size=40),
    st.integers(1, 6),
)
def test_every_admitted_segment_is_served_while_interactive_ones_keep_coming(
    arrivals: list[tuple[str, int, Priority, int]], max_segments: int
) -> None:
    queue = AdmissionQueue(
        SchedulingSettings(max_queue_segments=10**6, max_queue_work_tokens=10**9, max_bulk_wait_s=PATIENCE_S)
    )
    left = {
        make_pending(caller, work, priority=priority, num_words=num_words)
        for caller, work, priority, num_words in arrivals
    }
    for pending in left:
        queue.add([pending])

    for turn in range(100 * (len(arrivals) + 1)):
        if not left:
            break
        queue.add([make_pending("flood", MAX_WORK, admitted_at_s=float(turn))])
        for pending in selected_of(queue, now_s=float(turn), max_segments=max_segments):
            queue.serve(pending)
            left.discard(pending)

    assert not left


@given(ARRIVALS, st.integers(1, 4))
def test_similar_lengths_pass_those_only_that_are_looked_at_with_them(
    arrivals: list[tuple[str, int]], max_segments: int
) -> None:
    queue = AdmissionQueue(
        SchedulingSettings(max_queue_segments=10**6, max_queue_work_tokens=10**9, max_bulk_wait_s=PATIENCE_S)
    )
    for caller, work in arrivals:
        queue.add([make_pending(caller, work, num_words=work)])
    positions = []

    while queue.num_segments:
        positions.append({pending: place for place, pending in enumerate(queue.peek(0.0, limit=LOOKAHEAD))})
        for pending in selected_of(queue, now_s=0.0, max_segments=max_segments):
            assert pending in positions[-1]
            queue.serve(pending)

    for before, after in pairwise(positions):
        head = next(iter(before))
        assert head not in after


def selected_of(queue: AdmissionQueue, *, now_s: float, max_segments: int) -> list[QueuedSegment]:
    """Return the segments that join an empty batch."""
    budget = BatchBudget(max_segments=max_segments, max_padded_tokens=10**6, max_rows=10**6)
    return select_segments(queue.peek(now_s, limit=LOOKAHEAD), BatchLoad(), budget)
