"""The server that a test is about: one that runs already, or one that is started for it; and the flags that say so."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import grpc

from loadtests.generator.metrics import scrape, server_facts

_KEY_VARIABLE: Final = "DRAGOMAN_API_KEY"  # holds the key of the API where no flag names a file with it
_SETTING: Final = re.compile("DRAGOMAN_(?!RUNTIME__)")
_CHECKOUT: Final = Path(__file__).resolve().parents[1]
SERVE: Final = ("service", "serve", "--grpc-port", "0", "--http-port", "0")
"""The module that serves, with its arguments."""
_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05


class ServerError(Exception):
    """The server did not start, or ended when it should not have."""


class ServerProcess:
    """`python -m service serve` on free ports of this machine; killed on exit if it still runs.

    Its log goes to a file, so that a measurement spends no time on reading it.
    """

    target: str  # address of gRPC, once it is ready
    http_port: int  # once it is ready
    metrics_port: int  # once it is ready
    metrics_url: str  # where it exposes its metrics, once it is ready

    def __init__(
        self, log: Path, *flags: str, environment: Mapping[str, str] | None = None, module: Sequence[str] = SERVE
    ) -> None:
        """Start it with `environment` beside this process's own.

        Of the settings there it gets only those of `runtime`, which say which device of this machine is tested.
        `module` is what to run, with the arguments ahead of the flags: perhaps another server that logs `listening`
        with its `grpc_port`, and then `ready`. The log replaces an older one.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_path = log
        inherited = {name: value for name, value in os.environ.items() if _SETTING.match(name) is None}
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
            whole = [json.loads(line) for line in lines if line[0] == "{" and line[-1] == "\n"]  # the last may be half
            ports = {record.get("event"): record for record in whole}
            if "ready" in ports:
                listening = ports["listening"]
                self.target = f"127.0.0.1:{listening['grpc_port']}"
                self.http_port = listening.get("http_port", 0)
                self.metrics_port = listening.get("metrics_port", self.http_port)
                self.metrics_url = f"http://127.0.0.1:{self.metrics_port}/metrics"
                return
            time.sleep(_POLL_S)
        raise ServerError(f"the server is not ready; it said:\n{self._log_path.read_text(encoding='utf-8')[-2000:]}")

    @property
    def exit_code(self) -> int | None:
        """What it ended with, negative for a signal; None while it runs."""
        return self._process.poll()

    def samples(self) -> dict[str, float]:
        """Return every metric that it exposes, by name with labels."""
        return scrape(self.metrics_url)

    def stop(self, *, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """Let it drain; return its exit code, or raise ServerError if it does not end in time."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"the server still runs {timeout_s:g} s after SIGTERM") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.exit_code is None:
            self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server to be tested, and how to call it; `add_access_flags` says what the files are."""

    address: str  # HOST:PORT
    metrics_url: str | None = None
    process: ServerProcess | None = None  # if it was started for the test
    key: str | None = None
    tls: bool = False
    ca_file: str | Path | None = None
    certificate_file: str | Path | None = None
    private_key_file: str | Path | None = None

    def channel(self, *settings: tuple[str, int]) -> grpc.Channel:
        """Return a connection of its own, whose calls are never retried, with more settings of gRPC.

        Raises OSError if a file cannot be read.
        """
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0), *settings]
        files = (self.ca_file, self.private_key_file, self.certificate_file)
        if not self.tls and not any(files):
            return grpc.insecure_channel(self.address, options=options)
        credentials = grpc.ssl_channel_credentials(*(Path(file).read_bytes() if file else None for file in files))
        return grpc.secure_channel(self.address, credentials, options=options)

    def facts(self) -> list[str]:
        """Return what the server says of its version and models; nothing where its metrics are not known."""
        return server_facts(scrape(self.metrics_url)) if self.metrics_url else []

    def stop(self) -> int:
        """Let a server that was started drain; return its exit code, 0 for one that runs on."""
        return self.process.stop() if self.process else 0


def add_access_flags(parser: Any) -> None:
    """Declare how to call a server that asks who calls; `parser` is an `argparse.ArgumentParser` or a group of one."""
    add = parser.add_argument
    add("--api-key-file", metavar="FILE", help=f"holds the API key (what {_KEY_VARIABLE} holds)")
    add("--tls", action="store_true", help="encrypt; implied by the flags below, whose files are PEM")
    add("--ca-file", metavar="FILE", help="whom to trust (the public authorities)")
    add("--certificate-file", metavar="FILE", help="of the client, for mutual TLS")
    add("--private-key-file", metavar="FILE", help="belongs to --certificate-file")


def add_server_flags(parser: Any) -> None:
    """Declare which server it is, beside how to call it."""
    add = parser.add_argument
    add("--target", metavar="HOST:PORT", help="one that runs already; default: one is started")
    add("--metrics-url", metavar="URL", help="of that one, such as http://localhost:9464/metrics")
    add("--model-dir", type=Path, metavar="DIR", help="models to start one with (the one that ships)")
    add("--config", type=Path, metavar="FILE", help="settings to start one with (its defaults)")
    add_access_flags(parser)


def target_of(options: argparse.Namespace, address: str, **known: Any) -> Target:
    """Return a server to be called as `add_access_flags` says; OSError if the file with the key cannot be read."""
    key_file = options.api_key_file
    key = Path(key_file).read_text(encoding="utf-8") if key_file else os.environ.get(_KEY_VARIABLE, "")
    access = {name: getattr(options, name) for name in ("tls", "ca_file", "certificate_file", "private_key_file")}
    return Target(address=address, key=key.strip() or None, **access, **known)


@contextmanager
def open_target(options: argparse.Namespace) -> Iterator[Target]:
    """Yield the server that the flags name, or one that is started, with its log in `options.output`.

    Raises ServerError if it does not start, or does not show its metrics; OSError if the file with the key is missing.
    """
    options.output.mkdir(parents=True, exist_ok=True)
    if options.target:
        try:
            if options.metrics_url:
                scrape(options.metrics_url)
        except (OSError, ValueError) as error:
            raise ServerError(f"{options.metrics_url}: no metrics: {error}") from error
        yield target_of(options, options.target, metrics_url=options.metrics_url)
        return
    given = {"--config": options.config, "--models": options.model_dir}
    flags = [part for flag, path in given.items() if path is not None for part in (flag, str(path.resolve()))]
    with ServerProcess(options.output / "server.log", *flags) as server:
        server.wait_until_ready(timeout_s=_START_TIMEOUT_S)
        yield target_of(options, server.target, metrics_url=server.metrics_url, process=server)
