"""The server under test: a running one, or a process that is started for the test."""

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

from loadtests.generator.metrics import scrape, server_info

CHECKOUT: Final = Path(__file__).resolve().parents[2]
BUNDLED_MODELS: Final = CHECKOUT / "deploy" / "models" / "dragoman_models"
SERVICE: Final = "dragoman_service"
SERVE: Final = (SERVICE, "serve", "--grpc-port", "0", "--http-port", "0")
START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05
_KEY_VARIABLE: Final = "DRAGOMAN_API_KEY"
_SETTING: Final = re.compile("DRAGOMAN_(?!RUNTIME__)")  # all settings except those that choose the device
_CHANNEL_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class ServerError(Exception):
    """The server did not start, did not respond, or ended unexpectedly."""


class ServerProcess:
    """`serve` on free local ports, with its log in a file; killed on exit from the context if it still runs.

    Args:
        log: path of the log; an older file is replaced.
        flags: further arguments.
        environment: variables in addition to those of this process; settings are not inherited, except `runtime`.
        module: module and arguments to run instead; logs `listening` with `grpc_port`, then `ready`.
    """

    target: str  # this and the next three are set by `wait_until_ready`
    http_port: int
    metrics_port: int
    metrics_url: str

    def __init__(
        self, log: Path, *flags: str, environment: Mapping[str, str] | None = None, module: Sequence[str] = SERVE
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_path = log
        inherited = {name: value for name, value in os.environ.items() if _SETTING.match(name) is None}
        with log.open("wb") as stream:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", *module, *flags],
                cwd=CHECKOUT,
                env={**inherited, **(environment or {})},
                stderr=stream,
            )
        self.pid = self._process.pid

    def wait_until_ready(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the server accepts calls; raises ServerError, with the end of the log, if it does not."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s and self.exit_code is None:
            lines = self._log_path.read_text(encoding="utf-8").splitlines(keepends=True)
            complete = [json.loads(line) for line in lines if line[0] == "{" and line[-1] == "\n"]
            events = {record.get("event"): record for record in complete}
            if "ready" in events:
                listening = events["listening"]
                self.target = f"127.0.0.1:{listening['grpc_port']}"
                self.http_port = listening.get("http_port", 0)
                self.metrics_port = listening.get("metrics_port", self.http_port)
                self.metrics_url = f"http://127.0.0.1:{self.metrics_port}/metrics"
                return
            time.sleep(_POLL_S)
        raise ServerError(f"server is not ready; end of its log:\n{self._log_path.read_text(encoding='utf-8')[-2000:]}")

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while the process runs."""
        return self._process.poll()

    def samples(self) -> dict[str, float]:
        """Return its metrics by name with labels."""
        return scrape(self.metrics_url)

    def stop(self, *, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """Send SIGTERM and return the exit code; raises ServerError if the process does not end in time."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"server still runs {timeout_s:g} s after SIGTERM") from error

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended, and wait for its end."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Address and credentials of a server under test."""

    address: str  # HOST:PORT
    metrics_url: str | None = None
    process: ServerProcess | None = None  # if it was started for the test
    key: str | None = None
    tls: bool = False
    ca_file: str | Path | None = None
    certificate_file: str | Path | None = None
    private_key_file: str | Path | None = None

    def channel(self) -> grpc.Channel:
        """Return a new connection without retries; raises OSError if a file cannot be read."""
        files = (self.ca_file, self.private_key_file, self.certificate_file)
        if not self.tls and not any(files):
            return grpc.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
        credentials = grpc.ssl_channel_credentials(*(Path(file).read_bytes() if file else None for file in files))
        return grpc.secure_channel(self.address, credentials, options=_CHANNEL_OPTIONS)

    def info(self) -> list[str]:
        """Return version and models as the metrics show them; empty without metrics."""
        return server_info(scrape(self.metrics_url)) if self.metrics_url else []

    def stop(self) -> list[str]:
        """Stop a server that was started for the test; return a sentence if its exit code is not 0."""
        exit_code = self.process.stop() if self.process else 0
        return [f"server exited with {exit_code}"] if exit_code else []


def add_access_flags(parser: Any) -> None:
    """Add the flags for credentials to a parser or group."""
    add = parser.add_argument
    add("--api-key-file", metavar="FILE", help=f"file with the API key (default: the value of {_KEY_VARIABLE})")
    add("--tls", action="store_true", help="use TLS; implied by the following flags, whose files are PEM")
    add("--ca-file", metavar="FILE", help="trusted certificate authorities (default: the public ones)")
    add("--certificate-file", metavar="FILE", help="client certificate for mutual TLS")
    add("--private-key-file", metavar="FILE", help="private key of --certificate-file")


def add_server_flags(parser: Any) -> None:
    """Add the flags for the server and its credentials."""
    add = parser.add_argument
    add("--target", metavar="HOST:PORT", help="running server (default: start one)")
    add("--metrics-url", metavar="URL", help="metrics of the running server, such as http://localhost:9464/metrics")
    add("--model-dir", type=Path, metavar="DIR", help="models of the server to start (default: the bundled models)")
    add("--config", type=Path, metavar="FILE", help="settings of the server to start")
    add_access_flags(parser)


def target_of(options: argparse.Namespace, address: str, **known: Any) -> Target:
    """Return the target that the flags describe; raises OSError if the file with the key cannot be read."""
    key_file = options.api_key_file
    key = Path(key_file).read_text(encoding="utf-8") if key_file else os.environ.get(_KEY_VARIABLE, "")
    access = {name: getattr(options, name) for name in ("tls", "ca_file", "certificate_file", "private_key_file")}
    return Target(address=address, key=key.strip() or None, **access, **known)


@contextmanager
def open_target(options: argparse.Namespace) -> Iterator[Target]:
    """Yield the server that the flags name, or a started one with its log in `options.output`.

    Raises ServerError if it does not start or has no metrics, OSError if the file with the key cannot be read.
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
        server.wait_until_ready()
        yield target_of(options, server.target, metrics_url=server.metrics_url, process=server)
