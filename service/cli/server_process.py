"""The server as a child process: started, awaited until it is ready, stopped by SIGTERM."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_CHECKOUT = Path(__file__).resolve().parents[2]


class ServerProcessError(Exception):
    """The server ended or stayed silent when it should not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the child listens."""

    grpc_port: int
    http_port: int


class ServerProcess:
    """`python -m service serve` on free ports of this machine; killed on exit if it still runs."""

    def __init__(self, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        """Start it with further flags; `environment` replaces this process's own, settings apart."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "service", "serve", "--grpc-port", "0", "--http-port", "0", *flags],
            cwd=_CHECKOUT,
            env={**inherited, **(environment or {})},
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._log: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="server-log", daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        """Everything the server has written so far."""
        return "".join(self._log)

    def wait_for(self, event: str, *, timeout_s: float) -> dict[str, Any]:
        """Return the next record of its log with this event.

        Raises:
            ServerProcessError: if it ends before, or the time runs out; the message has the end of its log.
        """
        for record in self._records(time.monotonic() + timeout_s):
            if record.get("event") == event:
                return record
        raise ServerProcessError(f"the server did not log {event!r} within {timeout_s:g} s; it said:\n{self.log}")

    def wait_until_ready(self, *, timeout_s: float) -> Ports:
        """Return its ports once it takes calls; raises as `wait_for`."""
        record = self.wait_for("listening", timeout_s=timeout_s)
        self.wait_for("ready", timeout_s=timeout_s)
        return Ports(grpc_port=record["grpc_port"], http_port=record["http_port"])

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self, *, timeout_s: float) -> int:
        """Return its exit code; ServerProcessError if it does not end in time."""
        try:
            exit_code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ServerProcessError(f"the server still runs after {timeout_s:g} s; it said:\n{self.log}") from error
        self._reader.join(timeout_s)
        return exit_code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _read(self) -> None:
        """Take its log as it comes, or a full pipe would stop the server."""
        for line in self._process.stderr or ():
            self._log.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def _records(self, until_s: float) -> Iterator[dict[str, Any]]:
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                return
            if line is None:
                return
            if line.startswith("{"):
                yield json.loads(line)
