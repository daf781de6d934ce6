"""The server under test: a process of its own, known by its ports, its memory and what it exposes over HTTP.

Its log goes to a file, so that whoever measures spends no time on reading it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from loadtests.footprint import footprint
from loadtests.sampling import scrape

_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_POLL_S: Final = 0.05
_STOP_TIMEOUT_S: Final = 60.0
_SERVE: Final = ("service", "serve", "--grpc-port", "0", "--http-port", "0")


class ServerError(Exception):
    """The server did not start, or ended when it should not have."""


class ServerProcess:
    """`python -m service serve` on free ports of this machine; killed on exit if it still runs."""

    def __init__(
        self,
        log: Path,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        module: Sequence[str] = _SERVE,
    ) -> None:
        """Start it with further flags and settings, `environment` among them; its log replaces an older one.

        Args:
            log: where its log goes.
            flags: of the command.
            environment: beside this process's own, settings apart.
            module: what to run instead, with the arguments ahead of the flags: another server that logs `listening`
                with its `grpc_port`, and then `ready`.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_path = log
        command = [sys.executable, "-m", *module, *flags]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
        with log.open("wb") as stream:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command, cwd=_CHECKOUT, env={**inherited, **(environment or {})}, stderr=stream
            )
        self._grpc_port = self._http_port = 0

    def wait_until_ready(self, *, timeout_s: float) -> None:
        """Return once it takes calls.

        Raises:
            ServerError: if it ends before, or the time runs out; the message has the end of its log.
        """
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s and self._process.poll() is None:
            events = {record.get("event"): record for record in self._records()}
            if "ready" in events:
                self._grpc_port = events["listening"]["grpc_port"]
                self._http_port = events["listening"].get("http_port", 0)
                return
            time.sleep(_POLL_S)
        raise ServerError(f"the server is not ready; it said:\n{self._log_path.read_text(encoding='utf-8')[-2000:]}")

    @property
    def target(self) -> str:
        """Address of gRPC."""
        return f"127.0.0.1:{self._grpc_port}"

    @property
    def metrics_url(self) -> str:
        """Where it exposes its metrics."""
        return f"http://127.0.0.1:{self._http_port}/metrics"

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """What it ended with, negative for a signal; None while it runs."""
        return self._process.poll()

    def rss_mb(self) -> float:
        """Return the resident memory of its processes in MiB.

        Raises:
            ServerError: if it has ended.
        """
        try:
            return footprint(self.pid).rss_mb
        except OSError as error:
            raise ServerError("the server has ended") from error

    def samples(self) -> dict[str, float]:
        """Return every metric that it exposes, by name with labels."""
        return scrape(self.metrics_url)

    def stop(self) -> int:
        """Let it drain; return its exit code.

        Raises:
            ServerError: if it does not end in time.
        """
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"the server still runs {_STOP_TIMEOUT_S:g} s after SIGTERM") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _records(self) -> Iterator[dict[str, Any]]:
        for line in self._log_path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.startswith("{") and line.endswith("\n"):  # the last one may be half written
                yield json.loads(line)
