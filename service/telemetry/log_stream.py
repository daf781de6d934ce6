"""Where log lines go: a file descriptor whose disk may be full and whose reader may be stuck.

Neither may stop the server, which writes its log between two requests: what cannot be written is dropped and counted,
and once lines go out again, the log says how many are missing.
"""

import select
import threading
from collections.abc import Callable
from os import isatty, write
from typing import Final

import structlog

log = structlog.get_logger(__name__)

_PATIENCE_S: Final = 0.1
"""Time a slow reader gets, once: while lines are being lost, nobody waits any more."""


class LogStream:
    """Writes whole lines; any thread may, and none waits for a reader for long or fails."""

    def __init__(self, descriptor: int, *, patience_s: float = _PATIENCE_S) -> None:
        """Write to an open file descriptor, which stays its owner's.

        Args:
            descriptor: of a file, a pipe, a socket or a terminal.
            patience_s: how long a line may wait for a reader who was in time so far.
        """
        self._descriptor = descriptor
        self._patience_ms = round(patience_s * 1000)
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._lock = threading.RLock()  # a finalizer may log wherever memory is taken
        self._num_lost = 0  # since the last line that went out
        self._num_uncounted = 0
        self._count: Callable[[int], object] | None = None
        self._is_torn = False

    def count_lost(self, count: Callable[[int], object]) -> None:
        """Tell how many lines are lost from now on, and have been so far, to `count`."""
        with self._lock:
            self._count = count
            count(self._num_uncounted)
            self._num_uncounted = 0

    def write(self, text: str) -> int:
        """Write lines, each with its end, or lose them all; return the length of the text, written or not."""
        with self._lock:
            is_written = self._put(text.encode(errors="backslashreplace"))
            num_missing = self._num_lost if is_written else 0
            if is_written:
                self._num_lost = 0
            else:
                self._lose(text.count("\n"))
        if num_missing:
            log.warning("log lines were lost", lines=num_missing)
        return len(text)

    def flush(self) -> None:
        """Do nothing: no line is kept back."""

    def isatty(self) -> bool:
        """Whether people look at it."""
        return isatty(self._descriptor)

    def _put(self, lines: bytes) -> bool:
        """Write all of it; False if it does not go out."""
        left = memoryview(b"\n" + lines if self._is_torn else lines)
        try:
            while left and self._has_room():
                left = left[write(self._descriptor, left[: select.PIPE_BUF]) :]
                self._is_torn = bool(left)
        except OSError:  # no space, nobody at the other end, or a limit
            return False
        return not left

    def _has_room(self) -> bool:
        """Whether `PIPE_BUF` bytes can be written without waiting; a disk always says so."""
        return bool(self._room.poll(0 if self._num_lost else self._patience_ms))

    def _lose(self, num_lines: int) -> None:
        self._num_lost += num_lines
        if self._count is None:
            self._num_uncounted += num_lines
        else:
            self._count(num_lines)
