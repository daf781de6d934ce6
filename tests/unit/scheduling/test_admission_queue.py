import math

import pytest

from dragoman_service.datatypes import Priority
from dragoman_service.errors import OverloadedError
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission_queue import AdmissionQueue, FairQueue, QueuedSegment
from dragoman_service.scheduling.latency_model import Forecast, RequestCost, WorkAhead
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchStepOutput
from tests.fakes import make_segment

BULK = Priority.BULK


def make_queue(max_segments: int = 10, max_work: int = 100, max_caller_share: float = 1.0) -> AdmissionQueue:
    return AdmissionQueue(
        SchedulingSettings(
            max_queue_segments=max_segments,
            max_queue_work_tokens=max_work,
            max_bulk_wait_s=5.0,
            max_caller_queue_share=max_caller_share,
        )
    )


def make_pending(
    work: int = 2,
    *,
    caller: str = "",
    priority: Priority = Priority.INTERACTIVE,
    admitted_at_s: float = 0.0,
    deadline_s: float = 100.0,
) -> QueuedSegment:
    return QueuedSegment(
        segment=make_segment(7),
        context=RequestContext(priority=priority, caller=caller, deadline_s=deadline_s),
        work=work,
        admitted_at_s=admitted_at_s,
    )


def make_forecast(*, num_batches: int = 1, s_per_work: float | None = None) -> Forecast:
    forecast = Forecast(SchedulingSettings(max_batch_segments=4, max_batch_rows=16), num_batches=num_batches)
    if s_per_work is not None:
        for _ in range(100):
            output = BatchStepOutput(num_rows=16, step_s=16 * s_per_work, busy_s=16 * s_per_work)
            forecast.learn(output, is_backlogged=True, now_s=0.0)
    return forecast


def admit(queue: AdmissionQueue, *group: QueuedSegment, forecast: Forecast | None = None) -> None:
    cost = RequestCost(works=tuple(one.work for one in group), longest_source=2, most_steps=1, widest_beam=1)
    queue.check_capacity(cost, caller=group[0].context.caller, forecast=forecast or make_forecast())
    queue.add(group)


def rejected(queue: AdmissionQueue, *group: QueuedSegment, forecast: Forecast | None = None) -> OverloadedError:
    with pytest.raises(OverloadedError) as rejection:
        admit(queue, *group, forecast=forecast)
    return rejection.value


def test_a_group_that_does_not_fit_is_rejected_whole() -> None:
    queue = make_queue(max_segments=3)
    admit(queue, make_pending(), make_pending())

    error = rejected(queue, make_pending(), make_pending())

    assert queue.num_segments == 2
    assert (error.queued, error.limit, error.unit) == (2, 3, "segments")


def test_expected_work_is_limited_too() -> None:
    queue = make_queue(max_work=10)
    admit(queue, make_pending(work=8))

    error = rejected(queue, make_pending(work=3))

    assert (error.queued, error.limit, error.unit) == (8, 10, "work tokens")


def test_a_request_beyond_the_work_of_a_whole_queue_is_rejected_even_when_nothing_waits() -> None:
    error = rejected(make_queue(max_work=10), make_pending(work=11))

    assert (error.queued, error.limit, error.unit) == (0, 10, "work tokens")


def test_a_request_with_more_segments_than_the_queue_takes_is_never_taken() -> None:
    rejected(make_queue(max_segments=2), *(make_pending() for _ in range(3)))


@pytest.mark.parametrize(
    ("work", "unit"), [(2, "segments of this caller"), (20, "work tokens of this caller")], ids=["segments", "work"]
)
def test_one_caller_gets_its_share_another_the_same_share_of_the_rest(work: int, unit: str) -> None:
    queue = make_queue(max_segments=6, max_work=60, max_caller_share=0.5)
    for _ in range(3 if work == 2 else 1):
        admit(queue, make_pending(work, caller="much"))

    error = rejected(queue, make_pending(work, caller="much", priority=BULK))

    assert error.unit == unit
    admit(queue, make_pending(work, caller="other"))
    assert rejected(queue, make_pending(work, caller="other")).unit == unit
    admit(queue, make_pending(1, caller="third"))


def test_a_single_request_may_not_exceed_the_share_of_its_caller_either() -> None:
    queue = make_queue(max_segments=6, max_caller_share=0.5)

    error = rejected(queue, *(make_pending(caller="much") for _ in range(4)))

    assert (error.queued, error.limit, error.unit) == (0, 3, "segments of this caller")
    admit(queue, *(make_pending(caller="much") for _ in range(3)))


def test_a_share_of_one_is_the_whole_queue() -> None:
    queue = make_queue(max_segments=6, max_caller_share=1)

    admit(queue, *(make_pending(caller="much") for _ in range(6)))

    assert rejected(queue, make_pending(caller="other")).unit == "segments"


def test_what_the_process_itself_asks_is_not_counted_by_the_share() -> None:
    queue = make_queue(max_segments=4, max_caller_share=0.25)
    for _ in range(4):
        admit(queue, make_pending(caller=""))

    assert queue.num_segments == 4


def test_a_segment_that_leaves_frees_its_place() -> None:
    queue, pending = make_queue(max_segments=1), make_pending()
    admit(queue, pending)

    assert queue.drop(pending)
    assert not queue.drop(pending)

    assert (queue.num_segments, queue.num_tokens, queue.work) == (0, 0, 0)
    admit(queue, make_pending())


def test_a_segment_that_is_served_frees_its_place() -> None:
    queue, pending = make_queue(max_segments=1), make_pending()
    admit(queue, pending)

    queue.serve(pending)

    assert (queue.num_segments, queue.num_tokens, queue.work) == (0, 0, 0)
    assert not queue.drop(pending)


def test_interactive_segments_come_before_bulk_ones_each_in_order() -> None:
    queue = make_queue()
    bulk = [make_pending(priority=BULK) for _ in range(2)]
    interactive = [make_pending() for _ in range(2)]

    admit(queue, *bulk, *interactive)

    assert queue.peek(0.0, limit=10) == [*interactive, *bulk]
    assert queue.peek(0.0, limit=3) == [*interactive, bulk[0]]


def test_a_bulk_segment_that_lost_patience_is_next() -> None:
    queue = make_queue()
    bulk, interactive = make_pending(priority=BULK), [make_pending() for _ in range(3)]
    admit(queue, bulk, *interactive)

    assert queue.peek(5.0, limit=3) == interactive
    assert queue.peek(5.1, limit=3) == [bulk, *interactive[:2]]


def test_bulk_callers_take_turns_even_when_one_has_lost_patience() -> None:
    queue = make_queue()
    much = [make_pending(caller="much", priority=BULK) for _ in range(4)]
    admit(queue, *much)
    queue.serve(much[0])
    little, interactive = make_pending(caller="little", priority=BULK, admitted_at_s=4.0), make_pending()
    admit(queue, little, interactive)
    queue.serve(much[1])

    assert queue.peek(6.0, limit=2) == [little, interactive]


def test_segments_past_their_deadline_are_removed() -> None:
    queue = make_queue()
    early, late = make_pending(deadline_s=1.0), make_pending(deadline_s=2.0)
    admit(queue, late, early)

    assert queue.pop_expired(0.9) == []
    assert queue.pop_expired(1.0) == [early]
    assert queue.pop_expired(5.0) == [late]
    assert (queue.num_tokens, queue.work) == (0, 0)


def test_the_time_to_come_back_is_that_until_there_is_room() -> None:
    queue = make_queue(max_work=1000)
    admit(queue, make_pending(work=900))

    error = rejected(queue, make_pending(work=500), forecast=make_forecast(num_batches=2, s_per_work=0.01))

    assert error.retry_after_s == pytest.approx(400 * 0.01 / 2)


def test_without_room_for_more_segments_it_is_that_of_as_many_average_ones() -> None:
    queue = make_queue(max_segments=2)
    admit(queue, make_pending(work=10), make_pending(work=30))

    error = rejected(queue, make_pending(), forecast=make_forecast(s_per_work=0.1))

    assert error.retry_after_s == pytest.approx(20 * 0.1)


def test_a_caller_beyond_its_share_waits_for_the_turns_of_the_others_too() -> None:
    queue = make_queue(max_segments=4, max_caller_share=0.5)
    admit(queue, make_pending(10, caller="much"), make_pending(10, caller="much"))
    admit(queue, make_pending(10, caller="other"))

    error = rejected(queue, make_pending(caller="much"), forecast=make_forecast(s_per_work=0.1))

    # Two too many, and of what is done half is its own, and half of the other half becomes free for it.
    assert error.retry_after_s == pytest.approx(math.ceil(2 * 10 / 0.75) * 0.1)


@pytest.mark.parametrize(("s_per_work", "expected_s"), [(1e-9, 0.1), (1e9, 60.0)])
def test_the_time_to_come_back_has_sensible_limits(s_per_work: float, expected_s: float) -> None:
    queue = make_queue(max_segments=1)
    admit(queue, make_pending())

    assert rejected(queue, make_pending(), forecast=make_forecast(s_per_work=s_per_work)).retry_after_s == expected_s


def test_a_server_that_never_had_a_backlog_names_a_second() -> None:
    queue = make_queue(max_segments=1)
    admit(queue, make_pending())

    assert rejected(queue, make_pending()).retry_after_s == 1.0


def test_before_a_request_others_are_served_as_much_as_its_caller() -> None:
    queue, forecast = make_queue(max_work=1000), make_forecast()
    admit(queue, make_pending(30, caller="other"), make_pending(10, caller="me"))
    cost = forecast.request_cost([make_segment(7, beam_size=1, max_target_tokens=2)])

    ahead = queue.work_ahead(cost, RequestContext(caller="me"), num_running=3)

    assert cost.work == 4
    assert ahead == WorkAhead(num_waiting=1, work=10 + (10 + 4), num_running=3)


def test_before_a_bulk_request_all_interactive_ones_are_served() -> None:
    queue, forecast = make_queue(max_work=1000), make_forecast()
    admit(queue, make_pending(40, caller="other"), make_pending(2, caller="other", priority=BULK))
    cost = forecast.request_cost([make_segment(7)])

    ahead = queue.work_ahead(cost, RequestContext(caller="me", priority=BULK), num_running=0)

    assert ahead == WorkAhead(num_waiting=2, work=40 + 2, num_running=0)


def make_own(caller: str, work: int = 10) -> QueuedSegment:
    return make_pending(work, caller=caller)


def add(queue: FairQueue, caller: str, *works: int) -> list[QueuedSegment]:
    added = [make_own(caller, work) for work in works]
    for pending in added:
        queue.add(pending)
    return added


def serve_all(queue: FairQueue) -> str:
    """Serve what waits, one after the other; return the callers."""
    served = ""
    while queue:
        (pending,) = queue.peek(1)
        queue.serve(pending)
        served += pending.context.caller
    return served


def test_callers_are_served_alternately() -> None:
    queue = FairQueue()
    add(queue, "a", 10, 10, 10, 10)
    add(queue, "b", 10, 10)

    assert [pending.context.caller for pending in queue.peek(6)] == list("ababaa")
    assert serve_all(queue) == "ababaa"


def test_fairness_is_weighed_by_work() -> None:
    queue = FairQueue()
    add(queue, "a", 30, 30, 30)
    add(queue, "b", 10, 10, 10, 10, 10, 10)

    assert serve_all(queue) == "abbbabbba"


def test_a_caller_s_segments_keep_their_order() -> None:
    queue = FairQueue()
    first = add(queue, "a", 5, 1, 3)

    assert queue.peek(9) == first
    assert list(queue) == first
    assert queue.oldest is first[0]


def test_one_small_request_does_not_wait_for_a_thousand_segments() -> None:
    queue = FairQueue()
    add(queue, "much", *[10] * 1000)
    for _ in range(5):
        queue.serve(queue.peek(1)[0])

    (small,) = add(queue, "little", 10)

    assert small in queue.peek(2)


def test_a_caller_served_while_others_waited_does_not_come_back_level_with_them() -> None:
    queue = FairQueue()
    add(queue, "a", *[10] * 6)
    add(queue, "b", 30)
    queue.serve(queue.peek(1)[0])
    queue.serve(queue.peek(1)[0])

    add(queue, "b", 10)

    assert serve_all(queue) == "aabaaa"


def test_a_pause_earns_nothing() -> None:
    queue = FairQueue()
    add(queue, "a", *[10] * 8)
    for _ in range(4):
        queue.serve(queue.peek(1)[0])

    add(queue, "b", *[10] * 4)

    assert serve_all(queue) == "abababab"


def test_a_request_that_was_cancelled_costs_its_caller_nothing() -> None:
    queue = FairQueue()
    add(queue, "a", *[10] * 3)
    for pending in add(queue, "b", *[1000] * 5):
        assert queue.drop(pending)

    add(queue, "b", 10)

    assert serve_all(queue) == "abaa"


def test_what_does_not_wait_cannot_be_dropped() -> None:
    queue = FairQueue()
    (pending,) = add(queue, "a", 10)
    queue.serve(pending)

    assert not queue.drop(pending)
    assert (len(queue), queue.work, queue.num_callers, queue.held_by("a")) == (0, 0, 0, (0, 0))


def test_a_fair_queue_knows_what_each_caller_holds() -> None:
    queue = FairQueue()
    add(queue, "a", 10, 20)
    add(queue, "b", 5)

    assert (queue.held_by("a"), queue.held_by("b"), queue.held_by("c")) == ((2, 30), (1, 5), (0, 0))
    assert (len(queue), queue.work, queue.num_callers) == (3, 35, 2)


def test_before_a_request_others_are_served_no_more_than_its_caller() -> None:
    queue = FairQueue()
    add(queue, "much", *[10] * 1000)
    add(queue, "little", 5)
    add(queue, "me", 20)

    assert queue.work_before("me", 30) == 20 + 50 + 5
    assert queue.work_before("new", 30) == 30 + 5 + 20
    assert FairQueue().work_before("me", 30) == 0


def test_callers_that_were_caught_up_with_are_forgotten() -> None:
    queue = FairQueue()
    add(queue, "much", *[1] * 5000)
    for number in range(2000):
        add(queue, f"host {number}", 1)
        for pending in queue.peek(2):
            queue.serve(pending)

    assert len(queue._left_at) < 200
