"""Text that is bad by its characters: of every Unicode block, invisible, unassigned, stacked, out of order.

Each generator takes a random generator and a size in characters, and returns about as many, never more.
"""

import random
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Final

Shape = Callable[[random.Random, int], str]
"""Returns text of at most so many characters, at least 1."""

ROW_SIZE: Final = 256
NUM_ROWS: Final = 0x110000 // ROW_SIZE
"""Rows of 256 code points in all 17 planes; every block of the standard begins and ends at a multiple of 16."""

_COLUMN_SIZE: Final = 16
_SURROGATES: Final = range(0xD800, 0xE000)
_WORDS: Final = ("The", "man", "reads", "a", "letter", "2,000", "Dr", "isn't", "Paris", "x", "garden", "of")

CONTROLS: Final = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
BIDI: Final = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
ZERO_WIDTH: Final = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u200c\u200d\u2060\u2061\u2062\u2063\u2064\u3164\ufeff\uffa0"
)
LINE_BREAKS: Final = ("\n", "\r", "\r\n", "\n\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
WHITE_SPACE: Final = (
    " \t\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
_COMBINING: Final = "".join(
    char for char in map(chr, (*range(0x300, 0x370), *range(0x483, 0x48A), *range(0x20D0, 0x20F1))) if char != "\u034f"
)
_EXPANDING: Final = (
    "\ufdfa\ufdfb\u3300\u33ff\u1e9b\u0390\u1f82\ufb2c\ufb03\u2a74\U0001d160\u00bd\u01c4\ufb01\u2126\u212b\uac01"
)
_SCRIPT_STARTS: Final = (0x41, 0x391, 0x410, 0x531, 0x5D0, 0x627, 0x905, 0xE01, 0x10D0, 0x1100, 0x3041, 0x4E00, 0xAC00)
_LOOKALIKES: Final = str.maketrans(
    "aeopcxyiTBMHK", "\u0430\u0435\u043e\u0440\u0441\u0445\u0443\u0456\u0422\u0412\u041c\u041d\u041a"
)


def row(index: int, generator: random.Random) -> str:
    """Return two code points of each column of 16 of a row, be they assigned or not; surrogates are left out.

    Args:
        index: of the row, 0 to `NUM_ROWS` - 1.
        generator: chooses.
    """
    columns = range(index * ROW_SIZE, (index + 1) * ROW_SIZE, _COLUMN_SIZE)
    points = [point for first in columns for point in generator.sample(range(first, first + _COLUMN_SIZE), 2)]
    return "".join(chr(point) for point in points if point not in _SURROGATES)


def words(generator: random.Random, size: int) -> str:
    """Return ordinary words, as something to translate around what is bad."""
    return " ".join(generator.choices(_WORDS, k=size // 4 + 1))[:size]


def anything(generator: random.Random, size: int) -> str:
    """Return code points of all planes, noncharacters, private and unassigned ones as likely as others."""
    points = (generator.randrange(0x110000 - len(_SURROGATES)) for _ in range(size))
    return "".join(chr(point if point < _SURROGATES.start else point + len(_SURROGATES)) for point in points)


def noncharacters(generator: random.Random, size: int) -> str:
    """Return what Unicode promises never to assign, and the ends of its planes."""
    ends = [plane * 0x10000 + last for plane in range(17) for last in (0xFFFE, 0xFFFF)]
    return _spread(generator, size, [chr(point) for point in (*ends, *range(0xFDD0, 0xFDF0), 0xFFFC, 0xFFFD)])


def private_use(generator: random.Random, size: int) -> str:
    """Return characters that mean what two parties agreed."""
    areas = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
    return _spread(generator, size, [chr(generator.choice(generator.choice(areas))) for _ in range(32)])


def controls(generator: random.Random, size: int) -> str:
    """Return words with control characters between and inside of them."""
    return _spread(generator, size, CONTROLS)


def nul(generator: random.Random, size: int) -> str:
    """Return words full of U+0000."""
    return _spread(generator, size, "\0")


def bidi(generator: random.Random, size: int) -> str:
    """Return overrides, embeddings and isolates, opened and not closed, closed and not opened."""
    return _spread(generator, size, (*BIDI, "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627"))


def combining(generator: random.Random, size: int) -> str:
    """Return bases under towers of marks, at times one under all of them."""
    height = generator.choice((1, 8, 64, size))
    pieces: list[str] = []
    while sum(map(len, pieces)) < size:
        pieces += (generator.choice("aeo \u0905\u0627"), "".join(generator.choices(_COMBINING, k=height)))
    return "".join(pieces)[:size]


def zero_width(generator: random.Random, size: int) -> str:
    """Return words with joiners, fillers and spaces of no width inside of them."""
    return _spread(generator, size, ZERO_WIDTH)


def variations(generator: random.Random, size: int) -> str:
    """Return variation selectors and tag characters, with a base and without."""
    selectors = (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), *range(0x180B, 0x180E))
    return _spread(generator, size, [chr(point) for point in (*selectors, *range(0xE0001, 0xE0080), 0x1F3F4, 0x2603)])


def emoji(generator: random.Random, size: int) -> str:
    """Return emoji, joined, coloured, flagged, and sequences that break off."""
    skins, flags = map(chr, range(0x1F3FB, 0x1F400)), map(chr, range(0x1F1E6, 0x1F200))
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
    return _spread(
        generator, size, (*skins, *flags, family, "\U0001f469\u200d", "1\ufe0f\u20e3", "\u2764\ufe0f", "\U0001f600")
    )


def expanding(generator: random.Random, size: int) -> str:
    """Return what grows under normalization: ligatures, squared words, and U+FDFA, which becomes 18 characters."""
    return _spread(generator, size, (*_EXPANDING, *("\ufdfa" * 8), "e\u0301", "\u1112\u1161\u11ab"))


def denormalized(generator: random.Random, size: int) -> str:
    """Return letters taken apart, their marks in no canonical order."""
    letters = unicodedata.normalize("NFD", "ếǘṩḯǟȭ각힣ﬃ")
    return "".join(generator.choices(letters + "\u0323\u0307\u0327 ", k=size))


def mixed_scripts(generator: random.Random, size: int) -> str:
    """Return words of letters from many scripts, and Latin words in which some only look Latin."""
    letters = [chr(first + generator.randrange(20)) for first in _SCRIPT_STARTS]
    return _spread(generator, size, (*letters, *words(generator, 40).translate(_LOOKALIKES).split()))


def line_breaks(generator: random.Random, size: int) -> str:
    """Return lines ended in every way there is, empty ones among them."""
    return _spread(generator, size, LINE_BREAKS)


def white_space(generator: random.Random, size: int) -> str:
    """Return words apart by white space of all widths, and much of it."""
    runs = [generator.choice(WHITE_SPACE) * generator.choice((1, 2, 7)) for _ in range(24)]
    return _spread(generator, size, (*runs, *LINE_BREAKS[:3]))


def untranslatable(generator: random.Random, size: int) -> str:
    """Return text without a letter or digit: it must come back as it is."""
    parts = (
        *WHITE_SPACE,
        *LINE_BREAKS,
        *BIDI,
        "\0",
        "\u200b",
        "...",
        "!?",
        "\u2026",
        "\U0001f600",
        "---",
        "_",
        "\u0301",
    )
    return "".join(generator.choices(parts, k=size))[:size]


def _spread(generator: random.Random, size: int, bad: Sequence[str]) -> str:
    """Return pieces drawn at random, with ordinary words between them in every other text."""
    share = generator.choice((0.0, 0.5, 0.9))
    pieces = [" man" if generator.random() < share else bad[generator.randrange(len(bad))] for _ in range(max(1, size))]
    return "".join(pieces)[:size]


CHARACTER_SHAPES: Final[Mapping[str, Shape]] = {
    "anything": anything,
    "noncharacters": noncharacters,
    "private-use": private_use,
    "controls": controls,
    "nul": nul,
    "bidi": bidi,
    "combining": combining,
    "zero-width": zero_width,
    "variations": variations,
    "emoji": emoji,
    "expanding": expanding,
    "denormalized": denormalized,
    "mixed-scripts": mixed_scripts,
    "line-breaks": line_breaks,
    "white-space": white_space,
    "untranslatable": untranslatable,
}
"""By the name of their kind."""
