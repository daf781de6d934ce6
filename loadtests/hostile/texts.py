"""Hostile texts by shape, which `texts.toml` describes, and the random choices that they are drawn with."""

import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb

_Drawn = TypeVar("_Drawn")
_GENERATE_ONLY: Final = settings(
    max_examples=2,  # the first example is always the simplest
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
CHEAP: Final[Mapping[str, Any]] = {"beam_size": 1, "max_target_tokens": 3, "repetition_guard": False}  # fast decoding
_WORDS: Final = (" The", " man", " reads", " a", " letter", " 2,000", " Dr", " isn't", " Paris", " x", " garden", " of")


class Draw(random.Random):
    """Random choices of one input, also from Hypothesis strategies, reproducible from the entropy.

    Args:
        entropy: seed.
        model: for which the input is made.
    """

    def __init__(self, entropy: str, *, model: pb.ModelVersion) -> None:
        super().__init__(entropy)
        self.model = model

    def __call__(self, strategy: st.SearchStrategy[_Drawn]) -> _Drawn:
        """Draw from a strategy."""
        drawn: list[_Drawn] = []

        @seed(str(self.random()))
        @_GENERATE_ONLY
        @given(strategy)
        def collect(value: _Drawn) -> None:
            drawn.append(value)

        collect()
        return drawn[-1]

    def size(self, most: int) -> int:
        """Draw a size from 1 on a logarithmic scale."""
        return int(most ** self.random())


def repeated(unit: str, size: int) -> str:
    """Return a unit repeated to exactly `size` characters."""
    return (unit * (size // len(unit) + 1))[:size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Texts of pieces that match a pattern, or of nested parts, or either."""

    summary: str
    pattern: str = ""
    has_words: bool = True
    nested: Sequence[tuple[str, str, str, str]] = ()  # head, opening, middle, closing


_TABLES: Final = tomllib.loads(Path(__file__).with_name("texts.toml").read_text("utf-8"))["shapes"]
SHAPES: Final[Mapping[str, Shape]] = {name: Shape(**table) for name, table in _TABLES.items()}


def shaped(draw: Draw, size: int, *names: str) -> str:
    """Draw a text of 1 to `size` characters of one of the named shapes, or of any."""
    shape = SHAPES[draw.choice(names or sorted(SHAPES))]
    if shape.nested and (not shape.pattern or draw.random() < 0.5):
        head, opening, middle, closing = draw.choice(shape.nested)
        depth = size // len(opening + closing) + 1
        text = head + opening * depth + middle + closing * draw.choice((0, depth, depth // 2))
    else:
        pieces = draw(st.lists(_matching(shape.pattern), min_size=1, max_size=draw.choice((1, 24))))
        share = draw.choice((0.0, 0.5, 0.9)) if shape.has_words else 0.0
        text = "".join(draw.choice(_WORDS if draw.random() < share else pieces) for _ in range(size))
    return text[:size]


@cache
def _matching(pattern: str) -> st.SearchStrategy[str]:
    return st.from_regex(pattern, fullmatch=True)
