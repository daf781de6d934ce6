"""The compared systems, and a process for each of them."""

import functools
import importlib
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Final

from loadtests.benchmarks.interface import (
    ISA_VARIABLE,
    ModelFiles,
    Output,
    System,
    SystemName,
    SystemSettings,
    Work,
    WorkDone,
)

SYSTEMS: Final[dict[SystemName, str]] = {  # modules with a class `System`; each imports the library of its system
    "dragoman": "loadtests.benchmarks.system_dragoman",
    "ctranslate2": "loadtests.benchmarks.system_ctranslate2",
    "transformers": "loadtests.benchmarks.system_transformers",
}
_PAUSE_S: Final = 0.3  # before another system: OpenMP threads of the last one spin for 0.2 s


def open_system(files: ModelFiles, settings: SystemSettings) -> System:
    """Load a system, importing its library in this process."""
    system: System = importlib.import_module(SYSTEMS[settings.system]).System(files, settings)
    return system


class Workers(ExitStack):
    """A process for each system of one model, idle except during its turn.

    Separate processes have their own environment (CTranslate2 reads its instruction set at import) and thread pools.
    """

    def __init__(self, files: ModelFiles) -> None:
        super().__init__()
        self._files = files
        self._processes: dict[tuple[SystemName, str], ProcessPoolExecutor] = {}
        self._last: tuple[SystemName, str] | None = None

    def run(self, settings: SystemSettings, work: Work) -> WorkDone:
        """Run work in the process of its system; raises RuntimeError if it fails."""
        key = settings.system, settings.isa
        if key != self._last:
            time.sleep(_PAUSE_S)
            self._last = key
        if key not in self._processes:
            process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare, (settings.isa,))
            self._processes[key] = self.enter_context(process)
        try:
            return self._processes[key].submit(_perform, self._files, settings, work).result()
        except Exception as error:
            raise RuntimeError(f"{settings.name} failed: {error}") from error


def _prepare(isa: str) -> None:
    """Set up a new process, without the output of libraries."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    os.environ.pop(ISA_VARIABLE, None)
    if isa:
        os.environ[ISA_VARIABLE] = isa


_opened = functools.cache(open_system)


def _perform(files: ModelFiles, settings: SystemSettings, work: Work) -> WorkDone:
    system, latencies_s, outputs = _opened(files, settings.loaded_as), list[float](), list[Output]()
    for sources in work.calls():
        began_s = time.perf_counter()
        outputs += system.translate(sources, work.search, batch_size=settings.batch_size)
        latencies_s.append(time.perf_counter() - began_s)
    return WorkDone(tuple(latencies_s), tuple(outputs))
