"""The decoding process as the server sees it: started, connected to, started again when it has ended, its log.

`docs/internals/decoding-process.md` says why it is a process of its own.
"""

import contextlib
import logging
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, Final

from dragoman_service.errors import DragomanError, DrainingError, EngineError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.worker.messages import Connect, LoadCommand, Loaded, LoadFailed, format_digest

log = logging.getLogger(__name__)

_END_TIMEOUT_S: Final = 5.0
"""For a process whose connection was closed to end by itself."""

_SOUND_AGE_S: Final = 10.0
"""A process that ends sooner is started again only when a segment needs it: it may end as soon the next time."""

_LOOK_EACH_S: Final = 0.2
"""While it loads: for how long it has, and whether it still should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimits:
    """What ends the loading and warming up of a network."""

    timeout_s: float = math.inf
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set once the server ends."""


class DecodingProcess:
    """A process that has loaded a network; any thread may use it."""

    def __init__(
        self,
        command: LoadCommand,
        *,
        name: str,
        module: str,
        on_end: Callable[["DecodingProcess"], None],
        on_failure: Callable[[str], None] = lambda _: None,
        limits: LoadLimits | None = None,
    ) -> None:
        """Start `python -m module` and wait until it has loaded the network of the model `name`.

        If it ends before it is closed, or must be killed, `on_failure` is called once with the cause; if that was after
        it had loaded, `on_end` is called in a thread of its own.

        Raises:
            BundleError, ConfigError: if the network cannot be loaded from this bundle with these settings.
            EngineError: if it ends before it has loaded, takes too long, or loading fails otherwise.
            DrainingError: if the server ends.
        """
        self._name = name
        self._on_end, self._on_failure = on_end, on_failure
        self._limits = limits or LoadLimits()
        self._is_closed = self._has_failed = False
        self._began_s = time.monotonic()
        self._lock = threading.Lock()  # of what is sent
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - nothing of it comes from outside
                [sys.executable, "-m", module, str(theirs.fileno()), format_digest(type(command.settings))],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=(theirs.fileno(),),
                process_group=0,  # signals to the group are for the server, which answers its callers first
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._socket = ours
        self._control: Connection[Any, Any] = Connection(os.dup(ours.fileno()))
        try:
            self.loaded = self._load(command)
        except BaseException:
            self._process.kill()  # it may be in native code that does not end by itself
            self.close()
            raise
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
        """Return the connection to a new batch; OSError if the process has ended."""
        if self._has_failed:
            raise ConnectionResetError  # it may take a moment to end
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

    def kill(self, cause: str) -> None:
        """End it at once, as what it runs does not end by itself; `cause` is a label of the metric."""
        log.error("decoding process killed", extra={"model": self._name, "pid": self.pid, "cause": cause})
        self.note_failure(cause)
        self._process.kill()

    def note_failure(self, cause: str = "ended") -> None:
        """Count it as failed, unless it is counted or was closed."""
        with self._lock:
            is_news = not (self._has_failed or self._is_closed)
            self._has_failed |= is_news
        if is_news:
            self._on_failure(cause)

    def check_load(self) -> None:
        """Raise if it should have loaded the network and warmed it up by now, or need not any more; then it is killed.

        Raises:
            EngineError, DrainingError: in this order.
        """
        if self.age_s > self._limits.timeout_s:
            self.kill("load_timeout")
            limit = f"{self._limits.timeout_s:g} s (models.load_timeout_s)"
            raise EngineError(f"the network was not loaded and warmed up within {limit}")
        if self._limits.stopping.is_set():
            self._is_closed = True
            self._process.kill()
            raise DrainingError

    def close(self) -> None:
        """End it, if need be by force."""
        with self._lock:
            self._is_closed = True
            with contextlib.suppress(OSError):  # not connected, as the process has ended
                self._socket.shutdown(socket.SHUT_RDWR)  # which ends the thread that reads from it, too
            self._socket.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _load(self, command: LoadCommand) -> Loaded:
        try:
            self._control.send(command)
            while True:
                self.check_load()
                if not self._control.poll(_LOOK_EACH_S):
                    continue
                match self._control.recv():
                    case Loaded() as loaded:
                        return loaded
                    case LoadFailed(error=error):
                        raise error
                    case logging.LogRecord() as record:
                        log_here(record)
        except (EOFError, OSError) as error:
            self.note_failure()
            code = self._process.wait()
            raise EngineError(f"the decoding process ended with {code} before it had loaded the network") from error

    def _follow(self) -> None:
        """Log what it logs, until it ends."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                log_here(self._control.recv())
        if self._is_closed:
            return
        self.note_failure()
        code = self._process.wait()
        log.error("decoding process ended", extra={"model": self._name, "pid": self.pid, "exit_code": code})
        self._on_end(self)


class ProcessCore:
    """An engine core in a process of its own, which is started again whenever it has ended; any thread may use it."""

    def __init__(
        self, command: LoadCommand, *, name: str, module: str, metrics: Metrics, limits: LoadLimits | None = None
    ) -> None:
        """Start the process and wait until it has loaded the network; arguments and errors as `DecodingProcess`."""
        self._command = command
        self._limits = limits
        self._name = name
        self._module = module
        self._metrics = metrics
        self._lock = threading.Lock()
        self._is_closed = False
        self.process = self._started()
        """The one that decodes now."""

    def connect(self) -> "Connection[Any, Any]":
        """Return a connection to a new batch, of a new process if need be; EngineError if there is none."""
        with self._lock:
            if self._is_closed:
                raise EngineError("decoding has ended")
            try:
                return self.process.connect()
            except OSError:
                self._restart()
                return self.process.connect()

    def resident_bytes(self) -> int:
        """Return the memory of the process that decodes now; 0 if it has ended."""
        return self.process.resident_bytes

    def kill(self, cause: str) -> bool:
        """Kill the process, which is started again; return True, as it can be killed."""
        self.process.kill(cause)
        return True

    def check_load(self) -> None:
        """Raise as `DecodingProcess.check_load`."""
        self.process.check_load()

    def close(self, timeout_s: float = _END_TIMEOUT_S) -> None:  # noqa: ARG002 - a process ends when it is told to
        """End the process."""
        with self._lock:
            self._is_closed = True
            self.process.close()

    def _started(self) -> DecodingProcess:
        return DecodingProcess(
            self._command,
            name=self._name,
            module=self._module,
            on_end=self._ended,
            on_failure=lambda cause: self._metrics.decoding_process_failures.labels(cause).inc(),
            limits=self._limits,
        )

    def _ended(self, process: DecodingProcess) -> None:
        with self._lock:
            if process is not self.process or self._is_closed or process.age_s < _SOUND_AGE_S:
                return
            try:
                self._restart()
            except EngineError:
                log.exception("decoding process cannot be started again")

    def _restart(self) -> None:
        self.process.note_failure()
        self.process.close()
        try:
            self.process = self._started()
        except DragomanError as error:
            raise EngineError(str(error)) from error
        self._metrics.decoding_process_restarts.inc()
        log.warning("decoding process started again", extra={"model": self._name, "pid": self.process.pid})


def log_here(record: logging.LogRecord) -> None:
    """Log a record of another process as if it had been made in this one."""
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
