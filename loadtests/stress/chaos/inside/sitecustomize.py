"""Injects faults inside the server that is tested; the server itself knows nothing of it.

Python imports this at its start if the folder is on PYTHONPATH, so the server is started by the very command that
operators use, and the processes that it starts import it, too. It replaces the places at which a process meets the
world, and leaves the service's own code alone:

- `onnxruntime.InferenceSession` is one whose runs can be made to raise, to be cut off by ONNX Runtime, or to hang;
- the descriptor of standard error can be pointed elsewhere, as by a log collector that hangs or a disk that is full.

Orders come over a Unix socket, one JSON object each, and are answered by one; the server's first process listens.
Faults that runs are to meet wait as files beside the socket, where any of its processes finds them.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

SOCKET_VARIABLE: Final = "CHAOS_SOCKET"
_STDERR: Final = 2
_MAX_ORDER_BYTES: Final = 4096

Order = dict[str, Any]


class Faults:
    """The faults that the next runs of ONNX Runtime meet, in order, whichever process they are in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_number = 0

    def arm(self, order: Order) -> Order:
        """Let the next run of the encoder or of a decoder step meet a fault."""
        unseen = self._folder / "unfinished"
        unseen.write_text(json.dumps(order), encoding="utf-8")
        unseen.rename(self._folder / f"{order['where']}-{self._next_number:06}")
        self._next_number += 1
        return {}

    def count(self, _: Order) -> Order:
        """Return how many faults no run has met yet."""
        return {"num_armed": len(os.listdir(self._folder))}  # noqa: PTH208 - a count is enough

    def meet(self, where: str, run: Callable[[Any], Any], options: Any) -> Any:
        """Run, with the fault that is due if there is one."""
        order = self._next(where)
        if order.get("kind") == "hang":
            time.sleep(order["seconds"])
        if order.get("kind") == "cut-off":  # ONNX Runtime fails of itself, in the middle of its graph
            options = _runtime().RunOptions()
            options.terminate = True
        result = run(options)
        if order.get("kind") == "raise":
            raise MemoryError("made to fail after the run, with the caches written")
        return result

    def _next(self, where: str) -> Order:
        for path in sorted(self._folder.glob(f"{where}-*")):
            try:
                content = path.read_text(encoding="utf-8")
                path.unlink()
            except FileNotFoundError:  # another run has met it
                continue
            order: Order = json.loads(content)
            return order
        return {}


def _runtime() -> Any:
    import onnxruntime  # noqa: PLC0415 - only where it is needed: other Python processes may inherit the variable

    return onnxruntime


def _replace_sessions(faults: Faults) -> None:
    runtime = _runtime()

    class Session(runtime.InferenceSession):  # type: ignore[misc,name-defined]
        """A session whose runs can be made to fail."""

        def run(self, outputs: Any, inputs: Any, run_options: Any = None) -> Any:
            run = super().run
            return faults.meet("encoder", lambda options: run(outputs, inputs, options), run_options)

        def run_with_iobinding(self, binding: Any, run_options: Any = None) -> Any:
            run = super().run_with_iobinding
            return faults.meet("step", lambda options: run(binding, options), run_options)

    runtime.InferenceSession = Session


def _redirect_log(own: int, order: Order) -> Order:
    """Point standard error at a path; without one, at its own descriptor again."""
    descriptor = own if order["path"] is None else os.open(order["path"], os.O_WRONLY)
    os.dup2(descriptor, _STDERR)
    if descriptor != own:
        os.close(descriptor)
    return {}


def _obey(listening: socket.socket, orders: dict[str, Callable[[Order], Order]]) -> None:
    while True:
        connection, _ = listening.accept()
        with connection:
            while message := connection.recv(_MAX_ORDER_BYTES):
                order = json.loads(message)
                try:
                    answer = orders[order["do"]](order)
                except Exception as error:  # noqa: BLE001 - the answer says so
                    answer = {"error": repr(error)}
                connection.send(json.dumps(answer).encode())


def _begin(path: str) -> None:
    folder = Path(f"{path}.armed")
    is_first = not folder.exists()
    folder.mkdir(exist_ok=True)
    faults = Faults(folder)
    _replace_sessions(faults)
    if not is_first:
        return
    own_stderr = os.dup(_STDERR)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen()
    orders: dict[str, Callable[[Order], Order]] = {
        "arm": faults.arm,
        "count": faults.count,
        "log": lambda order: _redirect_log(own_stderr, order),
        "time": lambda _: {"time_s": time.time()},
    }
    threading.Thread(target=_obey, args=(listening, orders), name="chaos", daemon=True).start()


if SOCKET_VARIABLE in os.environ:
    _begin(os.environ[SOCKET_VARIABLE])
