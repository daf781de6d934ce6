"""The worker: the running batches of one model, each stepped by a thread that follows the commands of the scheduler.

It runs in a process of its own (`dragoman_service.worker.__main__`) or in threads of the server (`Worker.connect`).
"""

import contextlib
import logging
import math
import os
import socket
import threading
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from dragoman_service.decoding.beam_search import Interrupt
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.decoding.step_model import EncodedSource, StepModel
from dragoman_service.threads import lower_priority
from dragoman_service.worker.messages import BatchCommand, BatchReport, BatchStepOutput, Clock, NewSegment

log = logging.getLogger(__name__)

_REPORT_INTERVAL_S: Final = 0.02  # of a batch without results, so that the server is not interrupted at each step


class ServedModel(StepModel, Protocol):
    """A model that also measures its use of memory."""

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV caches of all batches."""

    @property
    def copied_bytes(self) -> tuple[int, int]:
        """Bytes copied to and from GPU memory."""


class BatchExecutor:
    """Executes commands and steps of one running batch; one thread at a time may use it."""

    def __init__(
        self,
        model: StepModel,
        clock: Clock,
        encoded: dict[int, EncodedSource] | None = None,
        *,
        interrupt: Interrupt | None = None,
    ) -> None:
        """Start with an empty batch.

        Args:
            model: runs the steps.
            clock: measures durations and deadlines.
            encoded: encoder outputs of queued segments, by id; shared by the batches of a worker, whose threads only
                set and pop.
            interrupt: ends `execute` after the current step; see `RunningBatch`.
        """
        self._model, self._interrupt = model, interrupt
        self._clock = clock
        self._encoded = {} if encoded is None else encoded
        self._prefetched_ids: set[int] = set()  # segments that this batch has encoded and that are still queued
        self._batch: RunningBatch | None = None  # made in a step, because making it may fail like any use of the model
        self._unresolved: dict[int, NewSegment] = {}

    @property
    def num_segments(self) -> int:
        """Segments in the batch."""
        return len(self._unresolved)

    def execute(self, command: BatchCommand, *, until_s: float = -math.inf) -> BatchStepOutput:
        """Drop segments, start new ones, take a decoder step and drop segments whose deadline has passed.

        A model that searches by itself takes further steps until `until_s`, a deadline, a result or the interrupt.
        An exception is part of the output: the batch has lost its segments, and the next step starts with an empty one.
        """
        began_s = self._clock()
        output = BatchStepOutput()
        try:
            self._drop(self._unresolved.keys() & command.dropped_ids)
            self._forget_encoded(self._prefetched_ids.intersection(command.dropped_ids))
            if command.new_segments or command.prefetch:
                self._start(command, output)
            if self._unresolved:
                self._step(output, until_s)
                self._drop_late(output)
        except Exception:  # noqa: BLE001 - the thread must go on, and every segment needs a result
            output.fault = traceback.format_exc()
            output.lost_ids = tuple({*self._unresolved, *(new.segment_id for new in command.new_segments)})
            self._batch, self._unresolved = None, {}
        output.busy_s = self._clock() - began_s
        return output

    def close(self) -> None:
        """Forget the encoder outputs that no batch has used."""
        self._forget_encoded(frozenset(self._prefetched_ids))

    def _running(self) -> RunningBatch:
        if self._batch is None:
            self._batch = RunningBatch(self._model, interrupt=self._interrupt)
        return self._batch

    def _start(self, command: BatchCommand, output: BatchStepOutput) -> None:
        """Let new segments join; encode those without encoder output, together with the segments to encode ahead."""
        new_ids = tuple(new.segment_id for new in command.new_segments)
        popped = {segment_id: self._encoded.pop(segment_id, None) for segment_id in new_ids}
        encoded = {segment_id: source for segment_id, source in popped.items() if source is not None}
        sources = {new.segment_id: new.segment.source_ids for new in command.new_segments}
        sources |= command.prefetch
        encoded |= self._encode({key: source for key, source in sources.items() if key not in encoded}, output)
        self._prefetched_ids |= sources.keys()
        self._prefetched_ids.difference_update(new_ids)
        self._encoded.update((key, source) for key, source in encoded.items() if key in self._prefetched_ids)
        if new_ids:
            output.started_ids, output.started_at_s = new_ids, self._clock()
            segments = [new.segment for new in command.new_segments]
            self._running().start(segments, ids=new_ids, encoded=[encoded[key] for key in new_ids])
            self._unresolved.update(zip(new_ids, command.new_segments, strict=True))

    def _encode(self, sources: Mapping[int, Sequence[int]], output: BatchStepOutput) -> dict[int, EncodedSource]:
        if not sources:
            return {}
        began_s = self._clock()
        encoded = self._model.encode(list(sources.values()))
        output.encode_s = self._clock() - began_s
        output.encoded_ids = tuple(sources)
        output.num_encoded_tokens = sum(map(len, sources.values()))
        return dict(zip(sources, encoded, strict=True))

    def _forget_encoded(self, segment_ids: Collection[int]) -> None:
        self._prefetched_ids.difference_update(segment_ids)
        for segment_id in segment_ids:
            self._encoded.pop(segment_id, None)

    def _step(self, output: BatchStepOutput, until_s: float) -> None:
        output.load = self._running().load
        first_deadline_s = min(new.deadline_s for new in self._unresolved.values())
        began_s = self._clock()
        report = self._running().step(max_seconds=max(0.0, min(until_s, first_deadline_s) - began_s))
        output.step_ended_s = self._clock()
        output.earlier_steps_s = report.earlier_steps_s
        output.step_s = max(0.0, output.step_ended_s - began_s - sum(report.earlier_steps_s))
        output.num_rows, output.step_rows = output.load.live_rows, report.num_segments * report.num_rows
        output.ended = report.ended
        for ended in report.ended:
            new = self._unresolved.pop(ended.segment_id)
            if ended.hypotheses:
                output.num_tokens += len(new.segment.source_ids)
                output.num_steps += ended.num_steps

    def _drop_late(self, output: BatchStepOutput) -> None:
        now_s = self._clock()
        output.late_ids = tuple(new.segment_id for new in self._unresolved.values() if new.deadline_s <= now_s)
        self._drop(output.late_ids)

    def _drop(self, segment_ids: Collection[int]) -> None:
        if not segment_ids:
            return
        self._running().drop(segment_ids)
        for segment_id in segment_ids:
            del self._unresolved[segment_id]


class WorkerLoop:
    """Steps a batch while it has segments, and waits for commands otherwise."""

    def __init__(self, worker: "Worker", connection: "Connection[BatchReport, BatchCommand]") -> None:
        """Use the worker's end of a connection, which `run` closes."""
        self._worker = worker
        self._interrupt = Interrupt()  # 1: commands may have been received
        self._batch = BatchExecutor(worker.model, worker.clock, worker.encoded, interrupt=self._interrupt)
        self._connection = connection
        self._commands: SimpleQueue[BatchCommand | None] = SimpleQueue()  # None: the connection is closed
        self._outputs: list[BatchStepOutput] = []
        self._reported_at_s = 0.0

    def run(self) -> None:
        """Serve until the other end is closed."""
        receiver = threading.Thread(target=self._receive, name="commands", daemon=True)
        receiver.start()
        try:
            lower_priority(self._worker.niceness)
            while (command := self._next_command()) is not None:
                output = self._batch.execute(command, until_s=self._reported_at_s + _REPORT_INTERVAL_S)
                if self._outputs and output.merge(self._outputs[-1]):
                    self._outputs.pop()
                self._outputs.append(output)
                if self._is_report_due():
                    self._connection.send(self._worker.make_report(tuple(self._outputs)))
                    self._outputs, self._reported_at_s = [], self._worker.clock()
        except OSError:  # the other end is closed
            pass
        except Exception:
            log.exception("batch ended")  # the scheduler learns it from the end of the connection
        finally:
            self._batch.close()
            with socket.socket(fileno=os.dup(self._connection.fileno())) as end, contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # ends the receiver, which still reads, so that it can be closed
            receiver.join()
            self._connection.close()

    def _receive(self) -> None:
        """Read commands as they arrive, so that the scheduler never waits for a step."""
        with contextlib.suppress(Exception):
            while True:
                self._put(self._connection.recv())
        self._put(None)

    def _put(self, command: BatchCommand | None) -> None:
        self._commands.put(command)
        self._interrupt.value = 1

    def _next_command(self) -> BatchCommand | None:
        """Return all received commands as one, waiting if the batch is empty; None after the last one."""
        commands, is_idle = [], not self._batch.num_segments
        self._interrupt.value = 0
        try:
            commands.append(self._commands.get(block=is_idle))
            if is_idle:
                self._reported_at_s = self._worker.clock()
            while True:
                commands.append(self._commands.get_nowait())
        except Empty:
            pass
        received = [command for command in commands if command is not None]
        return BatchCommand.merged(received) if len(received) == len(commands) else None

    def _is_report_due(self) -> bool:
        output = self._outputs[-1]
        has_results = bool(output.ended or output.late_ids or output.fault) or not self._batch.num_segments
        return has_results or self._worker.clock() - self._reported_at_s >= _REPORT_INTERVAL_S


class Worker:
    """All running batches of a model, each with a thread; any thread may use it."""

    def __init__(
        self,
        model: ServedModel,
        *,
        niceness: int = 0,
        clock: Clock = time.monotonic,
        cpu_clock: Clock = lambda: 0.0,
    ) -> None:
        """Start without batches.

        Args:
            model: runs the steps.
            niceness: of the threads that run steps.
            clock: measures durations and deadlines.
            cpu_clock: returns the CPU time of the process, if it is the worker's own.
        """
        self.model, self.niceness, self.clock = model, niceness, clock
        self.encoded: dict[int, EncodedSource] = {}  # encoder outputs of queued segments, by id
        self._cpu_clock = cpu_clock
        self._lock = threading.Lock()
        self._reported_cpu_s, self._reported_bytes = 0.0, (0, 0)
        self._threads: list[threading.Thread] = []

    def connect(self) -> "Connection[Any, Any]":
        """Start a new batch and return the scheduler's end of its connection."""
        ours, theirs = socket.socketpair()
        self.serve(Connection(theirs.detach()))
        return Connection(ours.detach())

    def serve(self, connection: "Connection[Any, Any]") -> None:
        """Run a new batch in a thread until the other end of its connection is closed."""
        run = WorkerLoop(self, connection).run
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = threading.Thread(target=run, name=f"decode-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def make_report(self, outputs: tuple[BatchStepOutput, ...]) -> BatchReport:
        """Return the report of a batch, with the resources used since the last report of any batch."""
        with self._lock:
            before_s, self._reported_cpu_s = self._reported_cpu_s, self._cpu_clock()
            cpu_s = self._reported_cpu_s - before_s
            (up, down), self._reported_bytes = self._reported_bytes, self.model.copied_bytes
            copied = self._reported_bytes[0] - up, self._reported_bytes[1] - down
        return BatchReport(outputs=outputs, cache_bytes=self.model.cache_bytes, cpu_s=cpu_s, copied_bytes=copied)

    def kill(self, cause: str) -> bool:  # noqa: ARG002
        """Return False: threads cannot be killed."""
        return False

    def check_load(self) -> None:
        """Do nothing: loading in the server's process cannot be interrupted."""

    def close(self, timeout_s: float) -> None:
        """Wait for the threads; the closed connections end each thread after its step."""
        for thread in self._threads:
            thread.join(timeout_s)
