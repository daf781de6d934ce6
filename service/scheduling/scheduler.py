"""The decoding threads: they wait, take segments from the queue, and run their workers.

All waiting and all popping happens here, under one lock that is never held while the model works or while a caller
is answered (an answer runs the caller's callbacks).
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from service.cores import num_cores
from service.datatypes import Priority, Segment, SegmentResult
from service.decoding.engine import check_segment
from service.decoding.step_model import StepModel
from service.errors import DeadlineExceededError, DrainingError, OverloadedError
from service.scheduling.admission import AdmissionQueue, PendingSegment, ServiceRate
from service.scheduling.batching import BatchBudget, fair_share, next_joiners
from service.scheduling.settings import SchedulingSettings
from service.scheduling.worker import Turn, Worker
from service.telemetry.metrics import Metrics

_LOOKAHEAD = 4  # batches' worth of waiting segments from which joiners of similar length are chosen


class Scheduler:
    """Decodes segments for many callers at once: each admitted segment gets exactly one answer.

    Every public method may be called from any thread but the decoding threads (so not from a callback of a future,
    except `submit` and cancelling).
    """

    def __init__(
        self,
        model: StepModel,
        settings: SchedulingSettings,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._queue = AdmissionQueue(
            max_segments=settings.max_queue_segments,
            max_tokens=settings.max_queue_tokens,
            bulk_patience_s=settings.bulk_patience_s,
        )
        num_threads = settings.num_decoding_threads or num_cores()
        self._rate = ServiceRate(num_threads=num_threads)
        self._unanswered: set[PendingSegment] = set()
        self._recorded_segments = self._recorded_tokens = 0
        self._is_draining = False
        self._is_stopping = False
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)  # something waits, or the threads shall end
        self._quiet = threading.Condition(self._lock)  # everything is answered
        self._workers = [Worker(model, metrics=metrics, clock=clock) for _ in range(num_threads)]
        self._threads = [
            threading.Thread(target=self._decode, args=(worker,), name=f"decode-{index}", daemon=True)
            for index, worker in enumerate(self._workers)
        ]

    def start(self) -> None:
        """Start the decoding threads; what was submitted before waits for this."""
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        segments: Sequence[Segment],
        *,
        deadline_s: float | None = None,
        priority: Priority = Priority.INTERACTIVE,
    ) -> "list[Future[SegmentResult]]":
        """Admit all segments of a request, or none; never waits.

        A future ends with the result or with `EngineError`, `DeadlineExceededError` or `DrainingError`. Cancelling it
        works until then and frees the segment's place in the queue at once, in the batch after the running step.

        Args:
            segments: what to decode, each acceptable to the model.
            deadline_s: on the scheduler's clock; None: never given up.
            priority: interactive segments are served before bulk ones.

        Returns:
            One future for each segment, in order.

        Raises:
            OverloadedError: if they do not all find a place in the queue.
            DrainingError: once `drain` or `stop` has been called.
            ValueError: if the model or the search cannot take a segment.
        """
        for segment in segments:
            check_segment(segment, self._model)
        now_s = self._clock()
        group = [
            PendingSegment(
                segment=segment,
                priority=priority,
                admitted_at_s=now_s,
                deadline_s=math.inf if deadline_s is None else deadline_s,
            )
            for segment in segments
        ]
        for pending in group:
            pending.future.add_done_callback(partial(self._forget, pending))
        self._admit(group)
        return [pending.future for pending in group]

    def drain(self, timeout_s: float) -> bool:
        """Refuse new segments and wait until all admitted ones are answered; return False if time ran out first."""
        with self._lock:
            self._is_draining = True
            return self._quiet.wait_for(lambda: not self._unanswered, timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Answer all that is left with `DrainingError` and end the threads; waits for steps that still run."""
        with self._lock:
            self._is_draining = self._is_stopping = True
            left = list(self._unanswered)
            self._work.notify_all()
        for pending in left:
            pending.fail(DrainingError())
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout_s)

    def _admit(self, group: Sequence[PendingSegment]) -> None:
        with self._lock:
            if self._is_draining:
                self._metrics.rejected_requests.labels("draining").inc()
                raise DrainingError
            try:
                self._queue.admit(group, rate=self._rate)
            except OverloadedError:
                self._metrics.rejected_requests.labels("overloaded").inc()
                raise
            self._unanswered.update(group)
            self._record_queue()
            self._work.notify(len(group))

    def _decode(self, worker: Worker) -> None:
        """Run a decoding thread until the scheduler stops."""
        while self._hand_over(worker):
            turn = worker.turn()
            self._record(turn)

    def _hand_over(self, worker: Worker) -> bool:
        """Give a worker its next joiners, waiting while there is nothing to do at all; False once stopping."""
        with self._lock:
            self._work.wait_for(lambda: self._is_stopping or worker.num_segments or self._queue.num_segments)
            if self._is_stopping:
                return False
            now_s = self._clock()
            expired = self._queue.pop_expired(now_s)
            worker.hand_over(self._pop_joiners(worker, now_s))
            self._record_queue()
        for pending in expired:
            pending.fail(DeadlineExceededError("queue"))
        return True

    def _pop_joiners(self, worker: Worker, now_s: float) -> list[PendingSegment]:
        if not self._queue.num_segments:
            return []
        share = fair_share(
            num_waiting=self._queue.num_segments,
            num_running=sum(other.num_segments for other in self._workers),
            num_threads=len(self._workers),
        )
        settings = self._settings
        budget = BatchBudget(
            max_segments=min(settings.max_batch_segments, share),
            max_padded_tokens=settings.max_batch_padded_tokens,
            max_rows=settings.max_batch_rows,
        )
        waiting = self._queue.peek(now_s, limit=_LOOKAHEAD * settings.max_batch_segments)
        joiners = next_joiners(waiting, worker.load(), budget)
        for pending in joiners:
            self._queue.remove(pending)
        return joiners

    def _forget(self, pending: PendingSegment, future: "Future[SegmentResult]") -> None:
        """Free what an answered or cancelled segment holds; runs once for each, in whatever thread answers it."""
        if future.cancelled():
            future.set_running_or_notify_cancel()  # wakes those who wait on the future with others
        self._metrics.segments.labels(_outcome(future)).inc()
        with self._lock:
            self._queue.remove(pending)
            self._unanswered.discard(pending)
            self._record_queue()
            if not self._unanswered:
                self._quiet.notify_all()

    def _record(self, turn: Turn) -> None:
        with self._lock:
            self._rate.record(num_tokens=turn.num_tokens, busy_s=turn.busy_s)

    def _record_queue(self) -> None:
        """Move the gauges by what changed: the schedulers of several models share them."""
        num_segments, num_tokens = self._queue.num_segments, self._queue.num_tokens
        self._metrics.queue_segments.inc(num_segments - self._recorded_segments)
        self._metrics.queue_tokens.inc(num_tokens - self._recorded_tokens)
        self._recorded_segments, self._recorded_tokens = num_segments, num_tokens


def _outcome(future: "Future[SegmentResult]") -> str:
    """Return the label under which an answered segment is counted."""
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    if error is None:
        return "ok"
    return "deadline" if isinstance(error, DeadlineExceededError) else "error"
