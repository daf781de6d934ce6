"""Injects faults inside the server that is tested; the server itself knows nothing of it.

Python imports this at its start if the folder is on PYTHONPATH, so the server is started by the very command that
operators use, and the processes that it starts import it, too. Runs of `onnxruntime.InferenceSession` can be made to
raise, to be cut off by ONNX Runtime, or to hang: each fault is a file `WHERE NUMBER KIND SECONDS` in the folder that
CHAOS_FOLDER names, until a run in any of the processes meets it. The first process also calls any function that it is
told to over a Unix socket in that folder, such as `os.dup2` to point its standard error at a disk that is full. The
service's own code is left alone.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any


def _next_fault(folder: Path, where: str) -> list[str]:
    """Return kind and seconds of the oldest fault that waits for such a run, and let no other run meet it."""
    for path in sorted(folder.glob(f"{where} *")):
        with contextlib.suppress(FileNotFoundError):  # another run has met it
            path.unlink()
            return path.name.split()[2:]
    return ["", "0"]


def _meeting_faults(folder: Path, where: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def meet(*arguments: Any) -> Any:
        kind, seconds = _next_fault(folder, where)
        time.sleep(float(seconds))
        if kind == "cut-off":  # ONNX Runtime fails of itself, in the middle of its graph
            options = onnxruntime.RunOptions()
            options.terminate = True
            arguments = (*arguments, options)
        result = run(*arguments)
        if kind == "raise":
            raise MemoryError("made to fail after the run, with the caches written")
        return result

    return meet


def _obey(listener: Listener) -> None:
    while True:
        with listener.accept() as connection, contextlib.suppress(EOFError):
            while True:
                function, arguments = connection.recv()
                try:
                    answer = function(*arguments)
                except Exception as error:  # noqa: BLE001 - the answer says so
                    answer = error
                connection.send(answer)


if "CHAOS_FOLDER" in os.environ:
    import onnxruntime

    _folder = Path(os.environ["CHAOS_FOLDER"])
    for _name, _where in (("run", "encoder"), ("run_with_iobinding", "step")):
        _run = getattr(onnxruntime.InferenceSession, _name)
        setattr(onnxruntime.InferenceSession, _name, _meeting_faults(_folder, _where, _run))
    if not (_folder / "socket").exists():
        threading.Thread(target=_obey, args=(Listener(str(_folder / "socket")),), name="chaos", daemon=True).start()
