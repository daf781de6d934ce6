from dragoman_service.datatypes import Priority
from dragoman_service.request import RequestRecord
from dragoman_service.scheduling.admission_queue import AdmissionQueue, FairQueue, QueuedSegment
from dragoman_service.scheduling.latency_model import Backlog, RequestCost
from tests.fakes import make_segment

BULK = Priority.BULK


def make_queue(*segments: QueuedSegment) -> AdmissionQueue:
    queue = AdmissionQueue(max_bulk_wait_s=5.0)
    queue.add(segments)
    return queue


def make_queued(
    cost: int = 2,
    *,
    caller: str = "",
    priority: Priority = Priority.INTERACTIVE,
    admitted_at_s: float = 0.0,
    deadline_s: float = 100.0,
) -> QueuedSegment:
    return QueuedSegment(
        segment=make_segment(7),
        context=RequestRecord(priority=priority, caller=caller, deadline_s=deadline_s),
        decode_cost=cost,
        admitted_at_s=admitted_at_s,
    )


def make_cost(*segment_costs: int) -> RequestCost:
    return RequestCost(segment_costs=segment_costs, longest_source=2, max_steps=1, widest_beam=1)


def sizes(queue: AdmissionQueue) -> tuple[int, int, int]:
    return queue.num_segments, queue.num_tokens, queue.decode_cost


def test_dequeued_and_discarded_segments_free_their_room() -> None:
    first, second = make_queued(3), make_queued(4)
    queue = make_queue(first, second)
    assert sizes(queue) == (2, 4, 7)

    queue.dequeue(first)
    assert sizes(queue) == (1, 2, 4)
    assert queue.discard(second)
    assert not queue.discard(second)
    assert not queue.discard(first)
    assert sizes(queue) == (0, 0, 0)


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


def test_expired_segments_are_removed() -> None:
    early, late = make_queued(deadline_s=1.0), make_queued(deadline_s=2.0)
    queue = make_queue(late, early)

    assert queue.pop_expired(0.9) == []
    assert queue.pop_expired(1.0) == [early]
    assert queue.pop_expired(5.0) == [late]
    assert sizes(queue) == (0, 0, 0)


def test_state_counts_all_callers_and_the_caller_of_the_request() -> None:
    queue = make_queue(
        make_queued(30, caller="other"), make_queued(10, caller="me"), make_queued(5, caller="me", priority=BULK)
    )

    state = queue.state(make_cost(4), RequestRecord(caller="me"), num_running=3, is_draining=True)

    assert (state.num_segments, state.num_caller_segments) == (3, 2)
    assert (state.decode_cost, state.caller_decode_cost) == (45, 15)
    assert (state.num_callers, state.is_draining) == (2, True)


def test_backlog_of_a_request_is_its_fair_turn() -> None:
    queue = make_queue(make_queued(30, caller="other"), make_queued(10, caller="me"))

    state = queue.state(make_cost(4), RequestRecord(caller="me"), num_running=3)

    assert state.backlog == Backlog(num_queued=1, decode_cost=10 + (10 + 4), num_running=3)


def test_backlog_of_a_bulk_request_includes_all_interactive_segments() -> None:
    queue = make_queue(make_queued(40, caller="other"), make_queued(2, caller="other", priority=BULK))

    state = queue.state(make_cost(10), RequestRecord(caller="me", priority=BULK), num_running=0)

    assert state.backlog == Backlog(num_queued=2, decode_cost=40 + 2, num_running=0)


def add(queue: FairQueue, caller: str, *costs: int) -> list[QueuedSegment]:
    added = [make_queued(cost, caller=caller) for cost in costs]
    for segment in added:
        queue.add(segment)
    return added


def dequeue(queue: FairQueue, count: int = 1) -> str:
    """Dequeue segments one by one and return their callers."""
    served = ""
    for _ in range(count):
        (segment,) = queue.peek(1)
        queue.dequeue(segment)
        served += segment.context.caller
    return served


def test_callers_are_served_alternately() -> None:
    queue = FairQueue()
    add(queue, "a", 10, 10, 10, 10)
    add(queue, "b", 10, 10)

    assert [segment.context.caller for segment in queue.peek(6)] == list("ababaa")
    assert dequeue(queue, 6) == "ababaa"


def test_fairness_is_weighted_by_cost() -> None:
    queue = FairQueue()
    add(queue, "a", 30, 30, 30)
    add(queue, "b", 10, 10, 10, 10, 10, 10)

    assert dequeue(queue, 9) == "abbbabbba"


def test_segments_of_a_caller_keep_their_order() -> None:
    queue = FairQueue()
    segments = add(queue, "a", 5, 1, 3)

    assert queue.peek(9) == list(queue) == segments
    assert queue.oldest is segments[0]


def test_small_request_does_not_wait_for_a_thousand_segments() -> None:
    queue = FairQueue()
    add(queue, "large", *[10] * 1000)
    dequeue(queue, 5)

    (small,) = add(queue, "small", 10)

    assert small in queue.peek(2)


def test_returning_caller_that_was_served_ahead_waits_for_the_others() -> None:
    queue = FairQueue()
    add(queue, "a", *[10] * 6)
    add(queue, "b", 30)
    dequeue(queue, 2)

    add(queue, "b", 10)

    assert dequeue(queue, 6) == "aabaaa"


def test_pause_earns_no_credit() -> None:
    queue = FairQueue()
    add(queue, "a", *[10] * 8)
    dequeue(queue, 4)

    add(queue, "b", *[10] * 4)

    assert dequeue(queue, 8) == "abababab"


def test_cancelled_segments_are_not_charged() -> None:
    queue = FairQueue()
    add(queue, "a", *[10] * 3)
    for segment in add(queue, "b", *[1000] * 5):
        assert queue.discard(segment)

    add(queue, "b", 10)

    assert dequeue(queue, 4) == "abaa"


def test_segment_that_is_not_queued_cannot_be_discarded() -> None:
    queue = FairQueue()
    (segment,) = add(queue, "a", 10)
    queue.dequeue(segment)

    assert not queue.discard(segment)
    assert (len(queue), queue.decode_cost, queue.num_callers, queue.held_by("a")) == (0, 0, 0, (0, 0))


def test_segments_and_cost_are_counted_by_caller() -> None:
    queue = FairQueue()
    add(queue, "a", 10, 20)
    add(queue, "b", 5)

    assert (queue.held_by("a"), queue.held_by("b"), queue.held_by("c")) == ((2, 30), (1, 5), (0, 0))
    assert (len(queue), queue.decode_cost, queue.num_callers) == (3, 35, 2)


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
