import pytest

from service.datatypes import Priority
from service.engine.forecast import Backlog, Forecast
from service.engine.protocol import Turn
from service.engine.queue import AdmissionQueue, PendingSegment
from service.errors import OverloadedError
from tests.fakes import make_segment

BULK = Priority.BULK


def make_queue(max_segments: int = 10, max_work: int = 100, max_caller_share: float = 1.0) -> AdmissionQueue:
    return AdmissionQueue(
        max_segments=max_segments, max_work=max_work, bulk_patience_s=5.0, max_caller_share=max_caller_share
    )


def make_pending(
    work: int = 2,
    *,
    caller: str = "",
    priority: Priority = Priority.INTERACTIVE,
    admitted_at_s: float = 0.0,
    deadline_s: float = 100.0,
) -> PendingSegment:
    return PendingSegment(
        segment=make_segment(7),
        priority=priority,
        caller=caller,
        work=work,
        admitted_at_s=admitted_at_s,
        deadline_s=deadline_s,
    )


def make_forecast(*, num_threads: int = 1, s_per_work: float | None = None) -> Forecast:
    forecast = Forecast(num_threads=num_threads, max_batch_segments=4, max_batch_rows=16)
    if s_per_work is not None:
        for _ in range(100):
            turn = Turn(num_rows=16, step_s=16 * s_per_work, busy_s=16 * s_per_work)
            forecast.learn(turn, is_backlogged=True, now_s=0.0)
    return forecast


def admit(queue: AdmissionQueue, *group: PendingSegment, forecast: Forecast | None = None) -> None:
    queue.admit(group, forecast=forecast or make_forecast())


def refused(queue: AdmissionQueue, *group: PendingSegment, forecast: Forecast | None = None) -> OverloadedError:
    with pytest.raises(OverloadedError) as refusal:
        admit(queue, *group, forecast=forecast)
    return refusal.value


def test_a_group_that_does_not_fit_is_refused_whole() -> None:
    queue = make_queue(max_segments=3)
    admit(queue, make_pending(), make_pending())

    error = refused(queue, make_pending(), make_pending())

    assert queue.num_segments == 2
    assert (error.queued, error.limit, error.unit) == (2, 3, "segments")


def test_expected_work_is_limited_too() -> None:
    queue = make_queue(max_work=10)
    admit(queue, make_pending(work=8))

    error = refused(queue, make_pending(work=3))

    assert (error.queued, error.limit, error.unit) == (8, 10, "work tokens")


def test_a_request_beyond_the_work_of_a_whole_queue_is_taken_when_nothing_waits() -> None:
    queue, huge = make_queue(max_work=10), make_pending(work=11)
    admit(queue, huge)

    assert queue.work == 11
    refused(queue, make_pending(work=1))
    queue.drop(huge)
    admit(queue, make_pending(work=1))
    refused(queue, huge)


def test_a_request_with_more_segments_than_the_queue_takes_is_never_taken() -> None:
    refused(make_queue(max_segments=2), *(make_pending() for _ in range(3)))


@pytest.mark.parametrize(
    ("work", "unit"), [(2, "segments of this caller"), (20, "work tokens of this caller")], ids=["segments", "work"]
)
def test_a_caller_with_something_waiting_gets_no_more_than_its_share(work: int, unit: str) -> None:
    queue = make_queue(max_segments=6, max_work=70, max_caller_share=0.5)
    held = 3 if work == 2 else 1
    admit(queue, *(make_pending(work, caller="much") for _ in range(held)))

    error = refused(queue, make_pending(work, caller="much", priority=BULK))

    assert error.unit == unit
    admit(queue, make_pending(work, caller="other"))


def test_a_caller_with_nothing_waiting_may_take_more_than_its_share_with_one_request() -> None:
    queue = make_queue(max_segments=6, max_caller_share=0.5)

    admit(queue, *(make_pending(caller="much") for _ in range(6)))

    assert queue.num_segments == 6


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

    error = refused(queue, make_pending(work=500), forecast=make_forecast(num_threads=2, s_per_work=0.01))

    assert error.retry_after_s == pytest.approx(400 * 0.01 / 2)


def test_without_room_for_more_segments_it_is_that_of_as_many_average_ones() -> None:
    queue = make_queue(max_segments=2)
    admit(queue, make_pending(work=10), make_pending(work=30))

    error = refused(queue, make_pending(), forecast=make_forecast(s_per_work=0.1))

    assert error.retry_after_s == pytest.approx(20 * 0.1)


def test_a_caller_beyond_its_share_waits_for_the_turns_of_the_others_too() -> None:
    queue = make_queue(max_segments=4, max_caller_share=0.5)
    admit(queue, make_pending(10, caller="much"), make_pending(10, caller="much"))
    admit(queue, make_pending(10, caller="other"))

    error = refused(queue, make_pending(caller="much"), forecast=make_forecast(s_per_work=0.1))

    assert error.retry_after_s == pytest.approx(2 * 10 * 0.1)


@pytest.mark.parametrize(("s_per_work", "expected_s"), [(1e-9, 0.1), (1e9, 60.0)])
def test_the_time_to_come_back_has_sensible_limits(s_per_work: float, expected_s: float) -> None:
    queue = make_queue(max_segments=1)
    admit(queue, make_pending())

    assert refused(queue, make_pending(), forecast=make_forecast(s_per_work=s_per_work)).retry_after_s == expected_s


def test_a_server_that_never_had_a_backlog_names_a_second() -> None:
    queue = make_queue(max_segments=1)
    admit(queue, make_pending())

    assert refused(queue, make_pending()).retry_after_s == 1.0


def test_before_a_request_others_are_served_as_much_as_its_caller() -> None:
    queue, forecast = make_queue(max_work=1000), make_forecast()
    admit(queue, make_pending(30, caller="other"), make_pending(10, caller="me"))
    demand = forecast.demand([make_segment(7, beam_size=1, max_target_tokens=2)])

    backlog = queue.backlog(demand, priority=Priority.INTERACTIVE, caller="me", num_running=3)

    assert demand.work == 4
    assert backlog == Backlog(num_waiting=1, work=10 + (10 + 4), num_running=3)


def test_before_a_bulk_request_all_interactive_ones_are_served() -> None:
    queue, forecast = make_queue(max_work=1000), make_forecast()
    admit(queue, make_pending(40, caller="other"), make_pending(2, caller="other", priority=BULK))
    demand = forecast.demand([make_segment(7)])

    backlog = queue.backlog(demand, priority=BULK, caller="me", num_running=0)

    assert backlog == Backlog(num_waiting=2, work=40 + 2, num_running=0)
