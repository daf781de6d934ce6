"""Gives orders to what runs inside the server (`loadtests.chaos.inside.sitecustomize`)."""

import json
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from loadtests.target import ServerError

INSIDE: Final = Path(__file__).resolve().parent / "inside"
"""What PYTHONPATH must name."""

SOCKET_VARIABLE: Final = "CHAOS_SOCKET"
"""Names the socket to the server's process."""

_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02
_MAX_ANSWER_BYTES: Final = 4096

Where = Literal["encoder", "step"]


class Agent:
    """Makes runs fail and points the log elsewhere, in a server that is ready."""

    def __init__(self, path: Path) -> None:
        """Connect to the socket of a server.

        Raises:
            ServerError: if nobody listens there: the server's Python did not import `sitecustomize`.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_TIMEOUT_S)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise ServerError(
                f"nothing inside the server takes orders ({error}); does its Python import another sitecustomize?"
            ) from error

    def let_raise(self, where: Where) -> None:
        """Let the next run raise an error of Python's, after it has written its results."""
        self._ask("arm", kind="raise", where=where)

    def let_fail(self, where: Where) -> None:
        """Let ONNX Runtime fail in the middle of the next run."""
        self._ask("arm", kind="cut-off", where=where)

    def let_hang(self, where: Where, seconds: float) -> None:
        """Let the next run begin so much later."""
        self._ask("arm", kind="hang", where=where, seconds=seconds)

    def wait_until_met(self, timeout_s: float) -> None:
        """Return once every fault has met a run.

        Raises:
            ServerError: if one waits for longer.
        """
        until_s = time.monotonic() + timeout_s
        while num_armed := self._ask("count")["num_armed"]:
            if time.monotonic() > until_s:
                raise ServerError(f"{num_armed} faults met no run in {timeout_s:g} s")
            time.sleep(_POLL_S)

    def log_to(self, path: Path | None) -> None:
        """Point the server's standard error to a path; None: where it was."""
        self._ask("log", path=None if path is None else str(path))

    def wall_clock_s(self) -> float:
        """Return what the server takes for the time."""
        time_s: float = self._ask("time")["time_s"]
        return time_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def _ask(self, order: str, **fields: Any) -> dict[str, Any]:
        try:
            self._socket.send(json.dumps({"do": order, **fields}).encode())
            answer: dict[str, Any] = json.loads(self._socket.recv(_MAX_ANSWER_BYTES) or b'{"error": "it has ended"}')
        except OSError as error:
            raise ServerError(f"the server does not take the order {order!r}: {error}") from error
        if "error" in answer:
            raise ServerError(f"the server cannot do {order!r}: {answer['error']}")
        return answer
