"""Dispatch of queued segments to the running batches of a worker, and handling of the reports of the batches."""

import contextlib
import logging
import math
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dragoman_service.datatypes import Segment, SegmentResult, StageTimings
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.errors import DeadlineExceededError, EngineError
from dragoman_service.scheduling.admission_queue import AdmissionQueue, QueuedSegment
from dragoman_service.scheduling.batch_connection import BatchConnection, ConnectionPoller, WorkerHandle
from dragoman_service.scheduling.batch_policy import BatchBudget, fair_share, select_ahead, select_segments
from dragoman_service.scheduling.latency_model import LatencyModel
from dragoman_service.scheduling.result_cache import ResultCache
from dragoman_service.scheduling.scheduler_metrics import SchedulerMetrics
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchCommand, BatchReport, BatchStepOutput, Clock, NewSegment, QueuedSource

log = logging.getLogger(__name__)

_LOOKAHEAD_BATCHES = 4  # batches' worth of queued segments from which segments of similar length are selected
_AHEAD_SHARE = 0.5  # of a batch: queued segments that are encoded together with one that joins
_RESPONSIVE_S = 0.05  # a batch that reported earlier is in a long step, so another batch may be ready before it
_POLL_INTERVAL_S = 0.2  # while batches run, to detect a stuck worker
_PAUSE_S = 2.0  # a longer interval means that the server itself stood still, and perhaps the worker with it
_RECOVERY_S = 0.1  # after an internal error, so that a permanent one does not occupy a core


class BatchDispatcher:
    """Moves segments from the queue to running batches, and resolves those that end.

    One thread does all of it. It never holds the lock while it sends a message or resolves a segment, because that
    runs the callbacks of its caller. An error of a batch fails the segments of this batch only.
    """

    def __init__(
        self,
        worker: WorkerHandle,
        settings: SchedulingSettings,
        metrics: SchedulerMetrics,
        *,
        num_batches: int,
        queue: AdmissionQueue,
        latency_model: LatencyModel,
        results: ResultCache,
        clock: Clock,
        lock: "threading.RLock",
    ) -> None:
        self._worker, self._settings, self._metrics = worker, settings, metrics
        self._queue, self._clock, self._lock = queue, clock, lock
        self._budget = BatchBudget(
            max_segments=settings.max_batch_segments,
            max_padded_tokens=settings.max_batch_padded_tokens,
            max_rows=settings.max_batch_rows,
        )
        self._poller = ConnectionPoller()
        self._batches = [BatchConnection(worker, self._poller, lock) for _ in range(num_batches)]
        self._reports = ReportHandler(
            batches=self._batches,
            metrics=metrics,
            latency_model=latency_model,
            results=results,
            clock=clock,
            lock=lock,
        )
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._polled_at_s = -math.inf
        self._is_started = False
        self._stopping = threading.Event()
        self._closing = threading.Lock()  # several threads may close it at once
        self.failed_at_s = -math.inf  # when a batch was last lost with its connection
        self.cache_bytes = 0  # KV caches of all batches, as last reported

    @property
    def num_running(self) -> int:
        """Segments in all batches."""
        return sum(len(batch.running) for batch in self._batches)

    @property
    def loads(self) -> list[BatchLoad]:
        """Size of each batch."""
        return [batch.load for batch in self._batches]

    @property
    def has_capacity(self) -> bool:
        """True if a batch can admit a queued segment now."""
        max_segments = self._max_segments()
        return any(len(batch.running) < max_segments for batch in self._batches)

    def warm_up(self, segments: Sequence[Segment]) -> list[SegmentResult]:
        """Decode the same segments in each batch, first one segment, then all; return the results of one batch.

        All batches decode at once, so that the memory of concurrent runs is allocated.
        """
        for group in (segments[:1], segments):
            queued = [[QueuedSegment(segment=segment) for segment in group] for _ in self._batches]
            for batch, own in zip(self._batches, queued, strict=True):
                batch.reported_at_s = self._clock()
                for segment in own:
                    batch.add(segment)
                with self._failing_only(batch):
                    self._send(batch, own)
            while self.num_running:
                self._run_once()
                self._worker.check_load()
        return [segment.result() for segment in queued[0]]

    def start(self) -> None:
        """Start the thread."""
        self._is_started, self._reports.is_warm_up = True, False
        self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Let the thread check queue and batches; any thread may call it."""
        self._poller.wake()

    def drop(self, segment_id: int) -> bool:
        """Drop a resolved segment from its batches, under the lock; return whether to call `wake`."""
        is_known = self._reports.forget_ahead(segment_id)
        for batch in self._batches:
            if segment_id in batch.running:
                batch.dropped_ids.append(segment_id)
                is_known = True
        return is_known

    def request_stop(self) -> list[QueuedSegment]:
        """Let the thread end, and return the segments in the batches."""
        self._stopping.set()
        return [segment for batch in self._batches for segment in batch.running.values()]

    def close(self, timeout_s: float) -> None:
        """End the thread after its step, and close all connections and the worker."""
        self.wake()
        with self._closing:
            if self._is_started:
                self._thread.join(timeout_s)
            for batch in self._batches:
                batch.disconnect()
            self._poller.close()
            self._worker.close(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_once()
            except Exception:  # noqa: BLE001 - the thread must go on, and every segment needs a result
                for batch in self._batches:
                    self._abandon(batch, traceback.format_exc())
                self._stopping.wait(_RECOVERY_S)

    def _run_once(self) -> None:
        """Wait for reports or `wake`, resolve segments that ended, and send new segments to each batch."""
        ready = self._poller.wait(_POLL_INTERVAL_S if self.num_running else None)
        reported = [batch for batch in self._batches if batch.fileno in ready]
        for batch in reported:
            with self._failing_only(batch):
                self._handle_report(batch)
        self._kill_if_stuck()
        with self._lock:
            expired = self._queue.pop_expired(self._clock())
        for segment in expired:
            segment.resolve(DeadlineExceededError("queue"))
        by_load = sorted(self._batches, key=lambda batch: len(batch.running))
        selected: dict[BatchConnection, list[QueuedSegment]] = {}
        for batch in by_load:
            if not self._queue.num_segments:
                break
            with self._failing_only(batch):
                selected[batch] = self._select(batch)
        for batch in by_load:  # after all selections: what is still queued may be encoded ahead
            if selected.get(batch) or batch.dropped_ids:
                with self._failing_only(batch):
                    self._send(batch, selected.get(batch, ()))
        for batch in reported:
            batch.is_backlogged = self._is_backlogged(batch)

    def _kill_if_stuck(self) -> None:
        """Kill the worker if a batch has not reported within `max_step_s`; all of its batches are lost."""
        now_s, polled_at_s = self._clock(), self._polled_at_s
        self._polled_at_s = now_s
        running = [batch for batch in self._batches if batch.running]
        if now_s - polled_at_s > _PAUSE_S:
            for batch in running:
                batch.reported_at_s = now_s
        limit_s = self._settings.max_step_s
        if any(now_s - batch.reported_at_s > limit_s for batch in running) and self._worker.kill("no_step"):
            for batch in running:
                self._abandon(batch, f"step did not end within {limit_s:g} s (scheduling.max_step_s)")

    @contextlib.contextmanager
    def _failing_only(self, batch: BatchConnection) -> Iterator[None]:
        """Turn an exception into a failure of one batch."""
        try:
            yield
        except (EOFError, OSError, EngineError) as error:
            self._abandon(batch, f"connection to the worker lost: {error!r}")
        except Exception:  # noqa: BLE001 - the thread must go on, and every segment needs a result
            self._abandon(batch, traceback.format_exc())
            self._stopping.wait(_RECOVERY_S)

    def _abandon(self, batch: BatchConnection, fault: str) -> None:
        self.cache_bytes, self.failed_at_s = 0, self._clock()  # the bytes until the next report
        self._reports.fail(batch, list(batch.running), fault)
        batch.disconnect()
        self.wake()  # queued segments can join an empty batch

    def _select(self, batch: BatchConnection) -> list[QueuedSegment]:
        """Move the segments that join a batch now from the queue to the batch."""
        with self._lock:
            now_s, max_segments = self._clock(), self._max_segments()
            if not batch.running:
                batch.reported_at_s = now_s
            if len(batch.running) >= max_segments or now_s - batch.reported_at_s > _RESPONSIVE_S:
                return []
            queued = self._queue.peek(now_s, limit=_LOOKAHEAD_BATCHES * self._settings.max_batch_segments)
            selected = select_segments(queued, batch.load, replace(self._budget, max_segments=max_segments))
            for segment in selected:
                batch.add(segment)  # before it leaves the queue, so that it is always in one of the two
                self._queue.dequeue(segment)
            return selected

    def _send(self, batch: BatchConnection, selected: Sequence[QueuedSegment]) -> None:
        with self._lock:
            new_segments = tuple(
                NewSegment(
                    segment_id=segment.segment_id, segment=segment.segment, deadline_s=segment.context.deadline_s
                )
                for segment in selected
                if not segment.done() or not batch.remove(segment.segment_id)
            )
            must_encode = new_segments and not all(segment.is_encoded for segment in selected)
            ahead = self._select_ahead(batch) if must_encode else ()
            dropped_ids, batch.dropped_ids = tuple(batch.dropped_ids), []
            if new_segments:
                self._metrics.record_join(batch.load)
        if new_segments or dropped_ids:
            batch.send(BatchCommand(new_segments=new_segments, dropped_ids=dropped_ids, encode_ahead=ahead))

    def _select_ahead(self, batch: BatchConnection) -> tuple[QueuedSource, ...]:
        """Return what a batch encodes of the queued segments, if there are more than all batches admit."""
        max_segments, num_batches = self._settings.max_batch_segments, len(self._batches)
        if self._max_segments() < max_segments:
            return ()
        queued = self._queue.peek(self._clock(), limit=_LOOKAHEAD_BATCHES * max_segments)
        limit = round(max_segments * _AHEAD_SHARE)
        selected = select_ahead(queued, batch.sent_ahead.values(), window=num_batches * limit, limit=limit)
        for segment in selected:
            segment.is_sent_ahead = True
            batch.sent_ahead[segment.segment_id] = segment
        return tuple(
            QueuedSource(segment_id=segment.segment_id, source_ids=segment.segment.source_ids) for segment in selected
        )

    def _max_segments(self) -> int:
        """Return how many segments a batch may have at present."""
        num_segments = self._queue.num_segments + self.num_running
        return min(self._settings.max_batch_segments, fair_share(num_segments, num_batches=len(self._batches)))

    def _is_backlogged(self, batch: BatchConnection) -> bool:
        if not self._queue.num_segments:
            return False
        with self._lock:
            queued = self._queue.peek(self._clock(), limit=1)
            return bool(queued) and not self._budget.allows(batch.load.plus(queued[0].segment))

    def _handle_report(self, batch: BatchConnection) -> None:
        if report := batch.receive():
            self.cache_bytes, batch.reported_at_s = report.cache_bytes, self._clock()
            self._reports.handle(batch, report)


@dataclass(slots=True, kw_only=True)
class ReportHandler:
    """Resolves segments from the reports of batches, and records what the reports say in metrics and latency model."""

    batches: Sequence[BatchConnection]
    metrics: SchedulerMetrics
    latency_model: LatencyModel
    results: ResultCache
    clock: Clock
    lock: "threading.RLock"
    is_warm_up: bool = True  # segments of a warm-up are not queued, and their times are not representative

    def handle(self, batch: BatchConnection, report: BatchReport) -> None:
        """Handle a report of a batch."""
        self.metrics.record_report(report)
        for output in report.outputs:
            self._handle_output(batch, output)
        batch.remove_resolved()
        if not self.is_warm_up:
            with self.lock:
                for output in report.outputs:
                    self.latency_model.record_step(output, is_backlogged=batch.is_backlogged, now_s=self.clock())

    def fail(self, batch: BatchConnection, segment_ids: Sequence[int], fault: str) -> None:
        """Fail segments of a batch that is lost."""
        removed = filter(None, map(batch.remove, segment_ids))
        lost = [segment for segment in removed if not segment.done()]
        log.error("batch failed", extra={"segments": len(lost), "fault": fault})
        self.metrics.record_batch_failure()
        for segment in lost:
            segment.resolve(EngineError("decoding failed"))

    def forget_ahead(self, segment_id: int, *, joined: BatchConnection | None = None) -> bool:
        """Drop encoder outputs of a segment that has joined a batch or has ended; return whether any batch has them.

        The batch that it joined has used its own; another batch may have encoded it too late.
        """
        holders = [batch for batch in self.batches if batch.sent_ahead.pop(segment_id, None) and batch is not joined]
        for batch in holders:
            batch.dropped_ids.append(segment_id)
        return bool(holders)

    def _handle_output(self, batch: BatchConnection, output: BatchStepOutput) -> None:
        if output.encoded_ids:
            encoded = [segment for segment in map(batch.find, output.encoded_ids) if segment]
            for segment in encoded:
                segment.is_encoded, segment.encode_s = True, output.encode_s
            self.metrics.record_encoding(output.encode_s, encoded)
        if output.started_ids:
            self._handle_start(batch, output)
        if output.num_rows:
            self.metrics.record_step(output)
        for ended in output.ended:
            self._handle_end(batch, ended, output.step_ended_s)
        for segment_id in output.late_ids:
            if late := batch.remove(segment_id):
                late.resolve(DeadlineExceededError("decode"))
        if output.fault:
            self.fail(batch, output.lost_ids, output.fault)

    def _handle_start(self, batch: BatchConnection, output: BatchStepOutput) -> None:
        with self.lock:
            for segment_id in output.started_ids:
                self.forget_ahead(segment_id, joined=batch)
        for segment in filter(None, map(batch.running.get, output.started_ids)):
            segment.decode_started_at_s = output.started_at_s
            segment.queue_s = output.started_at_s - segment.admitted_at_s - segment.encode_s
            if not self.is_warm_up:
                self.metrics.record_start(segment)

    def _handle_end(self, batch: BatchConnection, ended: EndedSegment, now_s: float) -> None:
        segment = batch.remove(ended.segment_id)
        if segment is None:  # cancelled
            return
        try:
            if not ended.hypotheses:
                log.error("no valid next token: all candidates masked", extra={"steps": ended.num_steps})
            elif not segment.done():
                timings = StageTimings(
                    queue_s=segment.queue_s, encode_s=segment.encode_s, decode_s=now_s - segment.decode_started_at_s
                )
                result = SegmentResult(
                    hypotheses=ended.hypotheses,
                    num_steps=ended.num_steps,
                    timings=timings,
                    degeneration=ended.degeneration,
                )
                self.metrics.record_result(segment, result)  # before the caller sees the result
                if self.results.is_enabled:
                    with self.lock:
                        self.results.put(segment.segment, result)
                segment.resolve(result)
        finally:
            segment.resolve(EngineError("decoding failed"))  # does nothing if it has a result
