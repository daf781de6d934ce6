"""A server as a child process, observed through its log; used by `demo`, the load tests and the tests."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, Self

from dragoman_service.datatypes import Ports

SERVE: Final = ("dragoman_service", "serve", "--grpc-port", "0", "--http-port", "0")
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.02
_SETTING: Final = re.compile("DRAGOMAN_(?!RUNTIME__)")  # all settings except those that choose the device


class ServerProcessError(Exception):
    """The server process did not start, ended unexpectedly or did not respond in time."""


class ServerProcess:
    """`dragoman_service serve` on free local ports; killed on exit from the context if it still runs.

    Args:
        flags: further arguments.
        log: file of the log, replaced if it exists; None: a temporary file.
        environment: variables in addition to those of this process; settings are not inherited, except `runtime`.
        module: module and arguments to run instead; logs `listening` with `grpc_port`, then `ready`.
        process_group: as for `subprocess.Popen`.
    """

    target: str  # of gRPC; this and the next three are set by `wait_until_ready`
    http_port: int
    metrics_port: int
    metrics_url: str

    def __init__(
        self,
        *flags: str,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        module: Sequence[str] = SERVE,
        process_group: int | None = None,
    ) -> None:
        self._files = ExitStack()
        if log is None:
            directory = self._files.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-"))
            log = Path(directory, "server.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_path, self._position = log, 0
        self._final_log: str | None = None
        inherited = {name: value for name, value in os.environ.items() if _SETTING.match(name) is None}
        with log.open("wb") as stream:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", *module, *flags],
                env={**inherited, **(environment or {})},
                stderr=stream,
                process_group=process_group,
            )
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        """The log of the server up to now."""
        return (
            self._final_log
            if self._final_log is not None
            else self._log_path.read_text(encoding="utf-8", errors="replace")
        )

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while the process runs."""
        return self._process.poll()

    def wait_for(self, event: str, *, timeout_s: float) -> dict[str, Any]:
        """Return the next log record with this event.

        Raises:
            ServerProcessError: if the server ends or the timeout expires first; the message contains the log.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            is_last = self.exit_code is not None or time.monotonic() >= until_s
            with self._log_path.open("rb") as stream:
                stream.seek(self._position)
                while (line := stream.readline()).endswith(b"\n"):
                    self._position += len(line)
                    if line.startswith(b"{") and (record := json.loads(line)).get("event") == event:
                        return dict(record)
            if is_last:
                raise ServerProcessError(
                    f"the server did not log {event!r} within {timeout_s:g} s; its log:\n{self.log}"
                )
            time.sleep(_POLL_S)

    def wait_until_ready(self, *, timeout_s: float = START_TIMEOUT_S) -> Ports:
        """Wait until the server accepts calls and return its ports; raises the errors of `wait_for`."""
        record = self.wait_for("listening", timeout_s=timeout_s)
        self.wait_for("ready", timeout_s=timeout_s)
        ports = Ports(**{port.name: record.get(port.name, 0) for port in fields(Ports)})
        self.http_port, self.metrics_port = ports.http_port, ports.metrics_port
        self.target = f"127.0.0.1:{ports.grpc_port}"
        self.metrics_url = f"http://127.0.0.1:{ports.metrics_port}/metrics"
        return ports

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the server."""
        self._process.send_signal(number)

    def wait(self, *, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the exit code; ServerProcessError if the server does not end in time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ServerProcessError(f"the server still runs after {timeout_s:g} s; its log:\n{self.log}") from error

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGTERM and return the exit code; ServerProcessError if the server does not end in time."""
        self.send(signal.SIGTERM)
        return self.wait(timeout_s=timeout_s)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended, and wait for its end."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._final_log = self.log
        self._files.close()
