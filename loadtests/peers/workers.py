"""One process for each system, alive for the whole comparison and idle but for its turn.

A process of its own gives each its environment (CTranslate2 reads its instruction set when it is imported) and keeps
the thread pools of one library from the others.
"""

import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, Self

from loadtests.peers.systems import ModelFiles, Output, Peer, SearchOptions, System, SystemSettings, TokenIds

_ISA_VARIABLE = "CT2_FORCE_CPU_ISA"
_STOP_TIMEOUT_S = 30.0
_PAUSE_S = 0.3
"""Before another worker's turn: OpenMP keeps threads of the last one spinning for 0.2 s."""

_CLASSES: Final[Mapping[Peer, str]] = {
    "dragoman": "DragomanSystem",
    "ctranslate2": "CTranslate2System",
    "transformers": "TransformersSystem",
    "pytorch": "PyTorchSystem",
}
"""Each in a module of its own, such as `pytorch_system`."""


class WorkerError(Exception):
    """A worker ended before it answered; what it wrote stands above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Sources that a system translates once, under a clock."""

    settings: SystemSettings
    sources: tuple[TokenIds, ...]
    search: SearchOptions
    sources_per_call: int | None = None
    """Given at once, the next when these are answered; None: all of them."""

    def calls(self) -> list[tuple[TokenIds, ...]]:
        """Return the sources of each call."""
        count = self.sources_per_call or len(self.sources)
        return [self.sources[first : first + count] for first in range(0, len(self.sources), count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task took and gave."""

    elapsed_s: float
    latencies_s: tuple[float, ...]
    """Of each call."""
    outputs: tuple[Output, ...]

    @property
    def num_target_tokens(self) -> int:
        """Of all outputs, EOS counted."""
        return sum(len(output.token_ids) for output in self.outputs)


class Worker:
    """The parent's side of a worker process."""

    def __init__(self, files: ModelFiles, *, isa: str = "") -> None:
        """Start the process; `isa` is what CTranslate2 is told to use there."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, files, isa))
        self._process.start()
        theirs.close()

    def run(self, task: Task) -> TaskResult:
        """Have a task done and wait for it; WorkerError if the process fails."""
        try:
            self._connection.send(task)
            result: TaskResult = self._connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerError(f"the worker of {task.settings.name} ended") from error
        return result

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(_STOP_TIMEOUT_S)


class Workers:
    """The workers of one model, each started when it is first needed."""

    def __init__(self, files: ModelFiles) -> None:
        """Start none yet."""
        self._files = files
        self._workers: dict[tuple[Peer, str], Worker] = {}
        self._last: tuple[Peer, str] | None = None

    def run(self, task: Task) -> TaskResult:
        """Have a task done by the worker of its system; the others stand still meanwhile."""
        key = (task.settings.peer, task.settings.isa)
        if key != self._last:
            time.sleep(_PAUSE_S)
            self._last = key
        if key not in self._workers:
            self._workers[key] = Worker(self._files, isa=task.settings.isa)
        return self._workers[key].run(task)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.close()


def _serve(connection: "Connection[Any, Any]", files: ModelFiles, isa: str) -> None:
    """Do tasks until the parent hangs up; systems stay loaded. What libraries print is dropped."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    os.environ.pop(_ISA_VARIABLE, None)
    if isa:
        os.environ[_ISA_VARIABLE] = isa
    systems: dict[tuple[object, ...], System] = {}
    while True:
        try:
            task: Task = connection.recv()
        except EOFError:
            break
        key = task.settings.loaded_as
        if key not in systems:
            systems[key] = open_system(files, task.settings)
        connection.send(perform(systems[key], task))
    for system in systems.values():
        system.close()


def perform(system: System, task: Task) -> TaskResult:
    """Translate under the clock."""
    outputs: list[Output] = []
    latencies_s = []
    for sources in task.calls():
        began_s = time.perf_counter()
        outputs += system.translate(sources, task.search, batch_size=task.settings.batch_size)
        latencies_s.append(time.perf_counter() - began_s)
    return TaskResult(elapsed_s=sum(latencies_s), latencies_s=tuple(latencies_s), outputs=tuple(outputs))


def open_system(files: ModelFiles, settings: SystemSettings) -> System:
    """Load a system; the library it needs is imported here, by the worker that needs it."""
    module = importlib.import_module(f"loadtests.peers.{settings.peer}_system")
    system: System = getattr(module, _CLASSES[settings.peer])(files, settings)
    return system
