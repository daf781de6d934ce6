"""The server that a test is about: one that runs already, or one that is started for it; and the flags that say so."""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from loadtests.client import Access, access_of, add_access_flags
from loadtests.sampler import footprint, scrape, server_facts, work_left

_CHECKOUT: Final = Path(__file__).resolve().parents[1]
SERVE: Final = ("service", "serve", "--grpc-port", "0", "--http-port", "0")
"""The module that serves, with its arguments."""
_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05
_STEPS: Final = "mt_decoder_steps_total"
"""Grows as long as anything is in a batch."""
_IDLE_POLL_S: Final = 0.25


class ServerError(Exception):
    """The server did not start, or ended when it should not have."""


class ServerProcess:
    """`python -m service serve` on free ports of this machine; killed on exit if it still runs.

    Its log goes to a file, so that a measurement spends no time on reading it.
    """

    target: str
    """Address of gRPC, once it is ready."""

    metrics_url: str
    """Where it exposes its metrics, once it is ready."""

    def __init__(
        self, log: Path, *flags: str, environment: Mapping[str, str] | None = None, module: Sequence[str] = SERVE
    ) -> None:
        """Start it with `environment` beside this process's own, whose settings it does not get.

        `module` is what to run, with the arguments ahead of the flags: perhaps another server that logs `listening`
        with its `grpc_port`, and then `ready`. The log replaces an older one.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_path = log
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
        with log.open("wb") as stream:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", *module, *flags],
                cwd=_CHECKOUT,
                env={**inherited, **(environment or {})},
                stderr=stream,
            )
        self.pid = self._process.pid

    def wait_until_ready(self, *, timeout_s: float) -> None:
        """Return once it serves calls.

        Raises ServerError if it ends before, or the time runs out; the message has the end of its log.
        """
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s and self.exit_code is None:
            lines = self._log_path.read_text(encoding="utf-8").splitlines(keepends=True)
            records = [
                json.loads(line) for line in lines if line[0] == "{" and line[-1] == "\n"
            ]  # the last may be half
            ports = {record.get("event"): record for record in records}
            if "ready" in ports:
                self.target = f"127.0.0.1:{ports['listening']['grpc_port']}"
                self.metrics_url = f"http://127.0.0.1:{ports['listening'].get('http_port', 0)}/metrics"
                return
            time.sleep(_POLL_S)
        raise ServerError(f"the server is not ready; it said:\n{self._log_path.read_text(encoding='utf-8')[-2000:]}")

    @property
    def exit_code(self) -> int | None:
        """What it ended with, negative for a signal; None while it runs."""
        return self._process.poll()

    def rss_mb(self) -> float:
        """Return the resident memory of its processes in MiB; ServerError if it has ended."""
        try:
            return footprint(self.pid).rss_mb
        except OSError as error:
            raise ServerError("the server has ended") from error

    def samples(self) -> dict[str, float]:
        """Return every metric that it exposes, by name with labels."""
        return scrape(self.metrics_url)

    def stop(self) -> int:
        """Let it drain; return its exit code, or raise ServerError if it does not end in time."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"the server still runs {_STOP_TIMEOUT_S:g} s after SIGTERM") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.exit_code is None:
            self._process.kill()
        self._process.wait()


def wait_until_idle(server: ServerProcess, *, timeout_s: float) -> dict[str, float]:
    """Wait until a server without callers has nothing left to do; return what it still has when the time runs out.

    That is gauges of work that are not 0, and the decoder steps still run; empty: it is idle.
    """
    until_s, num_steps = time.monotonic() + timeout_s, math.nan
    while True:
        samples = server.samples()
        left = work_left(samples)
        if samples[_STEPS] != num_steps:
            left[_STEPS] = samples[_STEPS] - num_steps
        if not left or time.monotonic() > until_s:
            return left
        num_steps = samples[_STEPS]
        time.sleep(_IDLE_POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server to be tested, and how to call it."""

    address: str
    """HOST:PORT."""

    metrics_url: str | None = None
    process: ServerProcess | None = None
    """If it was started for the test."""

    access: Access = field(default_factory=Access)

    def facts(self) -> list[str]:
        """Return what the server says of its version and models; nothing where its metrics are not known."""
        return server_facts(scrape(self.metrics_url)) if self.metrics_url else []

    def stop(self) -> int:
        """Let a server that was started drain; return its exit code, 0 for one that runs on."""
        return self.process.stop() if self.process else 0


def add_server_flags(parser: Any) -> None:
    """Declare which server it is; `parser` is an `argparse.ArgumentParser` or a group of one."""
    add = parser.add_argument
    add("--target", metavar="HOST:PORT", help="one that runs already; default: one is started")
    add("--metrics-url", metavar="URL", help="of that one, such as http://localhost:9464/metrics")
    add("--model-dir", type=Path, metavar="DIR", help="models to start one with (the one that ships)")
    add("--config", type=Path, metavar="FILE", help="settings to start one with (its defaults)")
    add_access_flags(parser)


@contextmanager
def open_target(options: argparse.Namespace) -> Iterator[Target]:
    """Yield the server that the flags name, or one that is started, with its log in `options.output`.

    Raises ServerError if it does not start, or does not show its metrics; OSError if the file with the key is missing.
    """
    options.output.mkdir(parents=True, exist_ok=True)
    access = access_of(options)
    if options.target:
        try:
            if options.metrics_url:
                scrape(options.metrics_url)
        except (OSError, ValueError) as error:
            raise ServerError(f"{options.metrics_url}: no metrics: {error}") from error
        yield Target(address=options.target, metrics_url=options.metrics_url, access=access)
        return
    given = {"--config": options.config, "--models": options.model_dir}
    flags = [part for flag, path in given.items() if path is not None for part in (flag, str(path.resolve()))]
    with ServerProcess(options.output / "server.log", *flags) as server:
        server.wait_until_ready(timeout_s=_START_TIMEOUT_S)
        yield Target(address=server.target, metrics_url=server.metrics_url, process=server, access=access)
