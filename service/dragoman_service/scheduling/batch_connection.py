"""Connections to the running batches of a worker, and handling of their reports."""

import contextlib
import logging
import math
import select
import selectors
import socket
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection

from prometheus_client import Histogram

from dragoman_service.datatypes import SegmentResult, StageTimings
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.errors import DeadlineExceededError, EngineError
from dragoman_service.observability.metrics import COPY_DIRECTIONS, Metrics
from dragoman_service.scheduling.admission import LatencyModel
from dragoman_service.scheduling.admission_queue import QueuedSegment
from dragoman_service.scheduling.result_cache import ResultCache
from dragoman_service.worker.messages import BatchCommand, BatchReport, BatchStepOutput, Clock
from dragoman_service.worker.supervisor import WorkerSupervisor
from dragoman_service.worker.worker import Worker

log = logging.getLogger(__name__)

WorkerHandle = WorkerSupervisor | Worker  # a process of its own, or threads of this process


class ConnectionPoller:
    """Waits for connections to become readable; any thread can wake the thread that waits.

    An event loop can wait for `fileno` instead, which is readable when `wait` would return.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()  # of Linux, BSD and macOS: these have a file descriptor
        self.fileno = self._selector.fileno()
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._is_woken = False
        self.register(self._receiver.fileno())

    def register(self, fileno: int) -> None:
        """Include a connection."""
        self._selector.register(fileno, selectors.EVENT_READ)

    def unregister(self, fileno: int) -> None:
        """Exclude a connection; call it before the connection is closed."""
        self._selector.unregister(fileno)

    def wait(self, timeout_s: float | None) -> set[int]:
        """Return the readable connections, at least one unless woken or timed out."""
        ready = {key.fd for key, _ in self._selector.select(timeout_s)}
        if self._receiver.fileno() in ready:
            self._receiver.recv(64)
            self._is_woken = False  # only now, so that what changes from here on wakes the thread again
        return ready

    def wake(self) -> None:
        """Let `wait` return."""
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError):  # the buffer is full, which wakes as well
                self._sender.send(b"\0")

    def close(self) -> None:
        """Close the sockets; `wake` does nothing from then on."""
        self._selector.close()
        self._receiver.close()
        self._sender.close()


def has_hung_up(fileno: int) -> bool:
    """Return whether the other end of a connection is closed."""
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


class BatchConnection:
    """The scheduler's end of one running batch: its segments, and a connection that is opened when it is needed."""

    def __init__(self, worker: WorkerHandle, poller: ConnectionPoller, lock: "threading.RLock") -> None:
        self._worker = worker
        self._poller = poller
        self._lock = lock
        self._connection: Connection[BatchCommand, BatchReport] | None = None
        self.running: dict[int, QueuedSegment] = {}  # by id; a cancelled segment stays until the next report
        self.prefetched: dict[int, QueuedSegment] = {}  # by id: encoded here, but still queued
        self.dropped_ids: list[int] = []  # to be dropped with the next command
        self.is_backlogged = False  # whether the batch was full after its last report, while more was queued
        self.load = BatchLoad()
        self.reported_at_s = -math.inf  # last report, or start of the batch

    @property
    def fileno(self) -> int:
        """File descriptor of the connection; -1 without one."""
        return -1 if self._connection is None else self._connection.fileno()

    def add(self, segment: QueuedSegment) -> None:
        """Add a segment that is about to be sent."""
        self.running[segment.segment_id] = segment
        self.load = self.load.plus(segment.segment)

    def remove(self, segment_id: int) -> QueuedSegment | None:
        """Remove and return a segment; None if it is not in the batch."""
        with self._lock:
            if segment := self.running.pop(segment_id, None):
                self.load = BatchLoad.of(other.segment for other in self.running.values())
            return segment

    def find(self, segment_id: int) -> QueuedSegment | None:
        """Return a segment that is in the batch or was sent ahead."""
        return self.running.get(segment_id) or self.prefetched.get(segment_id)

    def remove_resolved(self) -> None:
        """Remove segments that were cancelled, or resolved otherwise."""
        with self._lock:
            for segment in [running for running in self.running.values() if running.done()]:
                self.remove(segment.segment_id)
                if not segment.is_end_recorded:  # its done callback will not find it here
                    self.dropped_ids.append(segment.segment_id)

    def check_connection(self) -> bool:
        """Return whether there is a connection; one that was closed while the batch was empty does not count."""
        if self._connection and all(running.done() for running in self.running.values()) and has_hung_up(self.fileno):
            self.disconnect()
        return self._connection is not None

    def connect(self) -> "Connection[BatchCommand, BatchReport]":
        """Return a new connection, which may start a worker and take seconds; EngineError or OSError if that fails."""
        return self._worker.connect()

    def use(self, connection: "Connection[BatchCommand, BatchReport]") -> None:
        """Send commands over this connection from now on; there must be no connection yet."""
        self._connection = connection
        self._poller.register(connection.fileno())

    def send(self, command: BatchCommand) -> None:
        """Send a command; without a connection, no segment needs to be dropped, and EngineError if any is new."""
        if self._connection is not None:
            self._connection.send(command)
        elif command.new_segments:
            raise EngineError("batch has no connection")

    def receive(self) -> BatchReport | None:
        """Return the next report; None if the connection was closed while the batch was empty."""
        try:
            return self._connection.recv() if self._connection else None
        except (EOFError, OSError):
            if not all(running.done() for running in self.running.values()):
                raise
            self.disconnect()
            return None

    def disconnect(self) -> None:
        """Close the connection, which ends the batch in the worker."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._poller.unregister(connection.fileno())
            connection.close()
        self.remove_resolved()


class ReportHandler:
    """Resolves segments from the reports of batches, and records what the reports say in metrics and latency model."""

    def __init__(
        self,
        batches: Sequence[BatchConnection],
        metrics: Metrics,
        *,
        latency_model: LatencyModel,
        results: ResultCache | None,
        clock: Clock,
        lock: "threading.RLock",
    ) -> None:
        self._batches, self._metrics, self._latency_model = batches, metrics, latency_model
        self._results, self._clock, self._lock = results, clock, lock
        self._copied_bytes = tuple(map(metrics.device_copy_bytes.labels, COPY_DIRECTIONS))
        self._row_padding, self._source_padding = map(metrics.step_padding_share.labels, ("rows", "sources"))
        self.is_warm_up = True  # segments of a warm-up are not queued, and their times are not representative

    def handle(self, batch: BatchConnection, report: BatchReport) -> None:
        """Handle a report of a batch."""
        self._metrics.worker_cpu_seconds.inc(report.cpu_s)
        for counter, num_bytes in zip(self._copied_bytes, report.copied_bytes, strict=True):
            counter.inc(num_bytes)
        for output in report.outputs:
            self._handle_output(batch, output)
        batch.remove_resolved()
        if not self.is_warm_up:
            with self._lock:
                for output in report.outputs:
                    self._latency_model.record_step(output, is_backlogged=batch.is_backlogged, now_s=self._clock())

    def fail(self, batch: BatchConnection, segment_ids: Sequence[int], fault: str) -> None:
        """Fail segments of a batch that is lost."""
        removed = filter(None, map(batch.remove, segment_ids))
        lost = [segment for segment in removed if not segment.done()]
        log.error("batch failed", extra={"segments": len(lost), "fault": fault})
        self._metrics.batch_failures.inc()
        for segment in lost:
            segment.resolve(EngineError("decoding failed"))

    def drop_prefetched(self, segment_id: int, *, joined: BatchConnection | None = None) -> bool:
        """Drop encoder outputs of a segment that has joined a batch or has ended; return whether any batch has them.

        The batch that it joined has used its own; another batch may have encoded it too late.
        """
        holders = [batch for batch in self._batches if batch.prefetched.pop(segment_id, None) and batch is not joined]
        for batch in holders:
            batch.dropped_ids.append(segment_id)
        return bool(holders)

    def _handle_output(self, batch: BatchConnection, output: BatchStepOutput) -> None:
        if output.encoded_ids:
            encoded = [segment for segment in map(batch.find, output.encoded_ids) if segment]
            for segment in encoded:
                segment.is_encoded, segment.encode_s = True, output.encode_s
            exemplars = filter(None, (segment.context.exemplar for segment in encoded))
            self._metrics.encode_seconds.observe(output.encode_s, next(exemplars, None))
        if output.started_ids:
            self._handle_start(batch, output)
        if output.num_rows:
            self._record_steps(output)
        for ended in output.ended:
            self._handle_end(batch, ended, output.step_ended_s)
        for segment_id in output.late_ids:
            if late := batch.remove(segment_id):
                late.resolve(DeadlineExceededError("decode"))
        if output.fault:
            self.fail(batch, output.lost_ids, output.fault)

    def _handle_start(self, batch: BatchConnection, output: BatchStepOutput) -> None:
        with self._lock:
            for segment_id in output.started_ids:
                self.drop_prefetched(segment_id, joined=batch)
        for segment in filter(None, map(batch.running.get, output.started_ids)):
            segment.decode_started_at_s = output.started_at_s
            segment.queue_s = output.started_at_s - segment.admitted_at_s - segment.encode_s
            if not self.is_warm_up:
                queue_wait = self._metrics.queue_wait_seconds.labels(segment.context.priority.value)
                queue_wait.observe(segment.queue_s, segment.context.exemplar)

    def _record_steps(self, output: BatchStepOutput) -> None:
        load = output.load
        row_padding = 1 - min(load.live_rows, output.step_rows) / output.step_rows
        source_padding = 1 - load.source_tokens / load.padded_tokens
        steps_s = *output.earlier_steps_s, output.step_s
        self._metrics.steps.inc(len(steps_s))
        observe_all(self._metrics.step_seconds, steps_s)
        _observe(self._metrics.batch_segments, load.num_segments, count=len(steps_s))
        _observe(self._row_padding, row_padding, count=len(steps_s))
        _observe(self._source_padding, source_padding, count=len(steps_s))

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
                self._record_result(segment, result)  # before the caller sees the result
                if self._results is not None:
                    with self._lock:
                        self._results.put(segment.segment, result)
                segment.resolve(result)
        finally:
            if not segment.done():
                segment.resolve(EngineError("decoding failed"))

    def _record_result(self, segment: QueuedSegment, result: SegmentResult) -> None:
        metrics, num_target_tokens = self._metrics, len(result.hypotheses[0].token_ids)
        metrics.decode_seconds.observe(result.timings.decode_s, segment.context.exemplar)
        metrics.source_tokens.inc(segment.num_source_tokens)
        metrics.target_tokens.inc(num_target_tokens)
        metrics.length_ratio.observe(num_target_tokens / segment.num_source_tokens)
        if result.degeneration is not None:
            metrics.redecodes.labels("replaced" if result.degeneration.is_replaced else "kept").inc()
            for defect in result.degeneration.found:
                metrics.degenerations.labels(defect.kind.value).inc()


def observe_all(histogram: Histogram, amounts: Sequence[float]) -> None:
    """Observe several amounts at once: `Histogram.observe` for each step would cost as much as the rest of a report."""
    histogram._sum.inc(sum(amounts))
    for index, count in Counter(bisect_left(histogram._upper_bounds, amount) for amount in amounts).items():
        histogram._buckets[index].inc(count)


def _observe(histogram: Histogram, amount: float, *, count: int) -> None:
    histogram._sum.inc(amount * count)
    histogram._buckets[bisect_left(histogram._upper_bounds, amount)].inc(count)
