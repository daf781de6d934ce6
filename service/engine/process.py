"""A decoding process as the server sees it: started, connected to, ended."""

import contextlib
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, Final

from service.bundle import Bundle
from service.engine.protocol import Clock, Connect, Loaded, LoadOrder, NotLoaded, Orders, Report, Turn, format_digest
from service.errors import DragomanError, EngineError
from service.models.names import full_name
from service.runtime.device import Placement
from service.runtime.model_limits import model_limits
from service.runtime.settings import RuntimeSettings
from service.telemetry.metrics import Metrics


class ConnectionHandler(QueueHandler):
    """Sends records over a connection, prepared so that they can be pickled."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        """Use a connection; while this sends, nobody else may."""
        super().__init__(connection)  # type: ignore[arg-type] # only `enqueue` touches it
        self.setFormatter(logging.Formatter("%(message)s"))  # level and logger are told beside it

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return a copy that can be pickled, with nothing in it that the record itself does not have."""
        prepared: logging.LogRecord = super().prepare(record)
        del prepared.message  # is `msg` by now
        return prepared

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record."""
        self.queue.send(record)  # type: ignore[attr-defined]


def log_here(record: logging.LogRecord) -> None:
    """Log a record of another process as if it had been made in this one."""
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


log = logging.getLogger(__name__)

_CHILD: Final = "service.engine.core"
_END_TIMEOUT_S: Final = 5.0
"""For a process whose connection was closed to end by itself."""


class DecodingProcess:
    """A process that has loaded a network; any thread may use it."""

    def __init__(self, order: LoadOrder, *, on_end: Callable[["DecodingProcess"], None]) -> None:
        """Start it and wait until it has loaded the network.

        Args:
            order: what to load.
            on_end: called in a thread of its own if it ends before it is closed.

        Raises:
            BundleError: if the bundle does not fit.
            ConfigError: if the settings ask for what this machine or ONNX Runtime cannot do.
            EngineError: if it ends before it has loaded, or loading fails otherwise.
        """
        self._model = full_name(order.directory.parent.name, order.directory.name)
        self._on_end = on_end
        self._is_closed = False
        self._began_s = time.monotonic()
        self._lock = threading.Lock()  # of what is sent
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - nothing of it comes from outside
                [sys.executable, "-m", _CHILD, str(theirs.fileno()), format_digest()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=(theirs.fileno(),),
                process_group=0,  # signals to the group are for the server, which answers everybody first
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._socket = ours
        self._control: Connection[Any, Any] = Connection(os.dup(ours.fileno()))
        try:
            loaded = self._loaded(order)
        except BaseException:
            self.close()
            raise
        self.placement: Placement = loaded.placement
        self.weights_bytes: int = loaded.weights_bytes
        threading.Thread(target=self._follow, name="decoding-process-log", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        """Memory it takes; 0 if it has ended, or where this cannot be told."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        except OSError:
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def age_s(self) -> float:
        """Since it was started."""
        return time.monotonic() - self._began_s

    def connect(self) -> "Connection[Any, Any]":
        """Return the connection to a new batch.

        Raises:
            OSError: if the process has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with self._lock:
                    self._control.send(Connect())
                    send_handle(self._control, theirs.fileno(), self.pid)
            except BaseException:
                ours.close()
                raise
        return Connection(ours.detach())

    def close(self) -> None:
        """End it, if need be by force."""
        with self._lock:
            self._is_closed = True
            with contextlib.suppress(OSError):  # not connected, as the process has ended
                self._socket.shutdown(socket.SHUT_RDWR)  # which whoever reads from it notices, too
            self._socket.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _loaded(self, order: LoadOrder) -> Loaded:
        self._control.send(order)
        while True:
            match self._received():
                case Loaded() as loaded:
                    return loaded
                case NotLoaded(error=error):
                    raise error
                case logging.LogRecord() as record:
                    log_here(record)

    def _received(self) -> object:
        try:
            return self._control.recv()
        except (EOFError, OSError) as error:
            code = self._process.wait()
            raise EngineError(f"the decoding process ended with {code} before it had loaded the network") from error

    def _follow(self) -> None:
        """Log what it logs, until it ends."""
        try:
            while True:
                log_here(self._control.recv())
        except (EOFError, OSError):
            pass
        if self._is_closed:
            return
        code = self._process.wait()
        log.error("decoding process ended", extra={"model": self._model, "pid": self.pid, "exit_code": code})
        self._on_end(self)


ConnectBatch = Callable[[], "Connection[Orders, Report]"]
"""Makes a connection to an empty batch; raises EngineError if there is no process and none can be started."""

_MAX_WAKES: Final = 64


class HostedBatch:
    """Gives orders over a connection, and waits for what was done; connects anew if the process has ended."""

    def __init__(self, connect: ConnectBatch, *, note: Callable[[Report], None]) -> None:
        """Connect with the first exchange.

        Args:
            connect: to a batch.
            note: told of each report.
        """
        self._connect = connect
        self._note = note
        self._connection: Connection[Orders, Report] | None = None
        self._keys: set[int] = set()  # of who is in the batch
        self._wakes, self._waker = socket.socketpair()  # objects: a closed one is never taken for another file
        self._waker.setblocking(False)
        self._is_woken = False
        self._is_interrupted = False
        self._has_asked = False  # for a report that has not come yet
        self._poll = select.poll()
        self._poll.register(self._wakes, select.POLLIN)

    def exchange(self, orders: Orders) -> Sequence[Turn]:
        """Send orders, if there are any, and return what the batch reports; nothing if interrupted before it does.

        Raises:
            EngineError: if the process has ended, with all who were in the batch.
        """
        try:
            self._send(orders)
            return [turn for report in self._reports() for turn in report.turns]
        except (EOFError, OSError) as error:
            self._disconnect()
            raise EngineError("the decoding process has ended") from error

    def wake(self) -> None:
        """Let an exchange that waits ask for a report, which comes with the end of the step."""
        if not self._is_woken:
            self._is_woken = True
            self._signal()

    def interrupt(self) -> None:
        """Let exchanges return at once from now on."""
        self._is_interrupted = True
        self._signal()

    def reset(self) -> None:
        """Let the process forget the batch; the next exchange connects anew."""
        self._disconnect()

    def adopt_thread(self, *, niceness: int) -> None:
        """Do nothing: it is another thread that decodes."""

    def close(self) -> None:
        """Let the process forget the batch."""
        self._disconnect()
        self._wakes.close()
        self._waker.close()

    def _signal(self) -> None:
        with contextlib.suppress(OSError):  # full, which wakes as well, or closed
            self._waker.send(b"\0")

    def _send(self, orders: Orders) -> None:
        if not orders:
            return
        if self._connection is not None and not self._keys and self._has_hung_up():
            self._disconnect()  # while nobody was in it: nobody need know
        if self._connection is None:
            self._connection = self._connect()
            self._poll.register(self._connection.fileno(), select.POLLIN)
        self._keys.update(newcomer.key for newcomer in orders.newcomers)
        self._keys.difference_update(orders.dropped)
        self._connection.send(orders)

    def _has_hung_up(self) -> bool:
        return any(events & select.POLLHUP for _, events in self._poll.poll(0))

    def _reports(self) -> list[Report]:
        """Return what has come, waiting for it."""
        if self._connection is None:
            raise EOFError
        reports: list[Report] = []
        timeout_ms = None
        while not self._is_interrupted and (events := dict(self._poll.poll(timeout_ms))):
            if self._wakes.fileno() in events:
                self._wakes.recv(_MAX_WAKES)
                self._is_woken = False  # only now: of whoever comes from here on the next wake tells
                if not self._has_asked:
                    self._has_asked = True
                    self._connection.send(Orders())
            if self._connection.fileno() in events:
                try:
                    reports.append(self._taken_in(self._connection.recv()))
                except (EOFError, OSError):
                    if not reports:
                        raise
                    break  # what was done before is told first, the end the next time
            timeout_ms = 0
        return reports

    def _taken_in(self, report: Report) -> Report:
        self._note(report)
        self._has_asked = False
        for turn in report.turns:
            self._keys.difference_update(turn.late, turn.lost, (ended.handle for ended in turn.ended))
        return report

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._poll.unregister(self._connection.fileno())
            self._connection.close()
        self._connection = None
        self._has_asked = False
        self._keys.clear()


_SOUND_AGE_S: Final = 10.0
"""A process that ends sooner is started again only when somebody needs it: it may end as soon the next time."""


class HostedBatches:
    """A decoding process, started again whenever it has ended, and the batches in it; any thread may use it."""

    def __init__(self, bundle: Bundle, settings: RuntimeSettings, *, niceness: int, metrics: Metrics) -> None:
        """Start the process and wait until it has loaded the network.

        Raises:
            BundleError: if a graph does not fit the manifest, or the precision asked for is not there.
            ConfigError: if the settings ask for what this machine or ONNX Runtime cannot do.
            EngineError: if the process ends before it has loaded the network.
        """
        self.limits = model_limits(bundle.manifest)
        """What the batches take."""
        self._full_name = full_name(bundle.manifest.name, bundle.manifest.version)
        self._metrics = metrics
        self._order = LoadOrder(
            directory=bundle.directory,
            settings=settings,
            niceness=niceness,
            log_level=logging.getLogger().getEffectiveLevel(),
        )
        self._lock = threading.Lock()
        self._is_closed = False
        self.cache_bytes = 0
        """Bytes that the caches of all batches take, as last reported."""
        self._process = self._started()

    @property
    def placement(self) -> Placement:
        """Device and precision that were chosen."""
        return self._process.placement

    @property
    def weights_bytes(self) -> int:
        """Size of the files that hold graphs and weights of the precision."""
        return self._process.weights_bytes

    @property
    def resident_bytes(self) -> int:
        """Memory of the process; 0 if it has ended, or where this cannot be told."""
        return self._process.resident_bytes

    def new_batch(self, clock: Clock) -> HostedBatch:
        """Return an empty batch.

        Raises:
            ValueError: if the clock is not that of all processes of the machine.
        """
        if clock is not time.monotonic:
            raise ValueError("another process goes by time.monotonic")
        return HostedBatch(self._connect, note=self._note)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._is_closed = True
            self._process.close()

    def _started(self) -> DecodingProcess:
        return DecodingProcess(self._order, on_end=self._on_end)

    def _connect(self) -> "Connection[Any, Any]":
        """Return a connection to a new batch, of a new process if need be."""
        with self._lock:
            if self._is_closed:
                raise EngineError("decoding has ended")
            try:
                return self._process.connect()
            except OSError:
                self._restart()
                return self._process.connect()

    def _on_end(self, process: DecodingProcess) -> None:
        with self._lock:
            if process is not self._process or self._is_closed or process.age_s < _SOUND_AGE_S:
                return
            try:
                self._restart()
            except EngineError:
                log.exception("decoding process cannot be started again")

    def _restart(self) -> None:
        self._process.close()
        try:
            self._process = self._started()
        except EngineError:
            raise
        except DragomanError as error:
            raise EngineError(str(error)) from error
        self.cache_bytes = 0
        self._metrics.decoding_process_restarts.inc()
        model = self._full_name
        log.warning("decoding process started again", extra={"model": model, "pid": self._process.pid})

    def _note(self, report: Report) -> None:
        self.cache_bytes = report.cache_bytes
        self._metrics.decoding_process_cpu_seconds.inc(report.cpu_s)
