"""Digits in `<sup>` and `<sub>` directly after a unit, a formula or a number, read as characters of Unicode.

    20 cm<sup>2</sup>    H<sub>2</sub>O    10<sup>-6</sup>

As `cm²` and `H₂O`, they are protected with their word. A digit after a longer word is a note, and its tags stay tags.
"""

import re
from collections.abc import Iterator

from dragoman_service.datatypes import Span
from dragoman_service.text.segmentation import Check

SUPERSCRIPT = re.compile(
    r"(?:(?<=(?u:[\w)]))(?<![^\W\d_]{4})|(?<=</su[bp]>))<(?P<name>su[bp])>(?P<digits>[-+\u2212]?\d{1,4}[-+\u2212]?)</(?P=name)>",
    re.IGNORECASE | re.ASCII,
)
_CHARACTERS = {
    "sup": str.maketrans("0123456789+-\u2212", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻"),
    "sub": str.maketrans("0123456789+-\u2212", "₀₁₂₃₄₅₆₇₈₉₊₋₋"),
}


def superscript_codes(match: re.Match[str]) -> Iterator[tuple[Span, str]]:
    """Yield the range of the message and the Unicode character of each digit; the ranges include the tags."""
    start = match.start()
    characters = match["digits"].translate(_CHARACTERS[match["name"].lower()])
    for index, character in enumerate(characters):
        position = match.start("digits") + index + 1
        end = match.end() if index == len(characters) - 1 else position
        yield Span(start=start, end=end), character
        start = end


def superscript_forms(text: str, check: Check) -> tuple[tuple[str, str], ...]:
    """Return the Unicode characters of a message, and their forms with tags."""
    if "</su" not in text and "</SU" not in text:
        return ()
    forms: dict[str, str] = {}
    for match in SUPERSCRIPT.finditer(text):
        check()
        name, digits = match["name"], match["digits"]
        for digit, character in zip(digits, digits.translate(_CHARACTERS[name.lower()]), strict=True):
            forms[character] = f"<{name}>{digit}</{name}>"
    return tuple(forms.items())
