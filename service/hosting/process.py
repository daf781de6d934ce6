"""A decoding process as the server sees it: started, connected to, ended."""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, Final

from service.errors import EngineError
from service.hosting.log_forwarding import log_here
from service.hosting.messages import Connect, Loaded, LoadOrder, NotLoaded, format_digest
from service.models.names import full_name
from service.runtime.device import Placement

log = logging.getLogger(__name__)

_CHILD: Final = "service.hosting.child"
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
