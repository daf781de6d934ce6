"""Hosted batches without a process: each is decoded by a thread of the test, reached over a socket all the same."""

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from service.decoding.running_batch import EndedSegment
from service.decoding.step_model import ModelLimits, StepModel
from service.engine.core import BatchServer, LocalBatch, Usage
from service.engine.process import HostedBatch
from service.engine.protocol import Batch, Clock, Newcomer, Orders, Report, Turn
from tests.fakes import make_segment

TIMEOUT_S = 30.0  # only reached by a test that would otherwise hang
CACHE_BYTES = 4096

_Result = TypeVar("_Result")


class ThreadedBatches:
    """A `BatchSource` and what stands for its process: it can die, with all of its batches."""

    def __init__(self, model: StepModel, clock: Clock = time.monotonic) -> None:
        self.threads: list[threading.Thread] = []
        """One for each connection ever made."""

        self.connections: list[Connection[Any, Any]] = []
        """The ends that belong to hosted batches."""

        self.reports: list[Report] = []
        """All that hosted batches were told."""

        self._model = model
        self._clock = clock
        self._lock = threading.Lock()
        self._alive: list[socket.socket] = []

    @property
    def limits(self) -> ModelLimits:
        return self._model.limits

    def new_batch(self, clock: Clock) -> HostedBatch:
        """Return an empty batch; it connects when it is used."""
        assert clock is self._clock
        return HostedBatch(self.connect, note=self.reports.append)

    def connect(self) -> "Connection[Any, Any]":
        """Start a thread for a batch and return the connection to it."""
        ours, theirs = socket.socketpair()
        server = BatchServer(
            LocalBatch(self._model, self._clock),
            Connection(os.dup(theirs.fileno())),
            niceness=0,
            clock=self._clock,
            usage=Usage(lambda: CACHE_BYTES),
        )
        thread = threading.Thread(target=_serve, args=(server, theirs), name="hosted", daemon=True)
        connection: Connection[Any, Any] = Connection(ours.detach())
        with self._lock:
            self._alive.append(theirs)
            self.threads.append(thread)
            self.connections.append(connection)
        thread.start()
        return connection

    def die(self) -> None:
        """Let both ends of every connection see the end at once; who connects from now on finds a new process."""
        with self._lock:
            dying, self._alive = self._alive, []
        for connected in dying:
            _shut_down(connected)

    def close(self) -> None:
        """End all threads; may be done again."""
        self.die()
        for thread in list(self.threads):
            thread.join(TIMEOUT_S)
            assert not thread.is_alive(), "a batch goes on that nobody is connected to"


def _serve(server: BatchServer, connected: socket.socket) -> None:
    with connected:
        server.run()


def _shut_down(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:  # its thread has ended
        return


def begin(function: Callable[..., _Result], *arguments: Any) -> "Future[_Result]":
    """Call something in a thread that keeps neither a test nor the process from ending."""
    future: Future[_Result] = Future()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=call, name="bounded", daemon=True).start()
    return future


def exchange(batch: Batch, orders: Orders | None = None) -> list[Turn]:
    """Exchange with a batch, but do not wait forever."""
    return list(begin(batch.exchange, orders or Orders()).result(TIMEOUT_S))


def joining(*keys: int, deadline_s: float = float("inf"), **search: Any) -> Orders:
    """Return orders with newcomers of these keys; their sources differ."""
    return Orders(
        newcomers=tuple(
            Newcomer(key=key, segment=make_segment(4 + key % 5, 5, **search), deadline_s=deadline_s) for key in keys
        )
    )


def decode(batch: Batch, orders: Orders) -> Mapping[int, EndedSegment]:
    """Let newcomers join and exchange until they have all ended; return how, by key."""
    ended: dict[int, EndedSegment] = {}
    turns = exchange(batch, orders)
    while True:
        for turn in turns:
            assert not turn.fault, turn.fault
            ended.update({one.handle: one for one in turn.ended})
        if len(ended) >= len(orders.newcomers):
            return ended
        turns = exchange(batch)
