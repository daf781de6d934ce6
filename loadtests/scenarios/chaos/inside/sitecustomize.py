"""Injects faults inside the server under test, which has no hook for them.

Python imports this module at startup if its folder is on PYTHONPATH, in the server and in its child processes. Runs of
`onnxruntime.InferenceSession` and of the native engine can raise, be terminated by the engine itself, or hang: each
armed fault is a file `WHERE NUMBER KIND SECONDS` in the folder CHAOS_FOLDER, until a run in any process triggers it.
The main process also calls functions that it receives over a Unix socket in that folder, such as `os.dup2` to redirect
its standard error.
"""

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any


def _next_fault(folder: Path, where: str) -> list[str]:
    """Take the oldest armed fault for a run; return kind and seconds."""
    for path in sorted(folder.glob(f"{where} *")):
        with contextlib.suppress(FileNotFoundError):  # another run triggered it
            path.unlink()
            return path.name.split()[2:]
    return ["", "0"]


def _with_faults(folder: Path, where: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def run_with_faults(*arguments: Any) -> Any:
        kind, seconds = _next_fault(folder, where)
        time.sleep(float(seconds))
        if kind == "cut-off":  # ONNX Runtime itself fails, in the middle of its graph
            options = onnxruntime.RunOptions()
            options.terminate = True
            arguments = (*arguments, options)
        result = run(*arguments)
        if kind == "raise":
            raise MemoryError("injected after the run, with the caches written")
        return result

    return run_with_faults


class _FunctionWithFaults:
    """A function of a shared library, which returns -1 for the fault cut-off."""

    folder: Path
    where: str
    function: Any

    def __init__(self, folder: Path, where: str, function: Any) -> None:
        self.__dict__.update(folder=folder, where=where, function=function)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.function, name, value)  # such as argument types

    def __call__(self, *arguments: Any) -> Any:
        kind, seconds = _next_fault(self.folder, self.where)
        time.sleep(float(seconds))
        if kind == "cut-off":
            return -1
        result = self.function(*arguments)
        if kind == "raise":
            raise MemoryError("injected after the run, with the caches written")
        return result


_NATIVE_RUNS = {  # functions of the native engine
    "dragoman_encode": "encoder",
    "dragoman_batch_step": "step",
    "dragoman_batch_search": "step",
}


def _add_faults_to_libraries(folder: Path) -> None:
    find = ctypes.CDLL.__getattr__

    def find_with_faults(library: ctypes.CDLL, name: str) -> Any:
        function: Any = find(library, name)
        if name in _NATIVE_RUNS:
            function = _FunctionWithFaults(folder, _NATIVE_RUNS[name], function)
            setattr(library, name, function)
        return function

    ctypes.CDLL.__getattr__ = find_with_faults  # type: ignore[method-assign]


def _serve(listener: Listener) -> None:
    while True:
        with listener.accept() as connection, contextlib.suppress(EOFError):
            while True:
                function, arguments = connection.recv()
                try:
                    answer = function(*arguments)
                except Exception as error:  # noqa: BLE001 - sent back
                    answer = error
                connection.send(answer)


if "CHAOS_FOLDER" in os.environ:
    import onnxruntime

    _folder = Path(os.environ["CHAOS_FOLDER"])
    for _name, _where in (("run", "encoder"), ("run_with_iobinding", "step")):
        _run = getattr(onnxruntime.InferenceSession, _name)
        setattr(onnxruntime.InferenceSession, _name, _with_faults(_folder, _where, _run))
    _add_faults_to_libraries(_folder)
    if not (_folder / "socket").exists():
        threading.Thread(target=_serve, args=(Listener(str(_folder / "socket")),), name="chaos", daemon=True).start()
