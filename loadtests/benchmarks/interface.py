"""The interface of all compared systems. Imports no library of any system."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from dragoman_service.bundle.files import Bundle, open_bundle

TokenIds = tuple[int, ...]
SystemName = Literal["dragoman", "ctranslate2", "transformers"]
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
    """A loaded network; implementations are in modules such as `system_transformers`."""

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        """Return the best hypothesis of each source, in order."""


def add_gpu(parser: argparse.ArgumentParser, *, is_required: bool = False) -> None:
    """Add the flags of a comparison on a GPU."""
    gpu = "compare in half precision on a GPU; cpu: the same in fp32 without a GPU"
    parser.add_argument("--gpu", choices=tuple(GPU_PRECISIONS), help=gpu)
    files = f"the model, as `prepare` has written it{'' if is_required else ' (default: written now)'}"
    parser.add_argument("--files", type=_model_files, required=is_required, metavar="DIR", help=files)


def _model_files(text: str) -> ModelFiles:
    return ModelFiles(Path(text).resolve())
