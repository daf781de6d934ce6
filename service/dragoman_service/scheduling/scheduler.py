"""The scheduler: admits the segments of requests, and answers each admitted segment exactly once."""

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from dragoman_service.datatypes import SearchConfig, Segment, SegmentResult
from dragoman_service.decoding.running_batch import check_segment
from dragoman_service.decoding.step_model import ModelLimits
from dragoman_service.errors import DeadlineExceededError, DrainingError, EngineError, OverloadedError
from dragoman_service.observability.metrics import Metrics, SchedulerStats
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission import (
    AdmissionPolicy,
    LatencyModel,
    LengthModel,
    Prediction,
    Rejection,
    RequestCost,
)
from dragoman_service.scheduling.admission_queue import AdmissionQueue, QueuedSegment
from dragoman_service.scheduling.batch_connection import WorkerHandle
from dragoman_service.scheduling.batch_dispatcher import BatchDispatcher
from dragoman_service.scheduling.core_shares import CoreShares
from dragoman_service.scheduling.result_cache import ResultCache
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.threads import SwitchInterval, num_cores
from dragoman_service.worker.messages import Clock

_SWITCH_INTERVAL = SwitchInterval()  # of the process, whose schedulers share Python's interpreter lock
_OVERLOAD_DURATION_S = 1.0  # after the last rejection of a request whose segments are known

Futures = Sequence["Future[SegmentResult]"]  # one future for each submitted segment, in order


class Scheduler:
    """Continuous batching of the segments of many callers on one worker.

    Any thread may call the public methods, except that a callback of a future may only submit and cancel.
    """

    def __init__(
        self,
        worker: WorkerHandle,
        limits: ModelLimits,
        settings: SchedulingSettings,
        metrics: Metrics,
        clock: Clock = time.monotonic,
        *,
        loop: asyncio.AbstractEventLoop,
        cores: CoreShares | None = None,
    ) -> None:
        """Dispatch in the event loop, which runs in any thread; share `cores` with other schedulers."""
        self._limits, self._clock = limits, clock
        self._lock = threading.RLock()
        self._num_batches = num_batches = settings.num_workers or num_cores()
        self._cores = cores or CoreShares()
        self._queue = AdmissionQueue(max_bulk_wait_s=settings.max_bulk_wait_s)
        self._latency_model = LatencyModel(settings, num_batches=num_batches)
        self._lengths = LengthModel()
        self._policy = AdmissionPolicy(settings, self._latency_model)
        self._results = ResultCache(settings.max_cached_bytes) if settings.max_cached_bytes else None
        self._metrics = metrics
        self._dispatcher = BatchDispatcher(
            worker,
            settings,
            metrics,
            num_batches=num_batches,
            cores=self._cores,
            queue=self._queue,
            latency_model=self._latency_model,
            results=self._results,
            clock=clock,
            lock=self._lock,
            loop=loop,
        )
        self._is_draining = False
        self._overloaded_at_s = -math.inf
        self._num_unresolved = 0
        self._all_resolved = threading.Condition(self._lock)
        self.outstanding_cost = 0  # expected decode cost of all unresolved segments
        metrics.add_scheduler(self.stats)

    @property
    def cache_bytes(self) -> int:
        """KV caches of all batches, as last reported by the worker."""
        return self._dispatcher.cache_bytes

    @property
    def failed_at_s(self) -> float:
        """Time of the last loss of a connection to the worker."""
        return self._dispatcher.failed_at_s

    def warm_up(self, segments: Sequence[Segment]) -> list[SegmentResult]:
        """Decode the same segments in each batch, before `start`; return the results of one batch.

        Raises:
            EngineError: if the model cannot decode them, or not in time.
            DrainingError: if the server stops.
            ValueError: if a segment exceeds the limits of the model or the search.
        """
        for segment in segments:
            check_segment(segment, self._limits)
        return self._dispatcher.warm_up(segments)

    def start(self) -> None:
        """Start to decode; segments that were submitted before wait for this."""
        self._dispatcher.start()

    def reject_early(self, num_characters: int, search: SearchConfig, context: RequestContext) -> None:
        """Reject a request before its texts are segmented and tokenized, if `submit` would most likely reject it.

        Text processing is most of the cost of a rejection. The segments are estimated from the length of the texts, but
        only while `submit` rejects requests whose segments are known. Raises as `submit`.
        """
        with self._lock:
            now_s = self._clock()
            is_overloaded = now_s - self._overloaded_at_s <= _OVERLOAD_DURATION_S and self._queue.num_segments
            if is_overloaded and (segments := self._lengths.expected_segments(num_characters, search)):
                self._check_admission(self._latency_model.request_cost(segments), context, now_s, is_estimate=True)

    def expected_decode_cost(self, segments: Sequence[Segment]) -> int:
        """Return the expected decode cost of segments; see `scheduling.admission`."""
        with self._lock:
            return self._latency_model.request_cost(segments).decode_cost

    def submit(
        self, segments: Sequence[Segment], context: RequestContext | None = None, *, num_characters: int = 0
    ) -> Futures:
        """Admit all segments of a request or none, and return one future for each, in order; never waits.

        A future ends with the result or with `EngineError`, `DeadlineExceededError` or `DrainingError`. Cancelling
        it removes the segment from the queue or the batch at once.

        Args:
            segments: the segments to decode, which the model accepts.
            context: context of the request; None for a request of the server itself.
            num_characters: length of the texts that the segments are all of; 0: unknown.

        Raises:
            OverloadedError: if the queue has no room for all segments, or delays them beyond the deadline.
            DeadlineExceededError: if the deadline has passed, or would pass even on an idle server.
            DrainingError: after `drain` or `stop`.
            ValueError: if a segment exceeds the limits of the model or the search.
        """
        for segment in segments:
            check_segment(segment, self._limits)
        if not segments:
            return []
        context = context or RequestContext()
        with self._lock:
            now_s = self._clock()
            self._lengths.record(num_characters, segments)
            cached = [self._cached(segment) for segment in segments]
            uncached = [segment for segment, hit in zip(segments, cached, strict=True) if hit is None]
            if not uncached and not self._is_draining:
                return [hit for hit in cached if hit is not None]
            cost = self._latency_model.request_cost(uncached or segments)
            prediction = self._check_admission(cost, context, now_s)  # allocates nothing for a rejected request
            queued = [
                QueuedSegment(segment=segment, context=context, decode_cost=decode_cost, admitted_at_s=now_s)
                for segment, decode_cost in zip(uncached, cost.segment_costs, strict=True)
            ]
            queued[-1].prediction = prediction
            for one in queued:
                one.add_done_callback(self._on_done)  # type: ignore[arg-type] # the future is the segment
            self._queue.add(queued)
            if not self._num_unresolved:
                self._cores.set_busy(self, self._num_batches)
            self._num_unresolved += len(queued)
            self.outstanding_cost += cost.decode_cost
            has_capacity = self._dispatcher.has_capacity
        if has_capacity:
            self._dispatcher.wake()
        if not _SWITCH_INTERVAL.is_normal:
            _SWITCH_INTERVAL.record_admission(now_s)
        remaining = iter(queued)
        return [hit or next(remaining) for hit in cached]

    def stats(self) -> SchedulerStats:
        """Return the size of queue, batches and result cache."""
        loads = self._dispatcher.loads
        return SchedulerStats(
            queue_segments=self._queue.num_segments,
            queue_tokens=self._queue.num_tokens,
            queue_decode_cost=self._queue.decode_cost,
            batch_live_segments=sum(load.num_segments for load in loads),
            batch_live_rows=sum(load.live_rows for load in loads),
            result_cache_bytes=self._results.num_bytes if self._results else 0,
        )

    def drain(self, timeout_s: float) -> bool:
        """Reject new segments and wait until all admitted ones are resolved; return False on timeout."""
        with self._lock:
            self._is_draining = True
            return self._all_resolved.wait_for(lambda: not self._num_unresolved, timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Fail the remaining segments with `DrainingError`, and close the worker."""
        with self._lock:
            self._is_draining = True
            remaining = [*self._queue, *self._dispatcher.request_stop()]
        for segment in remaining:
            segment.resolve(DrainingError())
        self._dispatcher.close(timeout_s)
        self._metrics.remove_scheduler(self.stats)

    def _check_admission(
        self, cost: RequestCost, context: RequestContext, now_s: float, *, is_estimate: bool = False
    ) -> Prediction:
        decision: Prediction | Rejection
        if self._is_draining:
            decision = Rejection(reason="draining", error=DrainingError())
        else:
            self._latency_model.num_batches = self._dispatcher.num_admitting
            state = self._queue.state(cost, context, num_running=self._dispatcher.num_running)
            decision = self._policy.decide(cost, context, state, now_s, is_estimate=is_estimate)
        if isinstance(decision, Prediction):
            return decision
        self._metrics.rejected_requests.labels(decision.reason).inc()
        if decision.reason == "deadline":
            self._metrics.deadline_misses.labels("admission").inc(cost.num_segments)
        if isinstance(decision.error, OverloadedError):
            _SWITCH_INTERVAL.record_rejection(now_s)  # decoding yields to rejections from the first one on
            if not is_estimate:
                self._overloaded_at_s = now_s
        raise decision.error

    def _cached(self, segment: Segment) -> Future[SegmentResult] | None:
        if self._results is None:
            return None
        result = self._results.get(segment)
        self._metrics.result_cache_lookups.labels("miss" if result is None else "hit").inc()
        if result is None:
            return None
        future = Future[SegmentResult]()
        future.set_result(result)
        return future

    def _on_done(self, segment: QueuedSegment) -> None:
        """Free the resources of a resolved or cancelled segment; runs once, in the thread that resolves it."""
        if segment.cancelled():
            segment.set_running_or_notify_cancel()  # wakes threads that wait for several futures
        with self._lock:
            segment.is_end_recorded = True
            was_queued = self._queue.discard(segment)
            must_wake = self._dispatcher.drop(segment.segment_id)
            self._num_unresolved -= 1
            self.outstanding_cost -= segment.decode_cost
            if not self._num_unresolved:
                self._cores.set_idle(self)
                self._all_resolved.notify_all()
            outcome = self._record_outcome(segment, was_queued=was_queued)
            self._record_latency(segment, outcome)
        if must_wake:
            self._dispatcher.wake()

    def _record_outcome(self, segment: QueuedSegment, *, was_queued: bool) -> str:
        error = None if segment.cancelled() else segment.exception()
        if segment.cancelled():
            outcome = "cancelled"
            self._metrics.cancelled_segments.labels("queue" if was_queued else "decode").inc()
        elif isinstance(error, DeadlineExceededError):
            outcome = "deadline"
            self._metrics.deadline_misses.labels(error.stage).inc()
        else:
            outcome = "error" if error else "ok"
        self._metrics.segments.labels(outcome).inc()
        return outcome

    def _record_latency(self, segment: QueuedSegment, outcome: str) -> None:
        """Compare the latency of a request with its prediction; its last segment has it."""
        if (prediction := segment.prediction) is None:
            return
        actual_s, predicted_s = self._clock() - segment.admitted_at_s, prediction.total_s
        if prediction.has_throughput and outcome in {"ok", "deadline"}:
            self._latency_model.margin.record(predicted_s=predicted_s, actual_s=actual_s)
        if outcome == "ok":
            direction = "late" if actual_s > predicted_s else "early"
            self._metrics.prediction_error_seconds.labels(direction).observe(abs(actual_s - predicted_s))


async def wait_for_results(futures: Futures) -> list[SegmentResult]:
    """Return the results of submitted segments, in order.

    The first error is raised. Then, or if the waiting task is cancelled, the other segments are cancelled.
    """
    try:
        await _wait_for_all(futures)
        for future in futures:
            if future.done() and not future.cancelled() and (error := future.exception()):
                raise error
        if any(future.cancelled() for future in futures):  # the caller would have cancelled this task as well
            raise EngineError("segment cancelled without a result")
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


async def _wait_for_all(futures: Futures) -> None:
    # Returns once all futures are done, or one has failed. Wakes the event loop at most once.
    if not futures:
        return
    loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
    all_done, num_futures, num_done = loop.create_future(), len(futures), itertools.count(1)

    def finish() -> None:
        if not all_done.done():
            all_done.set_result(None)

    def count_done(future: "Future[SegmentResult]") -> None:
        if next(num_done) == num_futures or (not future.cancelled() and future.exception()):
            if threading.get_ident() == thread_id:
                finish()
            else:
                loop.call_soon_threadsafe(finish)

    for future in futures:
        future.add_done_callback(count_done)
    await all_done
