"""The server for chaos: a process with its own models and an injector inside."""

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

from loadtests.generator.server import ServerError, ServerProcess
from loadtests.scenarios.stress_server import log_path, poll, started

INSIDE: Final = Path(__file__).resolve().parent / "inside"
NUM_WORKERS: Final = 2  # one that hangs, and another
HANDSHAKE_TIMEOUT_S: Final = 2.0  # the default of 10 s would only take longer
_SETTINGS: Final = {
    "DRAGOMAN_SCHEDULING__NUM_WORKERS": str(NUM_WORKERS),
    "DRAGOMAN_GRPC__HANDSHAKE_TIMEOUT_S": str(HANDSHAKE_TIMEOUT_S),
    "DRAGOMAN_MODELS__POLL_INTERVAL_S": "0.2",
}
_TIMEOUT_S: Final = 10.0
_STDERR: Final = 2
Kind = Literal["raise", "cut-off", "hang"]


@dataclass(frozen=True, slots=True)
class ChaosServer:
    """A ready server with an injector."""

    process: ServerProcess
    models: Path
    original_models: Path
    log: Path
    folder: Path  # of armed faults
    connection: "Connection[Any, Any]"

    def arm(self, kind: Kind, where: Literal["encoder", "step"], *, seconds: float = 0.0) -> None:
        """Let the next run raise after it has written its results, fail within ONNX Runtime, or start later."""
        (self.folder / f"{where} {time.monotonic_ns():020} {kind} {seconds}").touch()

    def wait_until_triggered(self) -> None:
        """Wait until every armed fault has met a run; raises ServerError."""
        if not poll(lambda: not list(self.folder.glob("* *")), bool, timeout_s=_TIMEOUT_S, each_s=0.02):
            raise ServerError(f"an armed fault was not triggered within {_TIMEOUT_S:g} s")

    def hang_steps(self, seconds: float, *, count: int = 1) -> None:
        """Hang a number of decoding steps; return when they do."""
        for _ in range(count):
            self.arm("hang", "step", seconds=seconds)
        self.wait_until_triggered()

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call a function in the main process of the server; raises ServerError."""
        try:
            self.connection.send((function, arguments))
            answer = self.connection.recv() if self.connection.poll(_TIMEOUT_S) else TimeoutError("no response")
        except (OSError, EOFError) as error:
            answer = error
        if isinstance(answer, Exception):
            raise ServerError(f"the server cannot call {function.__name__}: {answer!r}") from answer
        return answer

    @contextmanager
    def logging_to(self, path: Path) -> Iterator[None]:
        """Redirect standard error of the server to a path."""
        before, there = self.call(os.dup, _STDERR), self.call(os.open, str(path), os.O_WRONLY)
        self.call(os.dup2, there, _STDERR)
        try:
            yield
        finally:
            self.call(os.dup2, before, _STDERR)
            for descriptor in (before, there):
                self.call(os.close, descriptor)


def copy_tree(original: Path, copy: Path) -> None:
    """Replace a directory by a copy of another one."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)


@contextmanager
def chaos_server(output: Path, *, models: Path, environment: Mapping[str, str]) -> Iterator[ChaosServer]:
    """Start a server with an injector on a copy of the models; raises ServerError."""
    copy = output / "models"
    copy_tree(models, copy)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))  # socket paths are short
        python_path = os.pathsep.join(filter(None, [str(INSIDE), os.environ.get("PYTHONPATH", "")]))
        settings = {**_SETTINGS, "PYTHONPATH": python_path, "CHAOS_FOLDER": str(folder), **environment}
        process = stack.enter_context(started(output, models=copy, settings=settings))
        try:
            connection = stack.enter_context(Client(str(folder / "socket")))
        except OSError as error:
            raise ServerError(f"no injector in the server, perhaps another sitecustomize: {error}") from error
        yield ChaosServer(process, copy, models, log_path(output), folder, connection)
