"""Continuous batching: selects the queued segments that join running batches, and sends them to the worker."""

import asyncio
import contextlib
import math
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from dragoman_service.datatypes import Segment, SegmentResult
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.errors import DeadlineExceededError, EngineError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.scheduling.admission import LatencyModel
from dragoman_service.scheduling.admission_queue import (
    AdmissionQueue,
    BatchBudget,
    QueuedSegment,
    fair_share,
    select_prefetch,
    select_segments,
)
from dragoman_service.scheduling.batch_connection import BatchConnection, ConnectionPoller, ReportHandler, WorkerHandle
from dragoman_service.scheduling.core_shares import CoreShares
from dragoman_service.scheduling.result_cache import ResultCache
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import BatchCommand, Clock, NewSegment

_LOOKAHEAD_BATCHES = 4  # batches' worth of queued segments from which segments of similar length are selected
_AHEAD_SHARE = 0.5  # of a batch: queued segments that are encoded together with one that joins
_RESPONSIVE_S = 0.05  # a batch that reported earlier is in a long step, so another batch may be ready before it
_POLL_INTERVAL_S = 0.2  # while batches run, to detect a stuck worker
_STALL_S = 2.0  # a longer interval means that the server process was suspended, perhaps the worker too
_RECOVERY_S = 0.1  # after an internal error, so that a permanent one does not occupy a core


class BatchDispatcher:
    """Moves segments from the queue to running batches, and resolves those that end.

    All of it runs in an event loop. It never holds the lock while it sends a message or resolves a segment, because
    that runs the callbacks of its caller. An error of a batch fails the segments of this batch only.
    """

    def __init__(
        self,
        worker: WorkerHandle,
        settings: SchedulingSettings,
        metrics: Metrics,
        *,
        num_batches: int,
        cores: CoreShares,
        queue: AdmissionQueue,
        latency_model: LatencyModel,
        results: ResultCache | None,
        clock: Clock,
        lock: "threading.RLock",
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._worker, self._settings, self._metrics = worker, settings, metrics
        self._loop, self._queue, self._clock, self._lock = loop, queue, clock, lock
        self._budget = BatchBudget(
            max_segments=settings.max_batch_segments,
            max_padded_tokens=settings.max_batch_padded_tokens,
            max_rows=settings.max_batch_rows,
        )
        self._cores = cores
        self._poller = ConnectionPoller()
        self._batches = [BatchConnection(worker, self._poller, lock) for _ in range(num_batches)]
        self._reports = ReportHandler(
            self._batches, metrics, latency_model=latency_model, results=results, clock=clock, lock=lock
        )
        self._polled_at_s = -math.inf
        self._is_started = False
        self._loop_thread_id = 0  # 0: not in the loop
        self._next_run: asyncio.Handle | None = None  # as soon as possible
        self._next_check: asyncio.TimerHandle | None = None
        self._connecting: set[BatchConnection] = set()
        self._stopping = threading.Event()
        self._closing = threading.Lock()  # several threads may close it at once
        self.failed_at_s = -math.inf  # when a batch was last lost with its connection
        self.cache_bytes = 0  # KV caches of all batches, as last reported

    @property
    def num_running(self) -> int:
        """Segments in all batches."""
        return sum(len(batch.running) for batch in self._batches)

    @property
    def num_admitting(self) -> int:
        """Number of batches that admit segments at present; further batches finish their segments."""
        return self._cores.share(len(self._batches))

    @property
    def loads(self) -> list[BatchLoad]:
        """Size of each batch."""
        return [batch.load for batch in self._batches]

    @property
    def has_capacity(self) -> bool:
        """True if a batch can admit a queued segment now."""
        max_segments = self._max_segments()
        return any(len(batch.running) < max_segments for batch in self._batches[: self.num_admitting])

    def warm_up(self, segments: Sequence[Segment]) -> list[SegmentResult]:
        """Decode the same segments in each batch, first one segment, then all; return the results of one batch.

        All batches decode at once, so that the memory of concurrent runs is allocated.
        """
        self._connect_all()
        for group in (segments[:1], segments):
            queued = [[QueuedSegment(segment=segment) for segment in group] for _ in self._batches]
            for batch, own in zip(self._batches, queued, strict=True):
                batch.reported_at_s = self._clock()
                for segment in own:
                    batch.add(segment)
                with self._failing_only(batch):
                    self._send(batch, own)
            while self.num_running:
                self._run_once(_POLL_INTERVAL_S)
                self._worker.check_load()
        return [segment.result() for segment in queued[0]]

    def start(self) -> None:
        """Start to dispatch in the event loop."""
        self._connect_all()
        self._is_started, self._reports.is_warm_up = True, False
        self._loop.call_soon_threadsafe(self._attach)

    def wake(self) -> None:
        """Check queue and batches soon; any thread may call it.

        In the event loop, the requests of one iteration share one check.
        """
        if threading.get_ident() != self._loop_thread_id:
            self._poller.wake()
        elif self._next_run is None:
            self._next_run = self._loop.call_soon(self._run)

    def drop(self, segment_id: int) -> bool:
        """Drop a resolved segment from its batches, under the lock; return whether to call `wake`."""
        is_known = self._reports.drop_prefetched(segment_id)
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
        """Leave the event loop, and close all connections and the worker."""
        with self._closing:
            self._leave_loop(timeout_s)
            for batch in self._batches:
                batch.disconnect()
            self._poller.close()
            self._worker.close(timeout_s)

    def _connect_all(self) -> None:
        for batch in self._batches:
            with self._failing_only(batch):
                if not batch.check_connection():
                    batch.use(batch.connect())

    def _attach(self) -> None:
        if not self._stopping.is_set():
            self._loop_thread_id = threading.get_ident()
            self._loop.add_reader(self._poller.fileno, self._run)
            self._run()

    def _detach(self) -> None:
        self._loop_thread_id = 0
        self._loop.remove_reader(self._poller.fileno)
        for handle in (self._next_run, self._next_check):
            if handle:
                handle.cancel()

    def _leave_loop(self, timeout_s: float) -> None:
        if not self._is_started or self._loop.is_closed():
            return
        self._is_started = False
        if threading.get_ident() == self._loop_thread_id:
            self._detach()
            return
        is_detached = threading.Event()
        self._loop.call_soon_threadsafe(self._detach)
        self._loop.call_soon_threadsafe(is_detached.set)
        is_detached.wait(timeout_s)

    def _run(self) -> None:
        """Check queue and batches now, and regularly while batches run or connect: workers get stuck, segments late."""
        if self._next_run:
            self._next_run.cancel()
            self._next_run = None
        if self._stopping.is_set():
            return
        try:
            self._run_once(0.0)
        except Exception:  # noqa: BLE001 - the dispatcher must go on, and every segment needs a result
            for batch in self._batches:
                self._abandon(batch, traceback.format_exc())
            self._loop.remove_reader(self._poller.fileno)
            self._loop.call_later(_RECOVERY_S, self._attach)
        if (self.num_running or self._connecting) and self._next_check is None:
            self._next_check = self._loop.call_later(_POLL_INTERVAL_S, self._check)

    def _check(self) -> None:
        self._next_check = None
        self._run()

    def _run_once(self, timeout_s: float) -> None:
        """Wait for reports or `wake`, resolve segments that ended, and send new segments to each batch."""
        ready = self._poller.wait(timeout_s)
        reported = [batch for batch in self._batches if batch.fileno in ready]
        for batch in reported:
            with self._failing_only(batch):
                if report := batch.receive():
                    self.cache_bytes, batch.reported_at_s = report.cache_bytes, self._clock()
                    self._reports.handle(batch, report)
        self._kill_if_stuck()
        with self._lock:
            expired = self._queue.pop_expired(self._clock())
        for segment in expired:
            segment.resolve(DeadlineExceededError("queue"))
        by_load = sorted(self._batches[: self.num_admitting], key=lambda batch: len(batch.running))
        selected: dict[BatchConnection, list[QueuedSegment]] = {}
        for batch in by_load:
            if not self._queue.num_segments:
                break
            with self._failing_only(batch):
                if batch.check_connection():
                    selected[batch] = self._select(batch)
                else:
                    self._connect(batch)
        for batch in self._batches:  # after all selections: what is still queued may be encoded ahead
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
        if now_s - polled_at_s > _STALL_S:
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

    def _abandon(self, batch: BatchConnection, fault: str) -> None:
        self.cache_bytes, self.failed_at_s = 0, self._clock()  # the bytes until the next report
        self._reports.fail(batch, list(batch.running), fault)
        batch.disconnect()
        self.wake()  # queued segments can join an empty batch

    def _connect(self, batch: BatchConnection) -> None:
        """Connect a batch in a thread, because that may start a worker; its segments stay in the queue until then."""
        if batch in self._connecting:
            return
        self._connecting.add(batch)

        def connect() -> None:
            connection: Connection[Any, Any] | Exception
            try:
                connection = batch.connect()
            except Exception as error:  # noqa: BLE001 - fails the segments of the batch
                connection = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._connected, batch, connection)

        threading.Thread(target=connect, name="connect", daemon=True).start()

    def _connected(self, batch: BatchConnection, connection: "Connection[Any, Any] | Exception") -> None:
        self._connecting.discard(batch)
        if isinstance(connection, Exception):
            with self._failing_only(batch):
                self._select(batch)  # these segments fail; the next ones try again
                raise connection
        elif self._stopping.is_set():
            connection.close()
        else:
            batch.use(connection)
            self.wake()

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
            prefetch = self._select_prefetch(batch) if must_encode else {}
            dropped_ids, batch.dropped_ids = tuple(batch.dropped_ids), []
            if new_segments:
                self._metrics.batch_padded_tokens.observe(batch.load.padded_tokens)
        if new_segments or dropped_ids:
            batch.send(BatchCommand(new_segments=new_segments, dropped_ids=dropped_ids, prefetch=prefetch))

    def _select_prefetch(self, batch: BatchConnection) -> dict[int, tuple[int, ...]]:
        """Return the sources that a batch encodes ahead, if more segments are queued than all batches admit."""
        max_segments, num_batches = self._settings.max_batch_segments, self.num_admitting
        if self._max_segments() < max_segments:
            return {}
        queued = self._queue.peek(self._clock(), limit=_LOOKAHEAD_BATCHES * max_segments)
        limit = round(max_segments * _AHEAD_SHARE)
        selected = select_prefetch(queued, batch.prefetched.values(), window=num_batches * limit, limit=limit)
        for segment in selected:
            segment.is_prefetched = True
            batch.prefetched[segment.segment_id] = segment
        return {segment.segment_id: segment.segment.source_ids for segment in selected}

    def _max_segments(self) -> int:
        """Return how many segments a batch may have at present."""
        num_segments = self._queue.num_segments + self.num_running
        return min(self._settings.max_batch_segments, fair_share(num_segments, num_batches=self.num_admitting))

    def _is_backlogged(self, batch: BatchConnection) -> bool:
        if not self._queue.num_segments:
            return False
        with self._lock:
            queued = self._queue.peek(self._clock(), limit=1)
            return bool(queued) and not self._budget.allows(batch.load.plus(queued[0].segment))
