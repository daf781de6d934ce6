"""Connections to the running batches of a worker, each with the segments that the scheduler has sent to it."""

import contextlib
import math
import select
import socket
import threading
from multiprocessing.connection import Connection
from typing import Any, Protocol

from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.scheduling.admission_queue import QueuedSegment
from dragoman_service.worker.messages import BatchCommand, BatchReport


class WorkerHandle(Protocol):
    """A worker as the scheduler uses it: threads of this process, or a process of its own."""

    def connect(self) -> "Connection[Any, Any]":
        """Return a connection to a new batch; EngineError or OSError if that fails."""

    def close(self, timeout_s: float) -> None:
        """Free what the batches share; their connections are already closed."""

    def kill(self, cause: str) -> bool:
        """Kill a stuck worker with all of its batches; return False if that is not possible."""

    def check_load(self) -> None:
        """Raise EngineError if the warm-up takes too long, DrainingError if the server stops."""


class ConnectionPoller:
    """Waits for connections to become readable; any thread can wake the thread that waits."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._is_woken = False
        self.register(self._receiver.fileno())

    def register(self, fileno: int) -> None:
        """Include a connection."""
        self._poll.register(fileno, select.POLLIN)

    def unregister(self, fileno: int) -> None:
        """Exclude a connection; call it before the connection is closed."""
        self._poll.unregister(fileno)

    def has_hung_up(self, fileno: int) -> bool:
        """Return whether the other end of a connection is closed."""
        return any(ready == fileno and events & select.POLLHUP for ready, events in self._poll.poll(0))

    def wait(self, timeout_s: float | None) -> set[int]:
        """Return the readable connections, at least one unless woken or timed out."""
        ready = {fileno for fileno, _ in self._poll.poll(timeout_s and timeout_s * 1000)}
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
        self._receiver.close()
        self._sender.close()


class BatchConnection:
    """The scheduler's end of one running batch: its segments, and a connection that is opened when it is needed."""

    def __init__(self, worker: WorkerHandle, poller: ConnectionPoller, lock: "threading.RLock") -> None:
        self._worker = worker
        self._poller = poller
        self._lock = lock
        self._connection: Connection[BatchCommand, BatchReport] | None = None
        self.running: dict[int, QueuedSegment] = {}  # by id; a cancelled segment stays until the next report
        self.sent_ahead: dict[int, QueuedSegment] = {}  # by id: encoded here, but still queued
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
        return self.running.get(segment_id) or self.sent_ahead.get(segment_id)

    def remove_resolved(self) -> None:
        """Remove segments that were cancelled, or resolved otherwise."""
        with self._lock:
            for segment in [running for running in self.running.values() if running.done()]:
                self.remove(segment.segment_id)
                if not segment.is_end_recorded:  # its done callback will not find it here
                    self.dropped_ids.append(segment.segment_id)

    def send(self, command: BatchCommand) -> None:
        """Send a command, over a new connection if the last one was closed while the batch was empty."""
        num_others = sum(not running.done() for running in self.running.values()) - len(command.new_segments)
        if num_others <= 0 and self._connection is not None and self._poller.has_hung_up(self.fileno):
            self.disconnect()
        if self._connection is None and command.new_segments:
            self._connection = self._worker.connect()
            self._poller.register(self._connection.fileno())
        if self._connection is not None:
            self._connection.send(command)

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
