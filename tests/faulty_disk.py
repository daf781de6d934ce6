"""Injection of one failing call of the operating system into code that works with files."""

import builtins
import contextlib
import errno
import fcntl
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EIO", "ESTALE", "EACCES")}

_CALLS = {
    fcntl: ("flock",),
    os: (
        "fsync",
        "listdir",
        "lstat",
        "mkdir",
        "open",
        "rename",
        "replace",
        "rmdir",
        "scandir",
        "stat",
        "unlink",
        "utime",
    ),
}
_FILE_CALLS = ("write", "flush", "truncate", "read")


class FaultyDisk:
    """Counts the calls of one operation, and lets one of them fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int, number: int) -> None:
        self._monkeypatch = monkeypatch
        self._error = error
        self._number = number
        self.has_failed = False

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Let the call with this number fail in the body of the context."""
        with self._monkeypatch.context() as patched:
            for module, names in _CALLS.items():
                for name in names:
                    patched.setattr(module, name, self._counted(getattr(module, name)))
            opened = self._counted(io.open)
            for opener in (io, builtins):
                patched.setattr(opener, "open", lambda *args, **kwargs: _File(opened(*args, **kwargs), self._counted))
            yield

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._number -= 1
            if self._number == -1:
                self.has_failed = True
                raise OSError(self._error, os.strerror(self._error), "path")
            return call(*args, **kwargs)

        return counted


class _File:
    """File whose calls count."""

    def __init__(self, file: Any, counted: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._file = file
        self._counted = counted

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        return self._counted(found) if name in _FILE_CALLS else found

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()


def each_fault(monkeypatch: pytest.MonkeyPatch, error: int) -> Iterator[FaultyDisk]:
    """Yield a disk for each call of an operation, as long as the calls are reached."""
    for number in range(1000):
        disk = FaultyDisk(monkeypatch, error, number)
        yield disk
        if not disk.has_failed:
            return


def num_open_files() -> int:
    """Return the number of open descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
