"""A worker in threads of the test that can die like a process, and helpers that talk to a batch."""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.errors import EngineError
from dragoman_service.worker.messages import BatchCommand, BatchReport, Clock, NewSegment
from dragoman_service.worker.worker import BatchExecutor, ServedModel, Worker
from tests.fakes import make_segment

TIMEOUT_S = 30.0  # only reached by a test that would otherwise hang

_Result = TypeVar("_Result")


class MortalWorker(Worker):
    """A worker that can die with all of its batches; the next connection starts a new worker."""

    def __init__(self, model: ServedModel, clock: Clock = time.monotonic) -> None:
        super().__init__(model, clock=clock)
        self.connections: list[Connection[Any, Any]] = []  # the scheduler's end of each connection ever made
        self._alive: list[socket.socket] = []
        self._is_closed = False
        self._connecting = threading.Lock()

    def connect(self) -> "Connection[Any, Any]":
        """Start a thread for a batch and return the connection to it; EngineError after `close`."""
        with self._connecting:
            if self._is_closed:  # as the supervisor of a process
                raise EngineError("worker is closed")
            ours, theirs = socket.socketpair()
            connection: Connection[Any, Any] = Connection(ours.detach())
            with self._lock:
                self._alive.append(theirs.dup())
                self.connections.append(connection)
            self.serve(Connection(theirs.detach()))
        return connection

    def die(self) -> None:
        """Shut down every connection."""
        with self._lock:
            dying, self._alive = self._alive, []
        for end in dying:
            with end:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:  # its thread has ended
                    continue

    def close(self, timeout_s: float = TIMEOUT_S) -> None:
        """End all threads; may be called again."""
        with self._connecting:
            self._is_closed = True
        self.die()
        super().close(timeout_s)
        assert not any(thread.is_alive() for thread in self._threads), "a batch runs without a connection"


def begin(function: Callable[..., _Result], *arguments: Any, **options: Any) -> "Future[_Result]":
    """Call a function in a daemon thread, so that it cannot keep the test or the process from ending."""
    future: Future[_Result] = Future()

    def call() -> None:
        try:
            future.set_result(function(*arguments, **options))
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            future.set_exception(error)

    threading.Thread(target=call, name="bounded", daemon=True).start()
    return future


def joining(*ids: int, deadline_s: float = float("inf"), **search: Any) -> BatchCommand:
    """Return a command with new segments of these ids; their sources differ."""
    return BatchCommand(
        new_segments=tuple(
            NewSegment(segment_id=key, segment=make_segment(4 + key % 5, 5, **search), deadline_s=deadline_s)
            for key in ids
        )
    )


def next_report(connection: "Connection[Any, Any]") -> BatchReport:
    """Return the next report of a batch."""
    assert connection.poll(TIMEOUT_S), "no report received"
    report: BatchReport = connection.recv()
    return report


def ended_in(*reports: BatchReport) -> dict[int, EndedSegment]:
    """Return the segments that ended, by id."""
    return {ended.segment_id: ended for report in reports for output in report.outputs for ended in output.ended}


def decode(connection: "Connection[Any, Any]", command: BatchCommand) -> Mapping[int, EndedSegment]:
    """Send new segments to a batch and return them, by id, after all have ended."""
    connection.send(command)
    ended: dict[int, EndedSegment] = {}
    while len(ended) < len(command.new_segments):
        report = next_report(connection)
        assert not any(output.fault for output in report.outputs), report
        ended.update(ended_in(report))
    return ended


def decode_here(model: StepModel, command: BatchCommand) -> Mapping[int, EndedSegment]:
    """Return the ended segments of a batch without a connection, by id."""
    batch = BatchExecutor(model, time.monotonic)
    outputs = [batch.execute(command)]
    while batch.num_segments:
        outputs.append(batch.execute(BatchCommand()))
    assert not any(output.fault for output in outputs)
    return {ended.segment_id: ended for output in outputs for ended in output.ended}
