"""The engine core: the running batches of one loaded network, each stepped by a thread that messages tell what to do.

It runs in a process of its own, `dragoman_service.worker.__main__`, or in threads of the server (`Worker.connect`).
"""

import contextlib
import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, Final

from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.decoding.step_model import EncodedSource, StepModel
from dragoman_service.threads import lower_priority
from dragoman_service.worker.messages import BatchCommand, BatchReport, BatchStepOutput, Clock, NewSegment

log = logging.getLogger(__name__)

_REPORT_INTERVAL_S: Final = 0.02
"""Most time between two reports of a batch that is not empty, but for that of a step. A batch that has nothing to tell
disturbs the server no more often."""


class BatchExecutor:
    """The segments of one running batch, and what is unanswered of them; one thread at a time may use it."""

    def __init__(self, model: StepModel, clock: Clock, encoded: dict[int, EncodedSource] | None = None) -> None:
        """Begin empty; `encoded` holds, by id, what any batch of the core has encoded of segments that have not joined.

        Batches in other threads use it at the same time: each finds what it takes out, or does not.
        """
        self._model = model
        self._clock = clock
        self._encoded = {} if encoded is None else encoded
        self._ahead_ids: set[int] = set()  # encoded here before they join
        self._batch: RunningBatch | None = None  # made when needed: making it may fail like any other use of the model
        self._unanswered: dict[int, NewSegment] = {}  # by id

    @property
    def num_segments(self) -> int:
        """Segments in the batch."""
        return len(self._unanswered)

    def run_step(self, command: BatchCommand) -> BatchStepOutput:
        """Drop segments, start new ones, take one step if there is any, and drop those that are late.

        Whatever is raised is in the output: the segments of the batch are lost, the next step begins with an empty one.
        """
        began_s = self._clock()
        output = BatchStepOutput()
        try:
            self._drop(self._unanswered.keys() & command.dropped_ids)
            self._forget_encoded(self._ahead_ids.intersection(command.dropped_ids))
            if command.new_segments or command.encode_ahead:
                self._start(command, output)
            if self._unanswered:
                self._step(output)
                self._drop_late(output)
        except Exception:  # noqa: BLE001 - one bad batch must strand neither its callers nor the decoding thread
            output.fault = traceback.format_exc()
            output.lost_ids = tuple({*self._unanswered, *(new.segment_id for new in command.new_segments)})
            self._batch, self._unanswered = None, {}
        output.busy_s = self._clock() - began_s
        return output

    def close(self) -> None:
        """Forget what it has encoded that no batch has taken."""
        self._forget_encoded(frozenset(self._ahead_ids))

    def _running(self) -> RunningBatch:
        if self._batch is None:
            self._batch = RunningBatch(self._model)
        return self._batch

    def _start(self, command: BatchCommand, output: BatchStepOutput) -> None:
        """Let new segments join; encode those that were not yet, together with what is wanted ahead."""
        new_ids = tuple(new.segment_id for new in command.new_segments)
        taken = {segment_id: self._encoded.pop(segment_id, None) for segment_id in new_ids}
        encoded = {segment_id: source for segment_id, source in taken.items() if source is not None}
        wanted = {new.segment_id: new.segment.source_ids for new in command.new_segments}
        wanted |= {source.segment_id: source.source_ids for source in command.encode_ahead}
        encoded |= self._encode({one: ids for one, ids in wanted.items() if one not in encoded}, output)
        self._ahead_ids |= wanted.keys()
        self._ahead_ids.difference_update(new_ids)
        self._encoded.update((one, source) for one, source in encoded.items() if one in self._ahead_ids)
        if new_ids:
            output.started_ids, output.started_at_s = new_ids, self._clock()
            segments = [new.segment for new in command.new_segments]
            self._running().start(segments, ids=new_ids, encoded=[encoded[one] for one in new_ids])
            self._unanswered.update(zip(new_ids, command.new_segments, strict=True))

    def _encode(self, sources: Mapping[int, Sequence[int]], output: BatchStepOutput) -> dict[int, EncodedSource]:
        """Return sources, by id, as the model encodes them."""
        if not sources:
            return {}
        began_s = self._clock()
        encoded = self._model.encode(list(sources.values()))
        output.encode_s = self._clock() - began_s
        output.encoded_ids = tuple(sources)
        output.num_encoded_tokens = sum(map(len, sources.values()))
        return dict(zip(sources, encoded, strict=True))

    def _forget_encoded(self, segment_ids: Collection[int]) -> None:
        self._ahead_ids.difference_update(segment_ids)
        for segment_id in segment_ids:
            self._encoded.pop(segment_id, None)

    def _step(self, output: BatchStepOutput) -> None:
        output.load = self._running().load
        began_s = self._clock()
        report = self._running().step()
        output.step_ended_s = self._clock()
        output.step_s = output.step_ended_s - began_s
        output.num_rows, output.step_rows = output.load.live_rows, report.num_segments * report.num_rows
        output.ended = report.ended
        for ended in report.ended:
            new = self._unanswered.pop(ended.segment_id)
            if ended.hypotheses:
                output.num_tokens += len(new.segment.source_ids)
                output.num_steps += ended.num_steps

    def _drop_late(self, output: BatchStepOutput) -> None:
        now_s = self._clock()
        output.late_ids = tuple(new.segment_id for new in self._unanswered.values() if new.deadline_s <= now_s)
        self._drop(output.late_ids)

    def _drop(self, segment_ids: Collection[int]) -> None:
        if not segment_ids:
            return
        self._running().drop(segment_ids)
        for segment_id in segment_ids:
            del self._unanswered[segment_id]


class WorkerLoop:
    """Steps a batch as long as it is not empty, and waits for commands otherwise."""

    def __init__(self, core: "Worker", connection: "Connection[BatchReport, BatchCommand]") -> None:
        """Use the core's end of a connection; it is closed in the end."""
        self._core = core
        self._batch = BatchExecutor(core.model, core.clock, core.encoded)
        self._connection = connection
        self._commands: SimpleQueue[BatchCommand | None] = SimpleQueue()  # None: there will be no more
        self._outputs: list[BatchStepOutput] = []
        self._reported_at_s = 0.0

    def run(self) -> None:
        """Serve until the other end is closed."""
        receiver = threading.Thread(target=self._receive, name="commands", daemon=True)
        receiver.start()
        try:
            lower_priority(self._core.niceness)
            while (command := self._next_command()) is not None:
                output = self._batch.run_step(command)
                if self._outputs and output.take_in(self._outputs[-1]):
                    self._outputs.pop()
                self._outputs.append(output)
                if self._is_due():
                    self._connection.send(self._core.report_of(tuple(self._outputs)))
                    self._outputs, self._reported_at_s = [], self._core.clock()
        except OSError:  # the other end is closed
            pass
        except Exception:
            log.exception("batch ended")  # the client learns of it by the end of the connection
        finally:
            self._batch.close()
            with socket.socket(fileno=os.dup(self._connection.fileno())) as end, contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # ends the receiver, which reads from it: so it cannot be closed yet
            receiver.join()
            self._connection.close()

    def _receive(self) -> None:
        """Take commands off the connection as they come, so that the client never waits for a step."""
        with contextlib.suppress(Exception):  # whatever ends it
            while True:
                self._commands.put(self._connection.recv())
        self._commands.put(None)

    def _next_command(self) -> BatchCommand | None:
        """Return all commands that have come as one, waiting if the batch is empty; None after the last."""
        commands = []
        try:
            commands.append(self._commands.get(block=not self._batch.num_segments))
            while True:
                commands.append(self._commands.get_nowait())
        except Empty:
            pass
        received = [command for command in commands if command is not None]
        return BatchCommand.merged(received) if len(received) == len(commands) else None

    def _is_due(self) -> bool:
        """Whether there is news, or the last report is long ago."""
        output = self._outputs[-1]
        is_news = bool(output.ended or output.late_ids or output.fault) or not self._batch.num_segments
        return is_news or self._core.clock() - self._reported_at_s >= _REPORT_INTERVAL_S


class Worker:
    """All running batches of a network; any thread may use it."""

    def __init__(
        self,
        model: StepModel,
        *,
        niceness: int = 0,
        clock: Clock = time.monotonic,
        cache_bytes: Callable[[], int] = lambda: 0,
        cpu_clock: Clock = lambda: 0.0,
        copied_bytes: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        """Begin without batches.

        Args:
            model: is stepped.
            niceness: of the threads that step it.
            clock: for deadlines and durations.
            cache_bytes: tells what the caches of all batches take.
            cpu_clock: tells the CPU time of the process, if it is the core's own.
            copied_bytes: tells how many were copied to the memory of a GPU and from it.
        """
        self.model, self.niceness, self.clock = model, niceness, clock
        self.encoded: dict[int, EncodedSource] = {}
        """What was encoded of segments that still wait in the server, by id."""
        self._cache_bytes = cache_bytes
        self._cpu_clock = cpu_clock
        self._lock = threading.Lock()
        self._copied_bytes = copied_bytes
        self._reported_cpu_s, self._reported_bytes = 0.0, (0, 0)
        self._threads: list[threading.Thread] = []

    def connect(self) -> "Connection[Any, Any]":
        """Return the client's end of a connection to a new batch."""
        ours, theirs = socket.socketpair()
        self.serve(Connection(theirs.detach()))
        return Connection(ours.detach())

    def serve(self, connection: "Connection[Any, Any]") -> None:
        """Run a new batch in a thread until the other end of a connection is closed."""
        run = WorkerLoop(self, connection).run
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = threading.Thread(target=run, name=f"decode-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def report_of(self, outputs: tuple[BatchStepOutput, ...]) -> BatchReport:
        """Return the report of what a batch did, with what the core takes."""
        with self._lock:
            before_s, self._reported_cpu_s = self._reported_cpu_s, self._cpu_clock()
            cpu_s = self._reported_cpu_s - before_s
            (up, down), self._reported_bytes = self._reported_bytes, self._copied_bytes()
            copied = self._reported_bytes[0] - up, self._reported_bytes[1] - down
        return BatchReport(outputs=outputs, cache_bytes=self._cache_bytes(), cpu_s=cpu_s, copied_bytes=copied)

    def kill(self, cause: str) -> bool:  # noqa: ARG002 - it is the same for all
        """Return False: nothing ends a thread."""
        return False

    def check_load(self) -> None:
        """Do nothing: without a process of its own a load goes on until it ends."""

    def close(self, timeout_s: float) -> None:
        """Wait for the threads, whose connections are closed: each ends after its step."""
        for thread in self._threads:
            thread.join(timeout_s)
