"""The server that faults are injected into: a process with models of its own and an injector inside."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Final, Literal

from loadtests.scenarios.stress_server import log_path, poll, started
from loadtests.generator.server import ServerError, ServerProcess

INSIDE: Final = Path(__file__).resolve().parent / "inside"
NUM_DECODING_THREADS: Final = 2  # whatever the machine: one that hangs, and another
HANDSHAKE_TIMEOUT_S: Final = 2.0  # the default of 10 s would only make everything take longer
_SETTINGS: Final = {
    "DRAGOMAN_SCHEDULING__NUM_DECODING_THREADS": str(NUM_DECODING_THREADS),
    "DRAGOMAN_GRPC__HANDSHAKE_TIMEOUT_S": str(HANDSHAKE_TIMEOUT_S),
    "DRAGOMAN_MODELS__POLL_INTERVAL_S": "0.2",
}
_TIMEOUT_S: Final = 10.0
_STDERR: Final = 2
Kind = Literal["raise", "cut-off", "hang"]


@dataclass(frozen=True, slots=True)
class ChaosServer:
    """A server that is ready, and whose Python does as it is told."""

    process: ServerProcess
    models: Path
    original_models: Path
    log: Path
    folder: Path  # where faults wait for runs of the network
    connection: "Connection[Any, Any]"

    def arm(self, kind: Kind, where: Literal["encoder", "step"], *, seconds: float = 0.0) -> None:
        """Let the next run raise after it has written its results, fail within ONNX Runtime, or begin later."""
        (self.folder / f"{where} {time.monotonic_ns():020} {kind} {seconds}").touch()

    def wait_until_met(self) -> None:
        """Return once every fault has met a run, or raise a ServerError."""
        if not poll(lambda: not list(self.folder.glob("* *")), bool, timeout_s=_TIMEOUT_S, each_s=0.02):
            raise ServerError(f"a fault met no run in {_TIMEOUT_S:g} s")

    def hang_steps(self, seconds: float, *, count: int = 1) -> None:
        """Return once so many decoding steps hang."""
        for _ in range(count):
            self.arm("hang", "step", seconds=seconds)
        self.wait_until_met()

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Let the server's first process call a function; return what that returns, or raise a ServerError."""
        try:
            self.connection.send((function, arguments))
            answer = self.connection.recv() if self.connection.poll(_TIMEOUT_S) else TimeoutError("it does not answer")
        except (OSError, EOFError) as error:
            answer = error
        if isinstance(answer, Exception):
            raise ServerError(f"the server cannot call {function.__name__}: {answer!r}") from answer
        return answer

    @contextmanager
    def logging_to(self, path: Path) -> Iterator[None]:
        """Point its standard error to a path, and at the end to where it was."""
        before, there = self.call(os.dup, _STDERR), self.call(os.open, str(path), os.O_WRONLY)
        self.call(os.dup2, there, _STDERR)
        try:
            yield
        finally:
            self.call(os.dup2, before, _STDERR)
            for descriptor in (before, there):
                self.call(os.close, descriptor)


def copy_tree(original: Path, copy: Path) -> None:
    """Make a directory what another one is, with files of its own."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)


@contextmanager
def chaos_server(output: Path, *, models: Path, environment: Mapping[str, str]) -> Iterator[ChaosServer]:
    """Start a server with an injector on a copy of the models, or raise ServerError; kill it if it runs at the end."""
    copy = output / "models"
    copy_tree(models, copy)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))  # short, as a socket's path is
        python_path = os.pathsep.join(filter(None, [str(INSIDE), os.environ.get("PYTHONPATH", "")]))
        settings = {**_SETTINGS, "PYTHONPATH": python_path, "CHAOS_FOLDER": str(folder), **environment}
        process = stack.enter_context(started(output, models=copy, settings=settings))
        try:
            connection = stack.enter_context(Client(str(folder / "socket")))
        except OSError as error:
            raise ServerError(f"no injector inside the server; another sitecustomize perhaps: {error}") from error
        yield ChaosServer(process, copy, models, log_path(output), folder, connection)
