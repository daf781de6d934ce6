"""Hostile texts by shape: characters, structure, length. `texts.toml` describes the shapes."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from loadtests.hostile.inputs import Draw

NUM_ROWS: Final = 0x1100  # rows of 256 code points in all 17 planes

_WORDS: Final = (" The", " man", " reads", " a", " letter", " 2,000", " Dr", " isn't", " Paris", " x", " garden", " of")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Texts of pieces that match a pattern, or of nested parts, or either."""

    summary: str
    pattern: str = ""
    has_words: bool = True
    nested: Sequence[tuple[str, str, str, str]] = ()  # head, opening, middle, closing


_DATA: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SHAPES: Final[Mapping[str, Shape]] = {name: Shape(**table) for name, table in _DATA["shapes"].items()}
NAMES: Final[Mapping[str, Sequence[str]]] = _DATA["names"]


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


def row(draw: Draw, index: int) -> str:
    """Draw two code points of each column of 16 of a row, assigned or not, without surrogates."""
    columns = range(256 * index, 256 * (index + 1), 16)
    points = [point for first in columns for point in draw.sample(range(first, first + 16), 2)]
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)
