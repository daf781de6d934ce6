from concurrent.futures import CancelledError

import pytest

from service.datatypes import Priority, SegmentResult, StageTimings
from service.errors import EngineError, OverloadedError
from service.scheduling.admission import AdmissionQueue, PendingSegment, ServiceRate
from tests.fakes import make_segment

RESULT = SegmentResult(hypotheses=(), num_steps=1, timings=StageTimings())


def make_queue(max_segments: int = 10, max_tokens: int = 100) -> AdmissionQueue:
    return AdmissionQueue(max_segments=max_segments, max_tokens=max_tokens, bulk_patience_s=5.0)


def make_pending(
    num_tokens: int = 2,
    *,
    priority: Priority = Priority.INTERACTIVE,
    admitted_at_s: float = 0.0,
    deadline_s: float = 100.0,
) -> PendingSegment:
    segment = make_segment(*[7] * (num_tokens - 1))
    return PendingSegment(segment=segment, priority=priority, admitted_at_s=admitted_at_s, deadline_s=deadline_s)


def admit(queue: AdmissionQueue, *group: PendingSegment) -> None:
    queue.admit(group, rate=ServiceRate(num_threads=1))


def test_a_group_that_does_not_fit_is_refused_whole() -> None:
    queue = make_queue(max_segments=3)
    admit(queue, make_pending(), make_pending())

    with pytest.raises(OverloadedError) as refusal:
        admit(queue, make_pending(), make_pending())

    assert queue.num_segments == 2
    assert (refusal.value.queued, refusal.value.limit, refusal.value.unit) == (2, 3, "segments")


def test_source_tokens_are_limited_too() -> None:
    queue = make_queue(max_tokens=10)
    admit(queue, make_pending(num_tokens=8))

    with pytest.raises(OverloadedError, match="8 of 10 tokens"):
        admit(queue, make_pending(num_tokens=3))


def test_a_segment_that_leaves_frees_its_place() -> None:
    queue, pending = make_queue(max_segments=1), make_pending()
    admit(queue, pending)

    queue.remove(pending)
    queue.remove(pending)

    assert (queue.num_segments, queue.num_tokens) == (0, 0)
    admit(queue, make_pending())


def test_interactive_segments_come_before_bulk_ones_each_in_order() -> None:
    queue = make_queue()
    bulk = [make_pending(priority=Priority.BULK) for _ in range(2)]
    interactive = [make_pending() for _ in range(2)]

    admit(queue, *bulk, *interactive)

    assert queue.peek(0.0, limit=10) == [*interactive, *bulk]
    assert queue.peek(0.0, limit=3) == [*interactive, bulk[0]]


def test_a_bulk_segment_that_lost_patience_is_next() -> None:
    queue = make_queue()
    bulk, interactive = make_pending(priority=Priority.BULK), [make_pending() for _ in range(3)]
    admit(queue, bulk, *interactive)

    waiting = queue.peek(5.1, limit=3)

    assert waiting == [bulk, *interactive[:2]]


def test_segments_past_their_deadline_are_removed() -> None:
    queue = make_queue()
    early, late = make_pending(deadline_s=1.0), make_pending(deadline_s=2.0)
    admit(queue, late, early)

    assert queue.pop_expired(0.9) == []
    assert queue.pop_expired(1.0) == [early]
    assert queue.pop_expired(5.0) == [late]
    assert queue.num_tokens == 0


def test_a_segment_is_answered_once() -> None:
    pending = make_pending()

    assert pending.answer(RESULT)
    assert not pending.answer(RESULT)
    assert not pending.fail(EngineError("too late"))
    assert pending.future.result() is RESULT


def test_a_cancelled_segment_takes_no_answer() -> None:
    pending = make_pending()

    assert pending.future.cancel()

    assert not pending.answer(RESULT)
    with pytest.raises(CancelledError):
        pending.future.result()


def test_the_time_to_come_back_is_the_backlog_over_the_rate_of_all_threads() -> None:
    rate = ServiceRate(num_threads=2)
    rate.record(num_tokens=100, busy_s=1.0)

    assert rate.retry_after_s(backlog_tokens=1000) == pytest.approx(5.0)


def test_recent_work_counts_more_for_the_rate_than_old_work() -> None:
    rate = ServiceRate(num_threads=1)
    rate.record(num_tokens=100_000, busy_s=1.0)

    for _ in range(100):
        rate.record(num_tokens=10, busy_s=1.0)

    assert rate.retry_after_s(backlog_tokens=100) == pytest.approx(10.0, rel=0.05)


@pytest.mark.parametrize(("backlog_tokens", "expected"), [(0, 0.1), (10**9, 60.0)])
def test_the_time_to_come_back_has_sensible_limits(backlog_tokens: int, expected: float) -> None:
    rate = ServiceRate(num_threads=1)
    rate.record(num_tokens=100, busy_s=1.0)

    assert rate.retry_after_s(backlog_tokens=backlog_tokens) == expected


def test_a_server_that_has_answered_nothing_names_a_second() -> None:
    assert ServiceRate(num_threads=1).retry_after_s(backlog_tokens=500) == 1.0
