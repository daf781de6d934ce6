"""What every system compared is asked for and answers, and a process for each of them.

Imports no library of any system.
"""

import argparse
import functools
import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from dragoman_service.bundle.files import Bundle, open_bundle

TokenIds = tuple[int, ...]
Peer = Literal["dragoman", "ctranslate2", "transformers", "pytorch"]
Precision = Literal["int8", "fp16", "fp32"]
Device = Literal["cpu", "cuda"]
GPU_PRECISIONS: Final[dict[Device, Precision]] = {"cuda": "fp16", "cpu": "fp32"}
"""Of a comparison on a GPU, and of one with the CPU in its place, where not every system has half precision."""
_ISA_VARIABLE: Final = "CT2_FORCE_CPU_ISA"
_PAUSE_S: Final = 0.3  # before another system's turn: OpenMP keeps threads of the last one spinning for 0.2 s


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where the files of one model lie."""

    directory: Path

    @property
    def served_path(self) -> Path:
        """A directory of models that holds our bundle alone, at both precisions."""
        return self.directory / "served"

    @property
    def bundle_path(self) -> Path:
        """That bundle."""
        return self.served_path / self.directory.name / "1"

    @property
    def ctranslate2_path(self) -> Path:
        """The same weights as CTranslate2 stores them."""
        return self.directory / "ctranslate2"

    def open(self) -> Bundle:
        """Return our bundle."""
        return open_bundle(self.bundle_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What is searched for; the same for every system of a case."""

    beam_size: int = 4
    min_target_tokens: int = 0
    """EOS not counted; at `max_target_tokens` no hypothesis ends by itself, and every target has the same length."""
    max_target_tokens: int = 256  # EOS counted
    extra_target_tokens: int | None = None
    """What a target may have more than its source, within `max_target_tokens`; None: that alone limits it."""
    length_penalty: float = 0.0  # exponent of each system's own length penalty; 0 disables it everywhere
    suppressed_tokens: TokenIds = ()
    """Never taken. The service never takes special tokens other than EOS; others do not either if they are named here,
    which costs them a little and matters only where hypotheses are compared one by one."""

    def longest_target(self, sources: Sequence[TokenIds]) -> int:
        """Return the limit for sources of one call: a system that takes one for all gets that of the longest."""
        if self.extra_target_tokens is None:
            return self.max_target_tokens
        return min(max(map(len, sources)) + self.extra_target_tokens, self.max_target_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSettings:
    """A system, and how it is set up for speed."""

    peer: Peer
    precision: Precision
    device: Device = "cpu"
    num_streams: int = 1  # batches decoded at the same time; with one stream all threads work on one batch
    num_threads: int = 1  # of each stream
    batch_size: int = 16  # most segments of a batch
    isa: str = ""  # instruction set that CTranslate2 is told to use, such as AVX2; empty: its own choice

    @property
    def loaded_as(self) -> "SystemSettings":
        """What must be the same for two set-ups to share one loaded model."""
        return replace(self, batch_size=0)

    @property
    def name(self) -> str:
        """System and precision, such as `ctranslate2-int8`."""
        return f"{self.peer}-{self.precision}"

    @property
    def setup(self) -> str:
        """Precision, streams and threads, and what else was chosen: `int8@2x1,b16`."""
        isa = f",{self.isa.lower()}" if self.isa else ""
        return f"{self.precision}@{self.num_streams}x{self.num_threads},b{self.batch_size}{isa}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Sources to be translated once, under a clock."""

    sources: tuple[TokenIds, ...]  # EOS last
    search: SearchOptions
    sources_per_call: int | None = None
    """Given at once, the next when these are answered; None: all of them. 1 measures what a lone caller waits."""

    @property
    def call_size(self) -> int:
        """Most sources of a call."""
        return self.sources_per_call or len(self.sources)

    def calls(self) -> list[tuple[TokenIds, ...]]:
        """Return the sources of each call."""
        return [self.sources[first : first + self.call_size] for first in range(0, len(self.sources), self.call_size)]


class Output(NamedTuple):
    """The best hypothesis of one source."""

    token_ids: TokenIds  # EOS last if it ended by itself, BOS and padding not stored
    score: float  # after the system's own length penalty, which makes scores of systems comparable only without one


class WorkDone(NamedTuple):
    """What it took and gave."""

    latencies_s: tuple[float, ...]  # of each call, one after another
    outputs: tuple[Output, ...]

    @property
    def elapsed_s(self) -> float:
        """Of all calls together."""
        return sum(self.latencies_s)

    @property
    def num_target_tokens(self) -> int:
        """Of all outputs, EOS counted."""
        return sum(len(output.token_ids) for output in self.outputs)


class System(Protocol):
    """A network that is loaded and ready to translate; each in a module of its own, such as `pytorch_system`."""

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        """Return the best hypothesis of each source, in order, at most so many segments decoded together."""


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of a comparison on a GPU."""
    what = "compare in half precision on a GPU, as a GPU is used; cpu: the same in fp32, the CPU in its place"
    parser.add_argument("--gpu", choices=tuple(GPU_PRECISIONS), help=what)
    what = "the one model that is compared, as `prepare` has written it; default: it is written now"
    parser.add_argument("--files", type=lambda text: ModelFiles(Path(text).resolve()), metavar="DIR", help=what)


def open_system(files: ModelFiles, settings: SystemSettings) -> System:
    """Load a system; the library it needs is imported here, by the process that needs it."""
    system: System = importlib.import_module(f"loadtests.benchmarks.{settings.peer}_system").System(files, settings)
    return system


class Workers(ExitStack):
    """A process for each system of one model, alive for the whole comparison and idle but for its turn.

    A process of its own gives each its environment (CTranslate2 reads its instruction set when it is imported) and
    keeps the thread pools of one library from the others. Each is started when it is first needed.
    """

    def __init__(self, files: ModelFiles) -> None:
        super().__init__()
        self._files = files
        self._processes: dict[tuple[Peer, str], ProcessPoolExecutor] = {}
        self._last: tuple[Peer, str] | None = None

    def run(self, settings: SystemSettings, work: Work) -> WorkDone:
        """Have work done by the process of its system, while the others stand still; RuntimeError if it fails."""
        key = settings.peer, settings.isa
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
    """Begin in a new process, where what libraries print is dropped."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    os.environ.pop(_ISA_VARIABLE, None)
    if isa:
        os.environ[_ISA_VARIABLE] = isa


_opened = functools.cache(open_system)
"""Systems stay loaded."""


def _perform(files: ModelFiles, settings: SystemSettings, work: Work) -> WorkDone:
    """Translate under the clock."""
    system, latencies_s, outputs = _opened(files, settings.loaded_as), list[float](), list[Output]()
    for sources in work.calls():
        began_s = time.perf_counter()
        outputs += system.translate(sources, work.search, batch_size=settings.batch_size)
        latencies_s.append(time.perf_counter() - began_s)
    return WorkDone(tuple(latencies_s), tuple(outputs))
