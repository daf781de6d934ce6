"""The part of a document that is in work: a few sentences at a time are planned, queued, and handed out in order."""

import asyncio
import concurrent.futures
import itertools
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from dragoman_service.datatypes import Segment, SegmentResult
from dragoman_service.errors import DeadlineExceededError, EngineError, RetryableError
from dragoman_service.models.model import Futures
from dragoman_service.text.documents import DocumentPiece


def awaitable(futures: Futures) -> "list[asyncio.Future[SegmentResult]]":
    """Return what the running event loop can await; no error of these is reported as never looked at."""
    answers = [asyncio.wrap_future(future) for future in futures]
    for answer in answers:
        answer.add_done_callback(_error_of)
    return answers


async def ended(futures: Futures) -> None:
    """Return once all futures are done, or one has failed; wakes the event loop once, however many there are."""
    if not futures:
        return
    loop = asyncio.get_running_loop()
    all_ended, num_futures, num_done = loop.create_future(), len(futures), itertools.count(1)

    def tell() -> None:
        if not all_ended.done():
            all_ended.set_result(None)

    def note(future: "concurrent.futures.Future[SegmentResult]") -> None:
        if next(num_done) == num_futures or (not future.cancelled() and future.exception()):
            loop.call_soon_threadsafe(tell)

    for future in futures:
        future.add_done_callback(note)
    await all_ended


def results_of(answers: "Futures | Sequence[asyncio.Future[SegmentResult]]") -> list[SegmentResult]:
    """Return the results, or raise the first error; all are there unless one has failed."""
    for error in map(_error_of, answers):
        if error is not None:
            raise error
    if any(answer.cancelled() for answer in answers):  # not by this task's caller, or it would not be here
        raise EngineError("a segment was cancelled unanswered")
    return [answer.result() for answer in answers]


def _error_of(
    answer: "asyncio.Future[SegmentResult] | concurrent.futures.Future[SegmentResult]",
) -> BaseException | None:
    return answer.exception() if answer.done() and not answer.cancelled() else None


@dataclass(slots=True, kw_only=True, eq=False)
class PieceInWork:
    """A piece of a document and the answers to its segments."""

    piece: DocumentPiece
    segments: Sequence[Segment]
    text_s: float
    """What planning it took."""
    submitted_s: float = 0.0
    """When its last segment was queued."""
    futures: "list[concurrent.futures.Future[SegmentResult]]" = field(default_factory=list)
    """Of the segments that are queued."""
    answers: "list[asyncio.Future[SegmentResult]]" = field(default_factory=list)
    """The same, to be awaited."""

    @property
    def is_finished(self) -> bool:
        """Whether every segment is answered."""
        return len(self.answers) == len(self.segments) and not self.unfinished

    @property
    def unfinished(self) -> "list[asyncio.Future[SegmentResult]]":
        """Those of its answers that are still to come."""
        return [answer for answer in self.answers if not answer.done()]


class DocumentWindow:
    """Works through the pieces of a document; nothing beyond the window is planned, queued or kept.

    What may not enter the queue as a whole is offered in smaller parts. If not even a segment may, those under way are
    waited for, or the time that the error asks for; only the very first segment is rejected for good.
    """

    def __init__(
        self,
        pieces: Iterator[DocumentPiece],
        submit: Callable[[Sequence[Segment]], Awaitable[Futures]],
        in_thread: Callable[[Callable[[], "list[PieceInWork]"]], Awaitable["list[PieceInWork]"]] = asyncio.to_thread,
        *,
        max_segments: int,
        max_cost: float = math.inf,
        deadline_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Plan nothing yet.

        Args:
            pieces: of the document, read as they are needed.
            submit: queues all segments or none; RetryableError if the queue or the caller's limit has no room.
            in_thread: calls what reads the pieces, in another thread.
            max_segments: how many are queued, decoded, or finished behind a sentence that is not; at least 1.
            max_cost: source tokens times hypotheses of the same; no sentence has more.
            deadline_s: on the clock, infinite if the document is never given up.
            clock: of the deadline.
            sleep: until the queue may have room.
        """
        self._pieces = pieces
        self._submit = submit
        self._in_thread = in_thread
        self._max_segments = max_segments
        self._max_cost = max_cost
        self._deadline_s = deadline_s
        self._clock = clock
        self._sleep = sleep
        self._in_work: deque[PieceInWork] = deque()
        self._to_queue: deque[tuple[PieceInWork, Segment]] = deque()
        self._is_all_planned = False
        self._has_begun = False
        self._batch_size = max_segments
        self._retry_at_s = -math.inf

    async def next_finished(self) -> PieceInWork | None:
        """Return the next piece, finished; None behind the last.

        Raises:
            InvalidFieldError: if the model cannot take a sentence.
            RetryableError: if not even the first segment can be queued.
            DeadlineExceededError: if the deadline passes while the queue has no room.
        """
        while True:
            await self._plan()
            await self._queue_all()
            if not self._in_work:
                return None
            first = self._in_work[0]
            if first.is_finished:
                return self._in_work.popleft()
            if first.unfinished:
                await asyncio.wait(first.unfinished, return_when=asyncio.FIRST_COMPLETED)

    def cancel(self) -> None:
        """Drop all that is not answered."""
        for in_work in self._in_work:
            for future in in_work.futures:
                future.cancel()

    async def _plan(self) -> None:
        """Plan as much as there is room to queue."""
        room = min(self._room(), self._max_segments - len(self._in_work)) - len(self._to_queue)
        if room <= 0 or self._is_all_planned:
            return
        planned = await self._in_thread(partial(self._planned, room))
        self._in_work += planned
        self._to_queue += [(in_work, segment) for in_work in planned for segment in in_work.segments]

    def _planned(self, room: int) -> list[PieceInWork]:
        planned: list[PieceInWork] = []
        num_segments = 0
        while len(planned) < room and num_segments < room:
            began_s = self._clock()
            if (piece := next(self._pieces, None)) is None:
                self._is_all_planned = True
                break
            planned.append(PieceInWork(piece=piece, segments=piece.segments, text_s=self._clock() - began_s))
            num_segments += len(planned[-1].segments)
        return planned

    async def _queue_all(self) -> None:
        """Queue what is planned, as far as window and queue have room."""
        was_refused = False
        while (batch := self._batch()) and not (self._clock() < self._retry_at_s and self._num_unfinished()):
            try:
                futures = await self._submit([segment for _, segment in batch])
            except RetryableError as error:
                was_refused = True
                self._batch_size = max(1, len(batch) // 2)
                self._retry_at_s = self._clock() + error.retry_after_s
                if len(batch) == 1:
                    await self._wait_for_room(error)
            else:
                self._has_begun = True
                self._queued(batch, futures)
                if was_refused:
                    return
                self._batch_size = min(2 * self._batch_size, self._max_segments)
                self._retry_at_s = -math.inf

    async def _wait_for_room(self, error: RetryableError) -> None:
        if not self._has_begun:
            raise error
        if self._num_unfinished():
            return  # those under way go first
        await self._sleep(max(0.0, min(error.retry_after_s, self._deadline_s - self._clock())))
        if self._clock() >= self._deadline_s:
            raise DeadlineExceededError("queue")

    def _queued(self, batch: Sequence[tuple[PieceInWork, Segment]], futures: Futures) -> None:
        now_s = self._clock()
        for (in_work, _), future, answer in zip(batch, futures, awaitable(futures), strict=True):
            in_work.futures.append(future)
            in_work.answers.append(answer)
            in_work.submitted_s = now_s
            self._to_queue.popleft()

    def _batch(self) -> list[tuple[PieceInWork, Segment]]:
        """Return what is to be queued next, as much as there is room for."""
        batch: list[tuple[PieceInWork, Segment]] = []
        cost = sum(segment_cost(segment) for one in self._in_work for segment in one.segments[: len(one.answers)])
        room = min(self._room(), self._batch_size)
        for in_work, segment in self._to_queue:
            cost += segment_cost(segment)
            if len(batch) >= room or cost > self._max_cost:
                break
            batch.append((in_work, segment))
        return batch

    def _room(self) -> int:
        """Return how many segments may be queued; what is finished of the first sentence is out of the way."""
        return self._max_segments - sum(
            len(in_work.answers) if index else len(in_work.unfinished) for index, in_work in enumerate(self._in_work)
        )

    def _num_unfinished(self) -> int:
        return sum(len(in_work.unfinished) for in_work in self._in_work)


def segment_cost(segment: Segment) -> int:
    """Return the source tokens of a segment times its hypotheses."""
    return len(segment.source_ids) * segment.search.num_hypotheses
