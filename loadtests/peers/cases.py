"""What is translated: random sentences of fixed lengths by Transformer-base, real ones by the model that ships."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from loadtests.peers.models import SPECIAL_IDS
from loadtests.peers.sentences import sample
from loadtests.peers.systems import SearchOptions, TokenIds
from service.text.pipeline import EXTRA_TARGET_TOKENS

Mode = Literal["short", "full"]

Kind = Literal["speed", "growth", "agreement"]
"""growth: a point of the curve of cost by length, where int8 at all cores is enough; agreement: in 32-bit floats and
without a length penalty systems should say the same, so speed is not compared."""

SWEPT_LENGTHS: Final = (10, 25, 50, 100, 150, 200)
"""Target tokens of the cases that show how cost grows with length."""

_SOURCE_TOKENS = 24
_TARGET_TOKENS = 32
_NUM_LONE_SENTENCES = 8
_NUM_LONE_REAL_SENTENCES = 40
_ALPHA = 0.6
_NUM_SPECIAL_IDS = 4
_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One piece of work, done alike by all systems."""

    model: str
    """`base` or `shipped`."""

    name: str
    sources: tuple[TokenIds, ...]
    search: SearchOptions

    sources_per_call: int | None = None
    """See `Task`; 1 measures what a lone caller waits."""

    kind: Kind = "speed"

    references: tuple[str, ...] = ()
    """Human translations of the sources, for BLEU; empty: there are none."""

    has_meaning: bool = False
    """Whether sources are sentences, so that it can be compared what systems say."""

    @property
    def call_size(self) -> int:
        """Most sources of a call."""
        return self.sources_per_call or len(self.sources)


def base_cases(*, vocabulary_size: int, eos_id: int, mode: Mode) -> list[Case]:
    """Return the cases of Transformer-base: random token ids, targets of exactly as many tokens on every system."""
    sizes = (1, 8, 32) if mode == "short" else (1, 8, 32, 64)
    cases = []
    for size in sizes:
        count = _NUM_LONE_SENTENCES if size == 1 else size
        sources = random_sources(count, vocabulary_size=vocabulary_size, eos_id=eos_id)
        search = fixed_length(_TARGET_TOKENS)
        cases.append(Case(model="base", name=f"batch{size}", sources=sources, search=search, sources_per_call=size))
    if mode == "full":
        sources = random_sources(8, vocabulary_size=vocabulary_size, eos_id=eos_id)
        cases += [
            Case(model="base", name=f"length{length}", sources=sources, search=fixed_length(length), kind="growth")
            for length in SWEPT_LENGTHS
        ]
    return cases


def shipped_cases(name: str, sources: tuple[TokenIds, ...], *, references: tuple[str, ...], mode: Mode) -> list[Case]:
    """Return the cases of the model that ships on a set of sentences; the short mode leaves out two of them."""
    common: dict[str, Any] = {"model": "shipped", "has_meaning": True}
    search = SearchOptions(length_penalty=_ALPHA, extra_target_tokens=EXTRA_TARGET_TOKENS)
    everything = Case(name=f"{name}-all", sources=sources, references=references, search=search, **common)
    lone = Case(
        name=f"{name}-1",
        sources=tuple(sample(sources, _NUM_LONE_REAL_SENTENCES)),
        search=search,
        sources_per_call=1,
        **common,
    )
    if mode == "short":
        return [lone, everything]
    without_penalty = SearchOptions(extra_target_tokens=EXTRA_TARGET_TOKENS, suppressed_tokens=SPECIAL_IDS)
    return [
        lone,
        replace(everything, name=f"{name}-32", sources_per_call=32),
        everything,
        replace(everything, name=f"{name}-agreement", search=without_penalty, kind="agreement"),
    ]


def random_sources(count: int, *, vocabulary_size: int, eos_id: int) -> tuple[TokenIds, ...]:
    """Return sources of ordinary tokens, the same in every run."""
    generator = random.Random(_SEED)
    ordinary = range(_NUM_SPECIAL_IDS, vocabulary_size)
    return tuple((*generator.choices(ordinary, k=_SOURCE_TOKENS - 1), eos_id) for _ in range(count))


def fixed_length(num_tokens: int) -> SearchOptions:
    """Return options under which every target has exactly so many tokens."""
    return SearchOptions(min_target_tokens=num_tokens, max_target_tokens=num_tokens)


def selected(cases: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """Return the cases with one of the names, which may have wildcards such as `*`; all if there are no names."""
    return [case for case in cases if not names or any(fnmatchcase(case.name, name) for name in names)]
