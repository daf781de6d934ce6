"""What every system compared is asked for and answers: one protocol, its settings, the files of a model.

Imports no library of any system.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from service.bundle import Bundle, open_bundle

TokenIds = tuple[int, ...]

Peer = Literal["dragoman", "ctranslate2", "transformers", "pytorch"]

Precision = Literal["int8", "fp32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where the files of one model lie."""

    directory: Path

    @property
    def bundle_path(self) -> Path:
        """Our bundle, at both precisions."""
        return self.directory / "bundle"

    @property
    def ctranslate2_path(self) -> Path:
        """The same weights as CTranslate2 stores them."""
        return self.directory / "ctranslate2"

    def open(self) -> Bundle:
        """Return the bundle."""
        return open_bundle(self.bundle_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What is searched for; the same for every system of a case."""

    beam_size: int = 4

    min_target_tokens: int = 0
    """EOS not counted; at `max_target_tokens` no hypothesis ends by itself, and every target has the same length."""

    max_target_tokens: int = 256
    """EOS counted."""

    extra_target_tokens: int | None = None
    """What a target may have more than its source, within `max_target_tokens`; None: that alone limits it."""

    length_penalty: float = 0.0
    """Exponent of each system's own length penalty; 0 disables it everywhere."""

    suppressed_tokens: TokenIds = ()
    """Never taken. The service never takes special tokens other than EOS; others do not either if they are named here,
    which costs them a little and matters only where hypotheses are compared one by one."""

    def longest_target(self, num_source_tokens: int) -> int:
        """Return the limit for a source; of several, a system that takes one limit a call uses the longest one's."""
        if self.extra_target_tokens is None:
            return self.max_target_tokens
        return min(num_source_tokens + self.extra_target_tokens, self.max_target_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The best hypothesis of one source."""

    token_ids: TokenIds
    """EOS last if it ended by itself, BOS and padding not stored."""

    score: float
    """After the system's own length penalty, which makes scores of systems comparable only without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSettings:
    """A system, and how it is set up for speed."""

    peer: Peer
    precision: Precision

    num_streams: int = 1
    """Batches decoded at the same time; with one stream all threads work on one batch."""

    num_threads: int = 1
    """Threads of each stream."""

    batch_size: int = 16
    """Most segments of a batch."""

    isa: str = ""
    """Instruction set that CTranslate2 is told to use, such as AVX2; empty: its own choice."""

    @property
    def total_threads(self) -> int:
        """Cores it may keep busy."""
        return self.num_streams * self.num_threads

    @property
    def loaded_as(self) -> tuple[object, ...]:
        """What must be the same for two set-ups to share one loaded model."""
        return self.peer, self.precision, self.num_streams, self.num_threads, self.isa

    @property
    def name(self) -> str:
        """System and precision, such as `ctranslate2-int8`."""
        return f"{self.peer}-{self.precision}"

    @property
    def setup(self) -> str:
        """Precision and threads, such as `int8@t2`, and what else was chosen: `int8@2x1,b16`."""
        isa = f",{self.isa.lower()}" if self.isa else ""
        return f"{self.precision}@{self.num_streams}x{self.num_threads},b{self.batch_size}{isa}"


class System(Protocol):
    """A network that is loaded and ready to translate."""

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        """Return the best hypothesis of each source, in order.

        Args:
            sources: token ids, EOS last.
            search: the same for all.
            batch_size: most segments decoded together.
        """

    def close(self) -> None:
        """Give back its memory and threads."""
