"""Apostrophes in messages of Java and ICU, where a single `'` begins quoted text: `Don''t delete {0}`."""

import re
from collections.abc import Iterator

from dragoman_service.datatypes import Span
from dragoman_service.text.segmentation import Check

_ARGUMENT = re.compile(
    r"\{\s{0,8}+(?:\d{1,2}|\w{1,64}\s{0,8}+,\s{0,8}+(?:number|date|time|choice|plural|select|selectordinal))\s{0,8}+[,}]"
)
_DOUBLED = re.compile(r"(?<=[^\W\d_])''(?=[^\W\d_])")
_SINGLE = re.compile(r"(?<=[^\W\d_])'(?=[^\W\d_])")


def find_apostrophes(text: str, check: Check) -> tuple[list[Span], str]:
    """Return the doubled apostrophes of a message, and how a translation writes an apostrophe.

    That is doubled, or typographic if the message has none; empty for other texts. An apostrophe that is not doubled
    shows that the text is not such a message.
    """
    if "{" not in text or _ARGUMENT.search(text) is None or _SINGLE.search(text) is not None:
        return [], ""
    doubled = list(_spans(text, check))
    return doubled, "''" if doubled else "’"


def _spans(text: str, check: Check) -> Iterator[Span]:
    for match in _DOUBLED.finditer(text):
        check()
        yield Span(start=match.start(), end=match.end())
