"""Order of service and state of the queue; `tests/property/test_fair_scheduling.py` checks fairness and counts."""

import pytest

from dragoman_service.datatypes import Priority
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission import Backlog, QueueState, RequestCost
from dragoman_service.scheduling.admission_queue import AdmissionQueue, FairQueue, QueuedSegment
from tests.fakes import make_segment

BULK = Priority.BULK


def make_queue(*segments: QueuedSegment) -> AdmissionQueue:
    queue = AdmissionQueue(max_bulk_wait_s=5.0)
    queue.add(segments)
    return queue


def make_queued(
    cost: int = 2, *, caller: str = "", priority: Priority = Priority.INTERACTIVE, admitted_at_s: float = 0.0
) -> QueuedSegment:
    return QueuedSegment(
        segment=make_segment(7),
        context=RequestContext(priority=priority, caller=caller, deadline_s=100.0),
        decode_cost=cost,
        admitted_at_s=admitted_at_s,
    )


def state_of(queue: AdmissionQueue, cost: int, priority: Priority = Priority.INTERACTIVE) -> QueueState:
    """Return the state for a request of the caller `me`."""
    request_cost = RequestCost(segment_costs=(cost,), longest_source=2, max_steps=1, widest_beam=1)
    return queue.state(request_cost, RequestContext(caller="me", priority=priority), num_running=3)


def test_segment_that_is_not_queued_cannot_be_discarded() -> None:
    segment = make_queued(10)
    queue = make_queue(segment)
    queue.dequeue(segment)

    assert not queue.discard(segment)
    assert (queue.num_segments, queue.num_tokens, queue.decode_cost) == (0, 0, 0)


def test_interactive_segments_are_served_before_bulk_segments_each_in_order() -> None:
    bulk = [make_queued(priority=BULK) for _ in range(2)]
    interactive = [make_queued() for _ in range(2)]

    queue = make_queue(*bulk, *interactive)

    assert queue.peek(0.0, limit=10) == [*interactive, *bulk]
    assert queue.peek(0.0, limit=3) == [*interactive, bulk[0]]


def test_bulk_segment_is_next_after_its_maximum_wait() -> None:
    bulk, interactive = make_queued(priority=BULK), [make_queued() for _ in range(3)]
    queue = make_queue(bulk, *interactive)

    assert queue.peek(5.0, limit=3) == interactive
    assert queue.peek(5.1, limit=3) == [bulk, *interactive[:2]]


def test_bulk_callers_take_turns_after_the_maximum_wait() -> None:
    large = [make_queued(caller="large", priority=BULK) for _ in range(4)]
    queue = make_queue(*large)
    queue.dequeue(large[0])
    small, interactive = make_queued(caller="small", priority=BULK, admitted_at_s=4.0), make_queued()
    queue.add([small, interactive])
    queue.dequeue(large[1])

    assert queue.peek(6.0, limit=2) == [small, interactive]


def test_state_counts_all_callers_and_the_backlog_of_a_fair_turn() -> None:
    queue = make_queue(
        make_queued(30, caller="other"), make_queued(10, caller="me"), make_queued(5, caller="me", priority=BULK)
    )

    assert state_of(queue, 4) == QueueState(
        num_segments=3,
        decode_cost=45,
        num_caller_segments=2,
        caller_decode_cost=15,
        num_callers=2,
        backlog=Backlog(num_queued=2, decode_cost=10 + (10 + 4), num_running=3),
    )


def test_backlog_of_a_bulk_request_includes_all_interactive_segments() -> None:
    queue = make_queue(make_queued(40, caller="other"), make_queued(2, caller="other", priority=BULK))

    assert state_of(queue, 10, BULK).backlog == Backlog(num_queued=2, decode_cost=40 + 2, num_running=3)


def add(queue: FairQueue, caller: str, *costs: int) -> list[QueuedSegment]:
    added = [make_queued(cost, caller=caller) for cost in costs]
    for segment in added:
        queue.add(segment)
    return added


def dequeue(queue: FairQueue, count: int) -> str:
    """Dequeue segments one by one and return their callers."""
    served = ""
    for _ in range(count):
        (segment,) = queue.peek(1)
        queue.dequeue(segment)
        served += segment.context.caller
    return served


@pytest.mark.parametrize(
    ("events", "served"),
    [
        ([("a", [10] * 4), ("b", [10] * 2), 6], "ababaa"),
        ([("a", [30] * 3), ("b", [10] * 6), 9], "abbbabbba"),  # weighted by cost
        ([("a", [10] * 6), ("b", [30]), 2, ("b", [10]), 6], "ab" + "aabaaa"),  # b was served ahead
        ([("a", [10] * 8), 4, ("b", [10] * 4), 8], "aaaa" + "abababab"),  # a pause earns no credit
    ],
)
def test_callers_with_the_least_cost_served_are_next(events: list[int | tuple[str, list[int]]], served: str) -> None:
    queue, callers = FairQueue(), ""
    for event in events:
        if isinstance(event, int):
            callers += dequeue(queue, event)
        else:
            add(queue, event[0], *event[1])

    assert callers == served


def test_cancelled_segments_are_not_charged() -> None:
    queue = FairQueue()
    add(queue, "a", *[10] * 3)
    for segment in add(queue, "b", *[1000] * 5):
        assert queue.discard(segment)

    add(queue, "b", 10)

    assert dequeue(queue, 4) == "abaa"


def test_other_callers_are_served_at_most_as_much_before_a_request() -> None:
    queue = FairQueue()
    add(queue, "large", *[10] * 1000)
    add(queue, "small", 5)
    add(queue, "me", 20)

    assert queue.cost_ahead("me", 30) == 20 + 50 + 5
    assert queue.cost_ahead("new", 30) == 30 + 5 + 20
    assert FairQueue().cost_ahead("me", 30) == 0


def test_idle_callers_are_forgotten_once_the_others_have_caught_up() -> None:
    queue = FairQueue()
    add(queue, "large", *[1] * 5000)
    for number in range(2000):
        add(queue, f"host {number}", 1)
        for segment in queue.peek(2):
            queue.dequeue(segment)

    assert len(queue._idle_tags) < 200
