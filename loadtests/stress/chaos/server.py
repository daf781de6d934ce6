"""The server that faults are injected into: a process with models of its own and an injector inside."""

import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from loadtests.stress.server import copy_tree, log_path, poll, started
from loadtests.target import ServerError, ServerProcess

INSIDE: Final = Path(__file__).resolve().parent / "inside"
"""What PYTHONPATH must name for the server's Python to import the injector."""

HANDSHAKE_TIMEOUT_S: Final = 2.0
"""Of the server; its default of 10 s would only make everything take longer."""

NUM_DECODING_THREADS: Final = 2
"""Of the server, whatever the machine: one that hangs, and another."""

_SOCKET_VARIABLE: Final = "CHAOS_SOCKET"
_SETTINGS: Final = {
    "DRAGOMAN_SCHEDULING__NUM_DECODING_THREADS": str(NUM_DECODING_THREADS),
    "DRAGOMAN_GRPC__HANDSHAKE_TIMEOUT_S": str(HANDSHAKE_TIMEOUT_S),
    "DRAGOMAN_MODELS__POLL_INTERVAL_S": "0.2",
}
_TIMEOUT_S: Final = 10.0
_MAX_ANSWER_BYTES: Final = 4096

Where = Literal["encoder", "step"]


class Injector:
    """Makes runs of the network fail and points the log elsewhere, inside a server that is ready."""

    def __init__(self, path: Path) -> None:
        """Connect to the socket of a server.

        Raises:
            ServerError: if nothing listens there: the server's Python did not import `sitecustomize`.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_TIMEOUT_S)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            message = f"no injector inside the server ({error}); does its Python import another sitecustomize?"
            raise ServerError(message) from error

    def arm(self, kind: Literal["raise", "cut-off", "hang"], where: Where, *, seconds: float = 0.0) -> None:
        """Let the next run raise after it has written its results, fail within ONNX Runtime, or begin later."""
        self._order("arm", kind=kind, where=where, seconds=seconds)

    def wait_until_met(self) -> None:
        """Return once every fault has met a run.

        Raises:
            ServerError: if one has not for 10 s.
        """
        if num_armed := poll(
            lambda: self._order("count")["num_armed"], lambda count: not count, timeout_s=_TIMEOUT_S, each_s=0.02
        ):
            raise ServerError(f"{num_armed} faults met no run in {_TIMEOUT_S:g} s")

    def hang_steps(self, seconds: float, *, count: int = 1) -> None:
        """Return once so many decoding steps hang."""
        for _ in range(count):
            self.arm("hang", "step", seconds=seconds)
        self.wait_until_met()

    def log_to(self, path: Path | None) -> None:
        """Point the server's standard error to a path; None: where it was."""
        self._order("log", path=None if path is None else str(path))

    def wall_clock_s(self) -> float:
        """Return the server's time."""
        time_s: float = self._order("time")["time_s"]
        return time_s

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _order(self, name: str, **fields: Any) -> dict[str, Any]:
        try:
            self._socket.send(json.dumps({"do": name, **fields}).encode())
            answer: dict[str, Any] = json.loads(self._socket.recv(_MAX_ANSWER_BYTES) or b'{"error": "it has ended"}')
        except OSError as error:
            raise ServerError(f"the server does not answer the order {name!r}: {error}") from error
        if "error" in answer:
            raise ServerError(f"the server cannot do {name!r}: {answer['error']}")
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosServer:
    """A server that is ready."""

    process: ServerProcess
    injector: Injector
    models: Path
    original_models: Path
    log: Path

    def logged_since(self, position: int) -> str:
        """Return what the log has from a position on."""
        with self.log.open("rb") as file:
            file.seek(position)
            return file.read().decode(errors="replace")


@contextmanager
def chaos_server(output: Path, *, models: Path, environment: Mapping[str, str]) -> Iterator[ChaosServer]:
    """Start a server, ready for calls, on a copy of the models; kill it at the end if it still runs.

    Raises:
        ServerError: if it does not start.
    """
    copy = output / "models"
    copy_tree(models, copy)
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:  # short: the path of a socket has a limit
        path = Path(directory) / "orders"
        python_path = os.pathsep.join(filter(None, [str(INSIDE), os.environ.get("PYTHONPATH", "")]))
        settings = {**_SETTINGS, "PYTHONPATH": python_path, _SOCKET_VARIABLE: str(path), **environment}
        with started(output, models=copy, settings=settings) as process, closing(Injector(path)) as injector:
            yield ChaosServer(
                process=process, injector=injector, models=copy, original_models=models, log=log_path(output)
            )
