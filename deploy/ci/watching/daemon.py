"""A program that listens: started, awaited over HTTP, ended."""

import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_POLL_S: Final = 0.05
_STOP_TIMEOUT_S: Final = 10.0


class DaemonError(Exception):
    """A program did not start, or ended."""


class Daemon:
    """Killed on exit if it does not end when it is told to; what it says goes to a file."""

    def __init__(self, *command: str, url: str, log: Path) -> None:
        """Start it.

        Args:
            command: the program and its flags.
            url: where it answers.
            log: replaces an older one.
        """
        self.url = url
        self._log = log
        with log.open("wb") as stream:
            self._process = subprocess.Popen(command, stdout=stream, stderr=stream)  # noqa: S603 - unpacked by us

    def wait_until_ready(self, path: str, *, timeout_s: float) -> None:
        """Return once it answers a path with 200.

        Raises:
            DaemonError: if it ends before, or the time runs out; the message has the end of its log.
        """
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}{path}", timeout=1):  # noqa: S310 - http, ours
                    return
            except OSError:
                time.sleep(_POLL_S)
        raise DaemonError(f"{self.url}{path} never answered; it said:\n{self._log.read_text(encoding='utf-8')[-2000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
