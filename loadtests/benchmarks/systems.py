"""The interface of all compared systems, and a process for each of them. Imports no library of any system."""

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
SystemName = Literal["dragoman", "ctranslate2", "transformers", "pytorch"]
Precision = Literal["int8", "fp16", "fp32"]
Device = Literal["cpu", "cuda"]
GPU_PRECISIONS: Final[dict[Device, Precision]] = {"cuda": "fp16", "cpu": "fp32"}  # "cpu" stands in for a GPU
ISA_VARIABLE: Final = "CT2_FORCE_CPU_ISA"
AVX2_LIMITS: Final = {  # variables that limit each system and its libraries
    "DRAGOMAN_RUNTIME__INSTRUCTION_SET": "avx2",
    ISA_VARIABLE: "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
_PAUSE_S: Final = 0.3  # before another system: OpenMP threads of the last one spin for 0.2 s


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Files of one model."""

    directory: Path

    @property
    def served_path(self) -> Path:
        """Model directory with our bundle."""
        return self.directory / "served"

    @property
    def bundle_path(self) -> Path:
        """Our bundle."""
        return self.served_path / self.directory.name / "1"

    @property
    def ctranslate2_path(self) -> Path:
        """The same weights for CTranslate2."""
        return self.directory / "ctranslate2"

    def open(self) -> Bundle:
        """Return our bundle."""
        return open_bundle(self.bundle_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Search options, equal for all systems of a case."""

    beam_size: int = 4
    min_target_tokens: int = 0  # without EOS; equal to `max_target_tokens` for targets of a fixed length
    max_target_tokens: int = 256  # with EOS
    extra_target_tokens: int | None = None  # limit relative to the source, within `max_target_tokens`
    length_penalty: float = 0.0  # exponent of each system's own penalty; 0 disables it
    suppressed_tokens: TokenIds = ()
    """Special tokens, which the service never generates. Others do not either if they are listed here, at a small cost
    that matters only where hypotheses are compared."""

    def longest_target(self, sources: Sequence[TokenIds]) -> int:
        """Return the limit for the sources of one call, that of the longest one."""
        if self.extra_target_tokens is None:
            return self.max_target_tokens
        return min(max(map(len, sources)) + self.extra_target_tokens, self.max_target_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSettings:
    """A system and its settings for speed."""

    system: SystemName
    precision: Precision
    device: Device = "cpu"
    num_streams: int = 1  # batches decoded at the same time
    num_threads: int = 1  # of each stream
    batch_size: int = 16
    isa: str = ""  # instruction set of CTranslate2 or the native engine, such as AVX2; empty: its own choice

    @property
    def loaded_as(self) -> "SystemSettings":
        """Settings that share one loaded model."""
        return replace(self, batch_size=0)

    @property
    def name(self) -> str:
        """System and precision, such as `ctranslate2-int8`."""
        return f"{self.system}-{self.precision}"

    @property
    def setup(self) -> str:
        """Precision, streams, threads and further settings, such as `int8@2x1,b16`."""
        isa = f",{self.isa.lower()}" if self.isa else ""
        return f"{self.precision}@{self.num_streams}x{self.num_threads},b{self.batch_size}{isa}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Sources to translate."""

    sources: tuple[TokenIds, ...]  # EOS last
    search: SearchOptions
    sources_per_call: int | None = None  # None: all in one call

    @property
    def call_size(self) -> int:
        """Maximum number of sources of a call."""
        return self.sources_per_call or len(self.sources)

    def calls(self) -> list[tuple[TokenIds, ...]]:
        """Return the sources of each call."""
        return [self.sources[first : first + self.call_size] for first in range(0, len(self.sources), self.call_size)]


class Output(NamedTuple):
    """The best hypothesis of one source."""

    token_ids: TokenIds  # with EOS if the search reached it, without BOS and padding
    score: float  # comparable between systems only without length penalty


class WorkDone(NamedTuple):
    """Time and outputs of work."""

    latencies_s: tuple[float, ...]  # of each call
    outputs: tuple[Output, ...]

    @property
    def elapsed_s(self) -> float:
        """Time of all calls."""
        return sum(self.latencies_s)

    @property
    def num_target_tokens(self) -> int:
        """Tokens of all outputs, with EOS."""
        return sum(len(output.token_ids) for output in self.outputs)


class System(Protocol):
    """A loaded network; implementations are in modules such as `system_pytorch`."""

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        """Return the best hypothesis of each source, in order."""


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a comparison on a GPU."""
    gpu = "compare in half precision on a GPU; cpu: the same in fp32 without a GPU"
    parser.add_argument("--gpu", choices=tuple(GPU_PRECISIONS), help=gpu)
    files = "the model, as `prepare` has written it (default: written now)"
    parser.add_argument("--files", type=lambda text: ModelFiles(Path(text).resolve()), metavar="DIR", help=files)


def open_system(files: ModelFiles, settings: SystemSettings) -> System:
    """Load a system, importing its library in this process."""
    module = importlib.import_module(f"loadtests.benchmarks.system_{settings.system}")
    system: System = module.System(files, settings)
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
