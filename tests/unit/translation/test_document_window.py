import asyncio
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from dragoman_service.datatypes import Segment, SegmentResult, Span
from dragoman_service.errors import DeadlineExceededError, EngineError, OverloadedError
from dragoman_service.text.documents import PlannedSentence
from dragoman_service.text.plans import ModelText, TextPart, TextPlan
from dragoman_service.translation.document_window import DocumentWindow, PendingSentence
from tests.fakes import ManualClock, make_segment
from tests.unit.text.text_fakes import make_hypothesis, make_result


class Bench:
    """A window over sentences with these numbers of segments, and a queue of limited size answered by the test."""

    def __init__(self, *sizes: int, room: int = 1000, max_segments: int = 4, **options: Any) -> None:
        self.room = room
        self.offered: list[int] = []  # sizes of the batches
        self.futures: list[Future[SegmentResult]] = []
        self.num_read = 0
        self.clock = ManualClock()
        self.slept: list[float] = []
        self.second: asyncio.Event | None = None  # set when the second searches of all sentences have ended
        self.num_second = 0  # sentences with a second search
        self.sentences = [self._sentence(size) for size in sizes]
        self.window = DocumentWindow(
            self._read(),
            self._submit,
            self._finish,
            max_segments=max_segments,
            clock=self.clock,
            sleep=self._sleep,
            **{"deadline_s": math.inf, **options},
        )

    def _sentence(self, size: int) -> PlannedSentence:
        part = TextPart(
            span=Span(start=0, end=1), segment=make_segment(5), sentence_index=0, model_text=ModelText(text="a")
        )
        return PlannedSentence(before="", plan=TextPlan(text="a", parts=(part,) * size) if size else None)

    def _read(self) -> Iterator[PlannedSentence]:
        for sentence in self.sentences:
            self.num_read += 1
            yield sentence

    async def _submit(self, segments: Sequence[Segment]) -> "list[Future[SegmentResult]]":
        self.offered.append(len(segments))
        if len(segments) > self.room - len(self.unanswered):
            raise OverloadedError(queued=0, limit=self.room, unit="segments", retry_after_s=3.0)
        futures: list[Future[SegmentResult]] = [Future() for _ in segments]
        self.futures += futures
        return futures

    async def _finish(self, pending: "PendingSentence[list[SegmentResult]]") -> list[SegmentResult]:
        if pending.results:
            await asyncio.wait(pending.results)
        if self.second is not None:
            self.num_second += 1
            await self.second.wait()
        return [result.result() for result in pending.results]

    async def _sleep(self, delay: float) -> None:
        self.slept.append(delay)
        self.clock.advance(delay)
        self.room = 1000 if len(self.slept) == 2 else 0

    @property
    def unanswered(self) -> "list[Future[SegmentResult]]":
        return [future for future in self.futures if not future.done()]

    def answer(self, *futures: "Future[SegmentResult]") -> None:
        for future in futures or self.unanswered:
            future.set_result(make_result(make_hypothesis("a")))

    async def begun(self) -> "asyncio.Task[tuple[PendingSentence[list[SegmentResult]], list[SegmentResult]] | None]":
        """Start `next_finished` and run it until a segment is queued."""
        task = asyncio.create_task(self.window.next_finished())
        while not self.unanswered:
            await asyncio.sleep(0)
        return task


async def test_only_the_window_is_planned_and_queued() -> None:
    bench = Bench(*[1] * 1000)

    task = await bench.begun()

    assert (len(bench.futures), bench.num_read) == (4, 4)
    task.cancel()


async def test_each_returned_sentence_makes_room_for_another() -> None:
    bench = Bench(*[1] * 1000)
    task = await bench.begun()

    bench.answer()
    await task
    assert len(bench.futures) == 4  # nothing is queued while no sentence is asked for
    await bench.window.next_finished()

    assert len(bench.futures) == 4 + 1


async def test_sentences_are_returned_in_order() -> None:
    bench = Bench(1, 1, 1)
    task = await bench.begun()

    bench.answer(*bench.futures[1:])
    await asyncio.sleep(0)
    assert not task.done()
    bench.answer()

    returned = [await task, *[await bench.window.next_finished() for _ in range(3)]]
    assert [each and each[0].planned for each in returned] == [*bench.sentences, None]


async def test_finished_segments_after_an_unfinished_sentence_count() -> None:
    bench = Bench(*[1] * 100)
    task = await bench.begun()

    bench.answer(*bench.futures[1:])
    for _ in range(10):
        await asyncio.sleep(0)

    assert len(bench.futures) == 4
    task.cancel()


async def test_sentence_larger_than_the_window_is_queued_in_parts() -> None:
    bench = Bench(10, 1)
    task = await bench.begun()

    most = 0
    while not task.done():
        most = max(most, len(bench.unanswered))
        bench.answer(*bench.unanswered[:1])
        await asyncio.sleep(0.001)

    finished = task.result()
    assert finished
    assert len(finished[1]) == 10
    assert most <= 4


async def test_sentences_without_segments_are_not_queued() -> None:
    bench = Bench(0, 0, room=0)

    assert await bench.window.next_finished()
    assert await bench.window.next_finished()
    assert await bench.window.next_finished() is None


async def test_smaller_batches_are_offered_to_a_full_queue() -> None:
    bench = Bench(*[1] * 8, room=1)

    task = await bench.begun()

    assert bench.offered == [4, 2, 1]
    task.cancel()


async def test_rejected_first_segment_rejects_the_document() -> None:
    with pytest.raises(OverloadedError):
        await Bench(1, room=0).window.next_finished()


async def test_window_waits_for_its_own_segments_while_the_queue_is_full() -> None:
    bench = Bench(1, 1, 1, room=1)

    for _ in range(3):
        task = await bench.begun()
        bench.answer()
        assert await task

    assert await bench.window.next_finished() is None
    assert bench.slept == []


async def full_bench(**options: Any) -> Bench:
    """Return a bench with a full queue, whose first sentence has been returned."""
    bench = Bench(1, 1, max_segments=1, **options)
    task = await bench.begun()
    bench.answer()
    await task
    bench.room = 0
    return bench


async def test_window_waits_for_the_retry_delay_without_own_segments() -> None:
    bench = await full_bench(deadline_s=100.0)

    task = await bench.begun()

    assert bench.slept == [3.0, 3.0]
    task.cancel()


async def test_waiting_for_the_queue_ends_at_the_deadline() -> None:
    bench = await full_bench(deadline_s=5.0)

    with pytest.raises(DeadlineExceededError, match="queue"):
        await bench.window.next_finished()

    assert bench.slept == [3.0, 2.0]


async def test_error_is_returned_in_order() -> None:
    bench = Bench(1, 1)
    task = await bench.begun()
    bench.futures[1].set_exception(EngineError("decoding failed"))
    bench.answer(bench.futures[0])

    first = await task

    assert first
    assert first[1]
    with pytest.raises(EngineError):
        await bench.window.next_finished()


async def test_second_searches_of_sentences_run_concurrently() -> None:
    bench = Bench(1, 1, 1)
    bench.second = asyncio.Event()
    task = await bench.begun()

    bench.answer()
    while bench.num_second < 3:
        await asyncio.sleep(0)
    assert not task.done()
    bench.second.set()

    assert await task


async def test_cancelling_the_window_cancels_its_segments() -> None:
    bench = Bench(*[1] * 8)
    task = await bench.begun()
    task.cancel()

    bench.window.cancel()

    assert all(future.cancelled() for future in bench.futures)


async def test_cost_of_the_window_is_limited() -> None:
    bench = Bench(*[1] * 8, max_cost=5)

    task = await bench.begun()

    assert len(bench.futures) == 2  # of two source tokens each
    task.cancel()
