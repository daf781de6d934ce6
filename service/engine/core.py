"""A batch that is decoded by whoever gives it orders: newcomers are encoded, all step, who has ended or is late leaves.

Whatever the model does, it is told in the turn: an exception ends those who were in the batch, and the next turn begins
with a fresh one.
"""

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from queue import Empty, SimpleQueue
from typing import Any, Final

from service.bundle import open_bundle
from service.decoding.running_batch import EndedSegment, Engine
from service.decoding.step_model import ModelLimits, StepModel
from service.engine.process import ConnectionHandler
from service.engine.protocol import (
    BatchLoad,
    Clock,
    Loaded,
    LoadOrder,
    Newcomer,
    NotLoaded,
    Orders,
    Report,
    Turn,
    format_digest,
)
from service.errors import DragomanError, EngineError
from service.runtime.onnx_model import OnnxStepModel
from service.threads import lower_priority


class Usage:
    """CPU time and caches of this process; any thread may ask."""

    def __init__(self, cache_bytes: Callable[[], int], cpu_clock: Callable[[], float] = time.process_time) -> None:
        """Begin with the CPU time taken so far as not yet told."""
        self.cache_bytes = cache_bytes
        """Tells the bytes of all caches."""
        self._cpu_clock = cpu_clock
        self._lock = threading.Lock()
        self._told_s = 0.0

    def untold_cpu_s(self) -> float:
        """Return the CPU time since this was asked last, in seconds."""
        with self._lock:
            told_s, self._told_s = self._told_s, self._cpu_clock()
            return self._told_s - told_s


_EMPTY: Final = BatchLoad()


class LocalBatch:
    """The segments of one batch and the engine that decodes them."""

    def __init__(self, model: StepModel, clock: Clock) -> None:
        self._model = model
        self._clock = clock
        self._engine: Engine | None = None  # made when needed: making it may fail like any other use of the model
        self._running: dict[int, Newcomer] = {}  # by the engine's handle
        self._load = _EMPTY

    @property
    def num_segments(self) -> int:
        """Segments in the batch."""
        return len(self._running)

    def exchange(self, orders: Orders) -> Sequence[Turn]:
        """Obey, and take one turn."""
        return (self.turn(orders),)

    def turn(self, orders: Orders) -> Turn:
        """Drop whom nobody waits for, start newcomers, take one step, drop who is late."""
        began_s = self._clock()
        turn = Turn()
        try:
            self._drop(handle for handle, newcomer in self._running.items() if newcomer.key in orders.dropped)
            self._start(orders.newcomers, turn)
            if self._running:
                self._step(turn)
                self._drop_late(turn)
        except Exception:  # noqa: BLE001 - one bad batch must strand neither its callers nor the decoding thread
            turn.fault = traceback.format_exc()
            turn.lost = tuple({newcomer.key for newcomer in (*self._running.values(), *orders.newcomers)})
            self.reset()
        turn.busy_s = self._clock() - began_s
        return turn

    def wake(self) -> None:
        """Do nothing: an exchange is a step."""

    def interrupt(self) -> None:
        """Do nothing: nothing interrupts a step."""

    def reset(self) -> None:
        """Begin with an empty batch, and give up the memory of the one before."""
        self._engine, self._running, self._load = None, {}, _EMPTY

    def adopt_thread(self, *, niceness: int) -> None:
        """Let the calling thread stand back: it is the one that decodes."""
        lower_priority(niceness)

    def close(self) -> None:
        """Do nothing: its memory is freed with it."""

    def _require_engine(self) -> Engine:
        if self._engine is None:
            self._engine = Engine(self._model)
        return self._engine

    def _start(self, newcomers: Sequence[Newcomer], turn: Turn) -> None:
        if not newcomers:
            return
        turn.encode_began_s = self._clock()
        turn.newcomers = tuple(newcomer.key for newcomer in newcomers)
        turn.num_encoded_tokens = sum(len(newcomer.segment.source_ids) for newcomer in newcomers)
        handles = self._require_engine().start([newcomer.segment for newcomer in newcomers])
        turn.encode_s = self._clock() - turn.encode_began_s
        self._running.update(zip(handles, newcomers, strict=True))
        self._measure()

    def _step(self, turn: Turn) -> None:
        turn.load = self._load
        began_s = self._clock()
        report = self._require_engine().step()
        turn.step_ended_s = self._clock()
        turn.step_s = turn.step_ended_s - began_s
        turn.num_rows, turn.step_rows = turn.load.live_rows, report.num_segments * report.num_rows
        if report.ended:
            turn.ended = tuple(self._leaves(ended, turn) for ended in report.ended)
            self._measure()

    def _leaves(self, ended: EndedSegment, turn: Turn) -> EndedSegment:
        """Take one who has ended out of the books; return it under its key."""
        newcomer = self._running.pop(ended.handle)
        if ended.hypotheses:
            turn.num_tokens += len(newcomer.segment.source_ids)
            turn.num_steps += ended.num_steps
        return replace(ended, handle=newcomer.key)

    def _drop_late(self, turn: Turn) -> None:
        now_s = self._clock()
        late = [handle for handle, newcomer in self._running.items() if newcomer.deadline_s <= now_s]
        turn.late = tuple(self._running[handle].key for handle in late)
        self._drop(late)

    def _drop(self, handles: Iterable[int]) -> None:
        gone = list(handles)
        if not gone:
            return
        self._require_engine().drop(gone)
        for handle in gone:
            del self._running[handle]
        self._measure()

    def _measure(self) -> None:
        self._load = BatchLoad.of(newcomer.segment for newcomer in self._running.values())


class LocalBatches:
    """Makes batches that the decoding threads of this process step themselves."""

    def __init__(self, model: StepModel) -> None:
        """Make batches of a model."""
        self._model = model

    @property
    def limits(self) -> ModelLimits:
        """What the model takes."""
        return self._model.limits

    def new_batch(self, clock: Clock) -> LocalBatch:
        """Return an empty batch that goes by a clock."""
        return LocalBatch(self._model, clock)

    def close(self) -> None:
        """Do nothing: the model's memory is freed with it."""


_REPORT_INTERVAL_S: Final = 0.02
"""Most time between two reports of a batch that somebody is in, but for that of a step: so late is it noticed that
somebody has left, and no more often is the server disturbed by a batch that has nothing to tell."""


class BatchServer:
    """Steps a batch as long as somebody is in it, and waits for orders otherwise."""

    def __init__(
        self,
        batch: LocalBatch,
        connection: "Connection[Report, Orders]",
        *,
        niceness: int,
        clock: Clock,
        usage: Usage,
    ) -> None:
        """Take a batch and the connection to whom it belongs."""
        self._batch = batch
        self._connection = connection
        self._niceness = niceness
        self._clock = clock
        self._usage = usage
        self._orders: SimpleQueue[Orders | None] = SimpleQueue()  # None: there will be no more
        self._turns: list[Turn] = []
        self._is_asked = False
        self._reported_at_s = 0.0

    def run(self) -> None:
        """Serve until the other end is closed."""
        receiver = threading.Thread(target=self._receive, name="orders", daemon=True)
        receiver.start()
        lower_priority(self._niceness)
        try:
            while (orders := self._next_orders()) is not None:
                self._turns.append(self._batch.turn(orders))
                if self._is_due():
                    self._report()
        except OSError:  # nobody listens any more
            pass
        finally:
            self._hang_up()  # which the receiver notices; to close what it reads from would give its number to others
            receiver.join()
            self._connection.close()

    def _hang_up(self) -> None:
        with socket.socket(fileno=os.dup(self._connection.fileno())) as end, contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> None:
        """Take orders off the connection as they come, so that whoever gives them never waits for a step."""
        try:
            while True:
                self._orders.put(self._connection.recv())
        except (EOFError, OSError):
            self._orders.put(None)

    def _next_orders(self) -> Orders | None:
        """Return all orders given so far as one, waiting for some if nobody is in the batch; None after the last.

        Empty ones among them ask for a report after this turn.
        """
        given = []
        try:
            given.append(self._orders.get(block=not self._batch.num_segments))
            while True:
                given.append(self._orders.get_nowait())
        except Empty:
            pass
        orders = [one for one in given if one is not None]
        self._is_asked = not all(orders)
        return merged(orders) if len(orders) == len(given) else None

    def _is_due(self) -> bool:
        turn = self._turns[-1]
        is_news = bool(turn.ended or turn.late or turn.fault) or not self._batch.num_segments
        return is_news or self._is_asked or self._clock() - self._reported_at_s >= _REPORT_INTERVAL_S

    def _report(self) -> None:
        usage = self._usage
        self._connection.send(
            Report(turns=tuple(self._turns), cache_bytes=usage.cache_bytes(), cpu_s=usage.untold_cpu_s())
        )
        self._turns = []
        self._reported_at_s = self._clock()


def merged(orders: list[Orders]) -> Orders:
    """Return orders that were given one after the other as one; who was dropped before he could join does not."""
    dropped = tuple(key for one in orders for key in one.dropped)
    newcomers = tuple(newcomer for one in orders for newcomer in one.newcomers if newcomer.key not in dropped)
    return Orders(newcomers=newcomers, dropped=dropped)


_OTHER_FILES = "the installed service is not the one that the server was started from: restart the server"


def main() -> None:
    """Do as the other end of the socket says."""
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever ends the server gets all answers first
        signal.signal(number, signal.SIG_IGN)
    control: Connection[Any, Any] = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, OSError):  # the server has closed, or is gone
        _serve(control)
    os._exit(0)  # at once: threads in a step are waited for by nobody


def _serve(control: "Connection[Any, Any]") -> None:
    if sys.argv[2] != format_digest():
        control.recv_bytes()  # an order that cannot be read
        control.send(NotLoaded(error=EngineError(_OTHER_FILES)))
        return
    order: LoadOrder = control.recv()
    logging.basicConfig(level=order.log_level, handlers=[ConnectionHandler(control)])
    model = _load(order, control)
    if model is None:
        return
    gc.freeze()
    usage = Usage(lambda: model.cache_bytes)
    while True:
        control.recv()
        connection: Connection[Any, Any] = Connection(recv_handle(control))
        server = BatchServer(
            LocalBatch(model, time.monotonic),
            connection,
            niceness=order.niceness,
            clock=time.monotonic,
            usage=usage,
        )
        threading.Thread(target=server.run, name="decode", daemon=True).start()


def _load(order: LoadOrder, control: "Connection[Any, Any]") -> OnnxStepModel | None:
    try:
        model = OnnxStepModel(open_bundle(order.directory), order.settings)
    except DragomanError as error:
        control.send(NotLoaded(error=error))
    except Exception as error:  # noqa: BLE001 - told to the server, whoever raised it
        control.send(NotLoaded(error=EngineError(f"{type(error).__name__}: {error}")))
    else:
        control.send(Loaded(placement=model.placement, weights_bytes=model.weights_bytes))
        return model
    return None


if __name__ == "__main__":
    main()
