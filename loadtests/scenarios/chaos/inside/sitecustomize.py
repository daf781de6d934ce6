"""Injects faults inside the server that is tested; the server itself knows nothing of it.

Python imports this at its start if the folder is on PYTHONPATH, so the server is started by the very command that
operators use, and the processes that it starts import it, too. Runs of `onnxruntime.InferenceSession` and of the native
engine can be made to raise, to be cut off by the engine itself, or to hang: each fault is a file
`WHERE NUMBER KIND SECONDS` in the folder that CHAOS_FOLDER names, until a run in any of the processes meets it. The
first process also calls any function that it is told to over a Unix socket in that folder, such as `os.dup2` to point
its standard error at a disk that is full. The service's own code is left alone.
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


class _MeetingFaults:
    """A function of a shared library, which fails of itself, with -1, when it is to be cut off."""

    folder: Path
    where: str
    function: Any

    def __init__(self, folder: Path, where: str, function: Any) -> None:
        self.__dict__.update(folder=folder, where=where, function=function)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.function, name, value)  # such as its argument types

    def __call__(self, *arguments: Any) -> Any:
        kind, seconds = _next_fault(self.folder, self.where)
        time.sleep(float(seconds))
        if kind == "cut-off":
            return -1
        result = self.function(*arguments)
        if kind == "raise":
            raise MemoryError("made to fail after the run, with the caches written")
        return result


_NATIVE_RUNS = {"dragoman_encode": "encoder", "dragoman_batch_step": "step", "dragoman_batch_search": "step"}
"""Functions of the native engine, and the runs that they are."""


def _meet_faults_in_libraries(folder: Path) -> None:
    find = ctypes.CDLL.__getattr__

    def find_meeting(library: ctypes.CDLL, name: str) -> Any:
        function: Any = find(library, name)
        if name in _NATIVE_RUNS:
            function = _MeetingFaults(folder, _NATIVE_RUNS[name], function)
            setattr(library, name, function)
        return function

    ctypes.CDLL.__getattr__ = find_meeting  # type: ignore[method-assign]


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
    _meet_faults_in_libraries(_folder)
    if not (_folder / "socket").exists():
        threading.Thread(target=_obey, args=(Listener(str(_folder / "socket")),), name="chaos", daemon=True).start()
