import threading
from concurrent.futures import Future
from functools import partial

from service.datatypes import Hypothesis, Priority, SegmentResult, StageTimings
from service.scheduling.answers import Answers
from service.scheduling.pending import PendingSegment
from tests.fakes import make_segment

RESULT = SegmentResult(
    hypotheses=(Hypothesis(token_ids=(2,), token_log_probs=(0.0,), log_prob=0.0, score=0.0, is_finished=True),),
    num_steps=1,
    timings=StageTimings(queue_s=0.0, encode_s=0.0, decode_s=0.0),
)


def make_pending() -> PendingSegment:
    return PendingSegment(
        segment=make_segment(7), priority=Priority.INTERACTIVE, admitted_at_s=0.0, deadline_s=float("inf")
    )


def _note(ended: list[PendingSegment], pending: PendingSegment, _: object) -> None:
    ended.append(pending)


def test_results_arrive_in_the_order_in_which_they_were_given() -> None:
    answers, group = Answers(), [make_pending() for _ in range(5)]
    ended: list[PendingSegment] = []
    for pending in group:
        pending.future.add_done_callback(partial(_note, ended, pending))

    for pending in group:
        answers.give(pending, RESULT)
    answers.stop(10.0)

    assert ended == group
    assert all(pending.future.result(timeout=0) is RESULT for pending in group)


def test_a_slow_callback_keeps_nobody_who_gives_waiting() -> None:
    answers, slow, is_released = Answers(), make_pending(), threading.Event()
    slow.future.add_done_callback(lambda _: is_released.wait(10.0))
    answers.give(slow, RESULT)

    other = make_pending()
    answers.give(other, RESULT)  # returns although the thread is still with the first one

    assert not other.future.done()
    is_released.set()
    assert other.future.result(timeout=10.0) is RESULT
    answers.stop(10.0)


def test_a_segment_cancelled_before_stays_so_and_the_next_one_is_answered() -> None:
    answers, cancelled, other = Answers(), make_pending(), make_pending()
    cancelled.future.cancel()

    answers.give(cancelled, RESULT)
    answers.give(other, RESULT)
    answers.stop(10.0)

    assert cancelled.future.cancelled()
    assert other.future.result(timeout=0) is RESULT


def test_stopping_ends_the_thread_and_it_begins_anew_if_more_is_given() -> None:
    before = threading.active_count()
    answers, pending = Answers(), make_pending()
    answers.stop(10.0)
    answers.give(pending, RESULT)
    answers.stop(10.0)
    assert threading.active_count() == before

    late: Future[SegmentResult] = (late_pending := make_pending()).future
    answers.give(late_pending, RESULT)

    assert late.result(timeout=10.0) is RESULT
    answers.stop(10.0)
