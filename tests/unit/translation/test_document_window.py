import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any

import pytest

from dragoman_service.datatypes import Segment, SegmentResult, Span
from dragoman_service.errors import DeadlineExceededError, EngineError, OverloadedError
from dragoman_service.text.documents import PlannedSentence
from dragoman_service.text.planning import TextPart, TextPlan
from dragoman_service.translation.document_window import DocumentWindow, PendingSentence
from dragoman_service.translation.text_work import results_of
from tests.fakes import ManualClock, make_segment
from tests.unit.text.text_fakes import make_hypothesis, make_result


class ManualQueue:
    """Queue of limited size, answered by the test."""

    def __init__(self, *, room: int = 1000) -> None:
        self.room = room
        self.sizes: list[int] = []
        self.futures: list[Future[SegmentResult]] = []

    @property
    def unanswered(self) -> "list[Future[SegmentResult]]":
        return [future for future in self.futures if not future.done()]

    async def submit(self, segments: Sequence[Segment]) -> "list[Future[SegmentResult]]":
        self.sizes.append(len(segments))
        if len(segments) > self.room - len(self.unanswered):
            raise OverloadedError(queued=0, limit=self.room, unit="segments", retry_after_s=3.0)
        futures: list[Future[SegmentResult]] = [Future() for _ in segments]
        self.futures += futures
        return futures

    def answer(self, *futures: "Future[SegmentResult]") -> None:
        for future in futures or self.unanswered:
            future.set_result(make_result(make_hypothesis("a")))


def sentences(*sizes: int) -> Iterator[PlannedSentence]:
    """Yield sentences with these numbers of segments."""
    for size in sizes:
        part = TextPart(span=Span(start=0, end=1), segment=make_segment(5), sentence_index=0)
        yield PlannedSentence(before="", plan=TextPlan(text="a", parts=(part,) * size) if size else None)


def window(
    queue: ManualQueue, given: Iterator[PlannedSentence], *, max_segments: int = 4, **options: Any
) -> DocumentWindow:
    defaults = {"deadline_s": math.inf, "clock": ManualClock()}
    return DocumentWindow(given, queue.submit, max_segments=max_segments, **{**defaults, **options})


async def begun(one: DocumentWindow, until: Callable[[], bool]) -> "asyncio.Task[PendingSentence | None]":
    """Start `next_finished` and run it until a condition holds."""
    task = asyncio.create_task(one.next_finished())
    while not until():
        await asyncio.sleep(0)
    return task


async def test_only_the_window_is_planned_and_queued() -> None:
    queue, read = ManualQueue(), count()
    endless = (piece for piece in sentences(*[1] * 1000) if next(read) >= 0)

    task = await begun(window(queue, endless), lambda: bool(queue.futures))

    assert (len(queue.futures), next(read)) == (4, 4)
    task.cancel()


async def test_each_returned_sentence_makes_room_for_another() -> None:
    queue = ManualQueue()
    one = window(queue, sentences(*[1] * 1000))
    task = await begun(one, lambda: bool(queue.futures))

    queue.answer()
    await task
    assert len(queue.futures) == 4  # nothing is queued while no sentence is asked for
    await one.next_finished()

    assert len(queue.futures) == 4 + 1


async def test_sentences_are_returned_in_order() -> None:
    queue = ManualQueue()
    given = list(sentences(1, 1, 1))
    one = window(queue, iter(given))
    task = await begun(one, lambda: len(queue.futures) == 3)

    queue.answer(*queue.futures[1:])
    await asyncio.sleep(0)
    assert not task.done()
    queue.answer()

    returned = [await task, await one.next_finished(), await one.next_finished(), await one.next_finished()]
    assert [pending and pending.planned for pending in returned] == [*given, None]


async def test_finished_segments_after_an_unfinished_sentence_count() -> None:
    queue = ManualQueue()
    task = await begun(window(queue, sentences(*[1] * 100)), lambda: len(queue.futures) == 4)

    queue.answer(*queue.futures[1:])
    for _ in range(10):
        await asyncio.sleep(0)

    assert len(queue.futures) == 4
    task.cancel()


async def test_sentence_larger_than_the_window_is_queued_in_parts() -> None:
    queue = ManualQueue()
    one = window(queue, sentences(10, 1))
    task = await begun(one, lambda: bool(queue.futures))

    most = 0
    while not task.done():
        most = max(most, len(queue.unanswered))
        queue.answer(*queue.unanswered[:1])
        await asyncio.sleep(0.001)

    found = task.result()
    assert found
    assert len(results_of(found.results)) == 10
    assert most <= 4


async def test_sentences_without_segments_are_not_queued() -> None:
    one = window(ManualQueue(room=0), sentences(0, 0))

    assert await one.next_finished()
    assert await one.next_finished()
    assert await one.next_finished() is None


async def test_smaller_batches_are_offered_to_a_full_queue() -> None:
    queue = ManualQueue(room=1)

    task = await begun(window(queue, sentences(*[1] * 8)), lambda: bool(queue.futures))

    assert queue.sizes == [4, 2, 1]
    task.cancel()


async def test_rejected_first_segment_rejects_the_document() -> None:
    with pytest.raises(OverloadedError):
        await window(ManualQueue(room=0), sentences(1)).next_finished()


async def test_window_waits_for_its_own_segments_while_the_queue_is_full() -> None:
    queue = ManualQueue(room=1)
    one = window(queue, sentences(1, 1, 1))

    for _ in range(3):
        task = await begun(one, lambda: bool(queue.unanswered))
        queue.answer()
        assert await task

    assert await one.next_finished() is None


async def test_window_waits_for_the_retry_delay_without_own_segments() -> None:
    queue, clock, slept = ManualQueue(), ManualClock(), []

    async def sleep(delay: float) -> None:
        slept.append(delay)
        clock.advance(delay)
        queue.room = 1000 if len(slept) == 2 else 0

    one = window(queue, sentences(1, 1), max_segments=1, clock=clock, sleep=sleep, deadline_s=100.0)
    task = await begun(one, lambda: bool(queue.futures))
    queue.answer()
    await task
    queue.room = 0
    task = await begun(one, lambda: len(queue.futures) == 2)

    assert slept == [3.0, 3.0]
    task.cancel()


async def test_waiting_for_the_queue_ends_at_the_deadline() -> None:
    queue, clock = ManualQueue(), ManualClock()

    async def sleep(delay: float) -> None:
        clock.advance(delay)

    one = window(queue, sentences(1, 1), max_segments=1, clock=clock, sleep=sleep, deadline_s=5.0)
    task = await begun(one, lambda: bool(queue.futures))
    queue.answer()
    await task
    queue.room = 0

    with pytest.raises(DeadlineExceededError, match="queue"):
        await one.next_finished()
    assert clock.now_s == 5.0


async def test_error_is_returned_in_order() -> None:
    queue = ManualQueue()
    one = window(queue, sentences(1, 1))
    task = await begun(one, lambda: bool(queue.futures))
    queue.futures[1].set_exception(EngineError("decoding failed"))
    queue.answer(queue.futures[0])

    first, second = await task, await one.next_finished()

    assert first
    assert results_of(first.results)
    assert second
    with pytest.raises(EngineError):
        results_of(second.results)


async def test_cancelling_the_window_cancels_its_segments() -> None:
    queue = ManualQueue()
    one = window(queue, sentences(*[1] * 8))
    task = await begun(one, lambda: bool(queue.futures))
    task.cancel()

    one.cancel()

    assert all(future.cancelled() for future in queue.futures)


async def test_cost_of_the_window_is_limited() -> None:
    queue = ManualQueue()

    task = await begun(window(queue, sentences(*[1] * 8), max_cost=5), lambda: bool(queue.futures))

    assert len(queue.futures) == 2  # of two source tokens each
    task.cancel()


def test_cancelled_segment_is_an_engine_error() -> None:
    pending = PendingSentence(planned=next(sentences(1)), segments=[make_segment(5)], text_s=0.0)
    loop = asyncio.new_event_loop()
    answer: asyncio.Future[SegmentResult] = loop.create_future()
    answer.cancel()
    pending.results.append(answer)
    loop.close()

    with pytest.raises(EngineError):
        results_of(pending.results)
