"""`demo`: start a server, translate four texts, print metrics, stop the server."""

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dragoman.client import TranslationClient
from dragoman.client.errors import DragomanError
from dragoman.client.results import TranslationResult
from dragoman_service.app import Ports

_TEXTS = {
    "a short sentence": "The weather is nice today.",
    "a question": "Where is the train station?",
    "a paragraph": "A man is sitting on a bench. He is reading a newspaper. Two dogs are playing in the snow.",
    "an emoji and a number": "We waited 45 minutes for the bus 😀",
}

_METRICS = (
    "dragoman_requests_total",
    "dragoman_request_duration_seconds_sum",
    "dragoman_segments_total",
    "dragoman_decoder_steps_total",
    "dragoman_source_tokens_total",
    "dragoman_target_tokens_total",
    "dragoman_model_info",
)

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0


class ServerProcessError(Exception):
    """The server process ended unexpectedly or did not respond in time."""


class ServerProcess:
    """A child process that runs `dragoman_service serve` on free ports; killed on exit from the context."""

    def __init__(
        self, *flags: str, environment: Mapping[str, str] | None = None, process_group: int | None = None
    ) -> None:
        """Start the server with additional flags and variables; `DRAGOMAN_` variables are not inherited."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "dragoman_service", "serve", "--grpc-port", "0", "--http-port", "0", *flags],
            env={**inherited, **(environment or {})},
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            process_group=process_group,
        )
        self._log: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="server-log", daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        """The log of the server up to now."""
        return "".join(self._log)

    def wait_for(self, event: str, *, timeout_s: float) -> dict[str, Any]:
        """Return the next log record with this event.

        Raises:
            ServerProcessError: if the server ends or the timeout expires first; the message contains the log.
        """
        for record in self._records(time.monotonic() + timeout_s):
            if record.get("event") == event:
                return record
        raise ServerProcessError(f"the server did not log {event!r} within {timeout_s:g} s; its log:\n{self.log}")

    def wait_until_ready(self, *, timeout_s: float) -> Ports:
        """Wait until the server accepts calls and return its ports; raises the errors of `wait_for`."""
        record = self.wait_for("listening", timeout_s=timeout_s)
        self.wait_for("ready", timeout_s=timeout_s)
        return Ports(**{port.name: record[port.name] for port in fields(Ports)})

    @property
    def pid(self) -> int:
        """Process ID."""
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the server."""
        self._process.send_signal(number)

    def wait(self, *, timeout_s: float) -> int:
        """Wait for the exit code; ServerProcessError if the server does not end in time."""
        try:
            exit_code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ServerProcessError(f"the server still runs after {timeout_s:g} s; its log:\n{self.log}") from error
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
        # continuously: a full pipe would block the server
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


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "demo",
        help="start a server with the bundled model, translate four texts, stop it",
        description="Starts `serve` as a child process on free ports with the bundled model, translates four texts "
        "with the gRPC client, prints metrics, and stops the server with SIGTERM. The exit code is 0 on success.",
    )
    parser.add_argument(
        "--models", type=Path, metavar="DIR", help="model directory; must contain a model from English to German"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; return the exit code."""
    try:
        flags = ["--models", str(arguments.models.absolute())] if arguments.models else []
        with ServerProcess(*flags) as server:
            _run_demo(server)
    except (ServerProcessError, DragomanError, OSError) as error:
        print(f"dragoman: the demo failed: {error}", file=sys.stderr)
        return 1
    return 0


def _run_demo(server: ServerProcess) -> None:
    print("starting the server ...", flush=True)
    ports = server.wait_until_ready(timeout_s=_START_TIMEOUT_S)
    print(f"gRPC on 127.0.0.1:{ports.grpc_port}, metrics on http://127.0.0.1:{ports.http_port}/metrics\n")
    _translate(ports)
    _print_metrics(ports)
    server.send(signal.SIGTERM)
    exit_code = server.wait(timeout_s=_STOP_TIMEOUT_S)
    if exit_code != 0:
        raise ServerProcessError(f"the server ended with exit code {exit_code}; its log:\n{server.log}")
    print("SIGTERM: the server drained and ended with exit code 0")


def _translate(ports: Ports) -> None:
    with TranslationClient(f"127.0.0.1:{ports.grpc_port}") as client:
        for number, (title, text) in enumerate(_TEXTS.items(), start=1):
            result = client.translate([text], source_language="en", target_language="de")
            print(f"{number}. {title} ({result.model_name}/{result.model_version})")
            _print_result(text, result)


def _print_result(text: str, result: TranslationResult) -> None:
    (translation,) = result
    if not translation.text.strip():
        raise ServerProcessError(f"the translation of {text!r} is empty")
    print(f"   en     {text}")
    print(f"   de     {translation.text}")
    print(f"   score  {translation.score:.3f}   {result.num_source_tokens} -> {result.num_target_tokens} tokens")
    stages = [(each.name.removesuffix("_s"), getattr(result.timings, each.name)) for each in fields(result.timings)]
    print(f"   time   {', '.join(f'{stage} {seconds * 1000:.1f} ms' for stage, seconds in stages)}\n")


def _print_metrics(ports: Ports) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{ports.http_port}/metrics", timeout=10) as response:
        exposition = response.read().decode()
    print("some of /metrics:")
    for line in exposition.splitlines():
        if line.startswith(_METRICS):
            print(f"   {line}")
    print()
