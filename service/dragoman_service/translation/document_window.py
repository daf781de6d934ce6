"""Window over a document: a few sentences at a time are planned, queued and returned in order."""

import asyncio
import concurrent.futures
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from dragoman_service.datatypes import Segment, SegmentResult
from dragoman_service.errors import DeadlineExceededError, RetryableError
from dragoman_service.scheduling.scheduler import Futures
from dragoman_service.text.documents import PlannedSentence
from dragoman_service.threads import retrieve_exception
from dragoman_service.translation.options import segment_cost

_Outcome = TypeVar("_Outcome")


def _awaitable(future: "concurrent.futures.Future[SegmentResult]") -> "asyncio.Future[SegmentResult]":
    wrapped = asyncio.wrap_future(future)
    wrapped.add_done_callback(retrieve_exception)  # marks the exception as retrieved
    return wrapped


@dataclass(slots=True, kw_only=True, eq=False)
class PendingSentence(Generic[_Outcome]):
    """A sentence of a document and the results of its segments."""

    planned: PlannedSentence
    segments: Sequence[Segment]
    text_s: float  # duration of planning
    submitted_s: float = 0.0  # time when the last segment was queued
    futures: "list[concurrent.futures.Future[SegmentResult]]" = field(default_factory=list)  # of queued segments
    results: "list[asyncio.Future[SegmentResult]]" = field(default_factory=list)  # the same, awaitable
    outcome: "asyncio.Task[_Outcome] | None" = None  # of the sentence; None until all segments are queued

    @property
    def unfinished(self) -> "list[asyncio.Future[SegmentResult]]":
        """Results that are still to come."""
        return [result for result in self.results if not result.done()]


class DocumentWindow(Generic[_Outcome]):
    """Translates the sentences of a document; at most the window is planned, queued and kept.

    If the queue rejects the sentences, smaller batches are offered. If it rejects a single segment, the window waits
    for its own segments, or for the retry delay. Only a rejection of the very first segment is raised.
    """

    def __init__(
        self,
        sentences: Iterator[PlannedSentence],
        submit: Callable[[Sequence[Segment]], Awaitable[Futures]],
        finish: Callable[["PendingSentence[_Outcome]"], Coroutine[Any, Any, _Outcome]],
        in_thread: Callable[
            [Callable[[], "list[PendingSentence[_Outcome]]"]], Awaitable["list[PendingSentence[_Outcome]]"]
        ] = asyncio.to_thread,
        *,
        max_segments: int,
        max_cost: float = math.inf,
        deadline_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start with nothing planned.

        Args:
            sentences: sentences of the document, read as they are needed.
            submit: queues all segments or none; raises RetryableError if the queue is full or a quota is exceeded.
            finish: returns the outcome of a sentence whose segments are queued; runs for several sentences at once.
            in_thread: runs planning in another thread.
            max_segments: limit of queued and running segments, and finished ones after an unfinished sentence; >= 1.
            max_cost: limit of their source tokens times hypotheses; no sentence exceeds it.
            deadline_s: deadline of the document as a time of the clock.
            clock: clock of the deadline.
            sleep: waits for a retry delay.
        """
        self._sentences = sentences
        self._submit = submit
        self._finish = finish
        self._in_thread = in_thread
        self._max_segments = max_segments
        self._max_cost = max_cost
        self._deadline_s = deadline_s
        self._clock = clock
        self._sleep = sleep
        self._pending: deque[PendingSentence[_Outcome]] = deque()
        self._unqueued: deque[tuple[PendingSentence[_Outcome], Segment]] = deque()
        self._is_all_planned = False
        self._has_begun = False
        self._batch_size = max_segments
        self._retry_at_s = -math.inf

    async def next_finished(self) -> tuple[PendingSentence[_Outcome], _Outcome] | None:
        """Return the next sentence and its outcome; None after the last.

        Raises:
            Exception: as `finish`.
            InvalidFieldError: if a sentence exceeds a limit of the model.
            RetryableError: if the first segment is rejected.
            DeadlineExceededError: if the deadline passes while the queue is full.
        """
        while True:
            await self._plan()
            await self._queue_all()
            if not self._pending:
                return None
            first = self._pending[0]
            if first.outcome is not None and first.outcome.done():
                outcome = first.outcome.result()
                return self._pending.popleft(), outcome
            waiting: list[asyncio.Future[Any]] = [*first.unfinished]
            if first.outcome is not None:
                waiting.append(first.outcome)
            if waiting:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    def cancel(self) -> None:
        """Cancel all unfinished sentences."""
        for pending in self._pending:
            if pending.outcome is not None:
                pending.outcome.cancel()
            for future in pending.futures:
                future.cancel()

    async def _plan(self) -> None:
        room = min(self._num_free(), self._max_segments - len(self._pending)) - len(self._unqueued)
        if room <= 0 or self._is_all_planned:
            return
        planned = await self._in_thread(partial(self._planned, room))
        self._pending += planned
        for pending in planned:
            self._finish_if_queued(pending)
        self._unqueued += [(pending, segment) for pending in planned for segment in pending.segments]

    def _planned(self, room: int) -> list[PendingSentence[_Outcome]]:
        sentences: list[PendingSentence[_Outcome]] = []
        num_segments = 0
        while len(sentences) < room and num_segments < room:
            began_s = self._clock()
            if (planned := next(self._sentences, None)) is None:
                self._is_all_planned = True
                break
            text_s = self._clock() - began_s
            sentences.append(PendingSentence(planned=planned, segments=planned.segments, text_s=text_s))
            num_segments += len(sentences[-1].segments)
        return sentences

    async def _queue_all(self) -> None:
        was_rejected = False
        while (batch := self._batch()) and not (self._clock() < self._retry_at_s and self._num_unfinished()):
            try:
                futures = await self._submit([segment for _, segment in batch])
            except RetryableError as error:
                was_rejected = True
                self._batch_size = max(1, len(batch) // 2)
                self._retry_at_s = self._clock() + error.retry_after_s
                if len(batch) == 1:
                    await self._wait_for_room(error)
            else:
                self._has_begun = True
                self._add_queued(batch, futures)
                if was_rejected:
                    return
                self._batch_size = min(2 * self._batch_size, self._max_segments)
                self._retry_at_s = -math.inf

    async def _wait_for_room(self, error: RetryableError) -> None:
        if not self._has_begun:
            raise error
        if self._num_unfinished():
            return  # the caller waits for them
        await self._sleep(max(0.0, min(error.retry_after_s, self._deadline_s - self._clock())))
        if self._clock() >= self._deadline_s:
            raise DeadlineExceededError("queue")

    def _add_queued(self, batch: Sequence[tuple[PendingSentence[_Outcome], Segment]], futures: Futures) -> None:
        now_s = self._clock()
        for (pending, _), future in zip(batch, futures, strict=True):
            pending.futures.append(future)
            pending.results.append(_awaitable(future))
            pending.submitted_s = now_s
            self._unqueued.popleft()
            self._finish_if_queued(pending)

    def _finish_if_queued(self, pending: PendingSentence[_Outcome]) -> None:
        if len(pending.results) == len(pending.segments):
            pending.outcome = asyncio.create_task(self._finish(pending))
            pending.outcome.add_done_callback(retrieve_exception)

    def _batch(self) -> list[tuple[PendingSentence[_Outcome], Segment]]:
        # The next segments to queue, within the limits of the window.
        batch: list[tuple[PendingSentence[_Outcome], Segment]] = []
        cost = sum(
            segment_cost(segment) for pending in self._pending for segment in pending.segments[: len(pending.results)]
        )
        room = min(self._num_free(), self._batch_size)
        for pending, segment in self._unqueued:
            cost += segment_cost(segment)
            if len(batch) >= room or cost > self._max_cost:
                break
            batch.append((pending, segment))
        return batch

    def _num_free(self) -> int:
        # Segments that may be queued. Finished segments of the first sentence do not count.
        return self._max_segments - sum(
            len(pending.results) if index else len(pending.unfinished) for index, pending in enumerate(self._pending)
        )

    def _num_unfinished(self) -> int:
        return sum(len(pending.unfinished) for pending in self._pending)
