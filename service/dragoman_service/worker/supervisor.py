"""Supervisor of the worker process: starts, connects and restarts it, and forwards its log records.

`docs/internals/worker.md` describes the processes.
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
from dragoman_service.worker.messages import LoadCommand, Loaded, format_digest

log = logging.getLogger(__name__)

_EXIT_TIMEOUT_S: Final = 5.0  # after the connection was closed
_STABLE_AGE_S: Final = 10.0  # a process that exits earlier is restarted only when a segment needs it
_POLL_INTERVAL_S: Final = 0.2  # while the process loads the model


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimits:
    """Conditions that abort the loading and the warm-up of a model."""

    timeout_s: float = math.inf
    stopping: threading.Event = field(default_factory=threading.Event)  # set when the server stops


class WorkerProcess:
    """A worker process that has loaded a model; any thread may use it."""

    def __init__(
        self,
        command: LoadCommand,
        *,
        name: str,
        module: str,
        on_exit: Callable[["WorkerProcess"], None],
        on_failure: Callable[[str], None] = lambda _: None,
        limits: LoadLimits | None = None,
    ) -> None:
        """Start `python -m module` and wait until it has loaded the model `name`.

        If the process exits before `close`, or must be killed, `on_failure` is called once with the cause. If the model
        was already loaded, `on_exit` is also called, in a thread of its own.

        Raises:
            BundleError, ConfigError: if the model cannot be loaded from this bundle with these settings.
            EngineError: if the process exits before the model is loaded, or loading takes too long or fails otherwise.
            DrainingError: if the server stops.
        """
        self._name = name
        self._on_exit, self._on_failure = on_exit, on_failure
        self._limits = limits or LoadLimits()
        self._is_closed = self._has_failed = False
        self._started_at_s = time.monotonic()
        self._lock = threading.Lock()  # guards the control connection
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - no untrusted input
                [sys.executable, "-m", module, str(theirs.fileno()), format_digest(type(command.settings))],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=(theirs.fileno(),),
                process_group=0,  # the server drains after a signal to its process group
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._socket = ours
        self._control: Connection[Any, Any] = Connection(os.dup(ours.fileno()))
        try:
            self.loaded = self._load(command)
        except BaseException:
            self._process.kill()  # native code may not return
            self.close()
            raise
        threading.Thread(target=self._forward_log, name="worker-log", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        """Resident memory; 0 if the process has exited, or without `/proc`."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        except OSError:
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_at_s

    def connect(self) -> "Connection[Any, Any]":
        """Return the connection to a new batch; OSError if the process has exited."""
        if self._has_failed:
            raise ConnectionResetError  # a killed process may take a moment to exit
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with self._lock:
                    send_handle(self._control, theirs.fileno(), self.pid)
            except BaseException:
                ours.close()
                raise
        return Connection(ours.detach())

    def kill(self, cause: str) -> None:
        """Kill a process that is stuck; `cause` is a label of the metric."""
        log.error("worker process killed", extra={"model": self._name, "pid": self.pid, "cause": cause})
        self.record_failure(cause)
        self._process.kill()

    def record_failure(self, cause: str = "ended") -> None:
        """Report the failure of the process, once, unless it was closed."""
        with self._lock:
            is_first = not (self._has_failed or self._is_closed)
            self._has_failed |= is_first
        if is_first:
            self._on_failure(cause)

    def check_load(self) -> None:
        """Kill the process if loading and warm-up take too long or the server stops.

        Raises:
            EngineError: if loading and warm-up exceed the timeout.
            DrainingError: if the server stops.
        """
        if self.age_s > self._limits.timeout_s:
            self.kill("load_timeout")
            limit = f"{self._limits.timeout_s:g} s (models.load_timeout_s)"
            raise EngineError(f"model was not loaded and warmed up within {limit}")
        if self._limits.stopping.is_set():
            self._is_closed = True
            self._process.kill()
            raise DrainingError

    def close(self) -> None:
        """End the process; kill it if it does not exit in time."""
        with self._lock:
            self._is_closed = True
            with contextlib.suppress(OSError):  # not connected if the process has exited
                self._socket.shutdown(socket.SHUT_RDWR)  # also ends the thread that reads from it
            self._socket.close()
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _load(self, command: LoadCommand) -> Loaded:
        try:
            self._control.send(command)
            while True:
                self.check_load()
                if not self._control.poll(_POLL_INTERVAL_S):
                    continue
                match self._control.recv():
                    case Loaded() as loaded:
                        return loaded
                    case DragomanError() as error:
                        raise error
                    case logging.LogRecord() as record:
                        log_record(record)
        except (EOFError, OSError) as error:
            self.record_failure()
            code = self._process.wait()
            raise EngineError(f"worker process exited with {code} before the model was loaded") from error

    def _forward_log(self) -> None:
        """Forward log records until the process exits."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                log_record(self._control.recv())
        if self._is_closed:
            return
        self.record_failure()
        code = self._process.wait()
        log.error("worker process exited", extra={"model": self._name, "pid": self.pid, "exit_code": code})
        self._on_exit(self)


class WorkerSupervisor:
    """Runs a worker process and restarts it whenever it has exited; any thread may use it."""

    def __init__(
        self, command: LoadCommand, *, name: str, module: str, metrics: Metrics, limits: LoadLimits | None = None
    ) -> None:
        """Start the process and wait until it has loaded the model; arguments and errors as `WorkerProcess`."""
        self._command = command
        self._limits = limits
        self._name = name
        self._module = module
        self._metrics = metrics
        self._lock = threading.Lock()
        self._is_closed = False
        self.process = self._start()  # the current process

    def connect(self) -> "Connection[Any, Any]":
        """Return a connection to a new batch, after a restart if necessary; EngineError if that fails."""
        with self._lock:
            if self._is_closed:
                raise EngineError("worker is closed")
            try:
                return self.process.connect()
            except OSError:
                self._restart()
                return self.process.connect()

    def resident_bytes(self) -> int:
        """Return the resident memory of the current process; 0 if it has exited."""
        return self.process.resident_bytes

    def kill(self, cause: str) -> bool:
        """Kill the process, which is then restarted; return True."""
        self.process.kill(cause)
        return True

    def check_load(self) -> None:
        """Raise as `WorkerProcess.check_load`."""
        self.process.check_load()

    def close(self, timeout_s: float = _EXIT_TIMEOUT_S) -> None:  # noqa: ARG002
        """End the process; it is not restarted."""
        with self._lock:
            self._is_closed = True
            self.process.close()

    def _start(self) -> WorkerProcess:
        return WorkerProcess(
            self._command,
            name=self._name,
            module=self._module,
            on_exit=self._restart_after_exit,
            on_failure=lambda cause: self._metrics.worker_failures.labels(cause).inc(),
            limits=self._limits,
        )

    def _restart_after_exit(self, process: WorkerProcess) -> None:
        with self._lock:
            if process is not self.process or self._is_closed or process.age_s < _STABLE_AGE_S:
                return
            try:
                self._restart()
            except EngineError:
                log.exception("worker process restart failed")

    def _restart(self) -> None:
        self.process.record_failure()
        self.process.close()
        try:
            self.process = self._start()
        except DragomanError as error:
            raise EngineError(str(error)) from error
        self._metrics.worker_restarts.inc()
        log.warning("worker process restarted", extra={"model": self._name, "pid": self.process.pid})


def log_record(record: logging.LogRecord) -> None:
    """Log a record of another process with the loggers of this one."""
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
