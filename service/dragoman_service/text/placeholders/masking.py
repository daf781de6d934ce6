"""Placeholders: the tokens in place of protected spans, and the mask that other code sees instead.

Placeholders are the tokens that the model was trained to copy (`Tokenization.placeholders`). Other models get years:
they copy years more reliably than any other token, in every script and position (docs/guides/protected-text.md).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count

from dragoman_service.datatypes import Span
from dragoman_service.text.invariants import violations
from dragoman_service.text.placeholders.text_units import CodeKind, InlineCode, TextUnit
from dragoman_service.text.segmentation import Check, never_ends

MASK = violations.MASK
"""Character that replaces each character of a placeholder."""

# Years that differ in several digits. The other years of two centuries and longer numbers follow.
_YEARS = (2013, 1947, 1985, 1962, 2006, 1978, 1991, 2019, 1954, 1936, 2002, 1969)

_NUMBER = re.compile(r"\d{4,}")
_NUMBER_SIZES = (4, 6)  # digits of years, and of the numbers after them


class Placeholders:
    """Endless sequence of placeholders that do not occur in a message: trained ones, then years, then other numbers.

    Each unit of the message iterates from the first one on.
    """

    def __init__(self, message: str, trained: Sequence[str] = (), check: Check = never_ends) -> None:
        taken = _numbers_in(message, check)
        others: Iterable[int] = chain(range(2029, 1899, -1), count(100_003, 7))
        numbers = map(str, chain(_YEARS, (year for year in others if year not in _YEARS)))
        self._known = [placeholder for placeholder in trained if placeholder not in message]
        self._num_trained = len(self._known)
        self._candidates = (number for number in numbers if number not in taken)

    def __iter__(self) -> Iterator[str]:
        return self._from(0)

    def by_priority(self, priorities: Sequence[int]) -> Iterator[str]:
        """Return a placeholder for each span of a unit, in the order of the spans.

        The spans with the lowest numbers get trained placeholders. Of equal ones, the first spans do.
        """
        order = sorted(range(len(priorities)), key=priorities.__getitem__)
        is_trained = [False] * len(priorities)
        for index in order[: self._num_trained]:
            is_trained[index] = True
        trained, others = self._from(0), self._from(self._num_trained)
        return (next(trained) if is_first else next(others) for is_first in is_trained)

    def _from(self, first: int) -> Iterator[str]:
        for index in count(first):
            while index >= len(self._known):
                self._known.append(next(self._candidates))
            yield self._known[index]


def _numbers_in(text: str, check: Check) -> set[str]:
    # All runs of digits that are as long as a placeholder, also those within longer runs.
    numbers: set[str] = set()
    for run in _NUMBER.finditer(text):
        for start in range(*run.span()):
            check()
            numbers.update(text[start : start + size] for size in _NUMBER_SIZES if start + size <= run.end())
    return numbers


def renumbered(unit: TextUnit, placeholders: Placeholders, check: Check = never_ends) -> TextUnit:
    """Return a unit with the first of these placeholders for its spans.

    A sentence has the same placeholders alone and in a longer text, and trained ones in every sentence.
    """
    names = placeholders.by_priority([code.priority for code in unit.codes if code.kind is CodeKind.PLACEHOLDER])
    pieces: list[str] = []
    codes: list[InlineCode] = []
    position = shift = 0
    for code in unit.codes:
        check()
        start = code.start + shift
        if code.kind is CodeKind.PLACEHOLDER:
            own = unit.text[code.start : code.end]
            text = own.replace(own.strip(), next(names), 1)
            pieces += (unit.text[position : code.start], text)
            position = code.end
            shift += len(text) - len(own)
        codes.append(replace(code, start=start, end=code.end + shift))
    return replace(unit, text="".join((*pieces, unit.text[position:])), codes=tuple(codes))


def placeholder_ranges(unit: TextUnit, target: str) -> Iterator[tuple[InlineCode, Span]]:
    """Yield each occurrence of a placeholder of a unit in a translation, in order.

    Models write two numbers without space between them. Part of a longer number is not a placeholder.
    """
    by_text = {
        unit.text[code.start : code.end].strip(): code for code in unit.codes if code.kind is CodeKind.PLACEHOLDER
    }
    if not by_text:
        return
    escaped = [re.escape(placeholder) for placeholder in sorted(by_text, key=lambda placeholder: -len(placeholder))]
    numbers = "|".join(placeholder for placeholder in escaped if placeholder.isdigit()) or "(?!)"
    trained = "|".join(placeholder for placeholder in escaped if not placeholder.isdigit()) or "(?!)"
    for run in re.finditer(rf"(?:{trained})|(?<!\d)(?:{numbers})+(?!\d)", target):
        for match in re.finditer(rf"{trained}|{numbers}", run[0]):
            yield by_text[match[0]], Span(start=run.start() + match.start(), end=run.start() + match.end())


def masked(unit: TextUnit, check: Check = never_ends) -> str:
    """Return the text of a unit with `MASK` for each character of a placeholder."""
    pieces: list[str] = []
    position = 0
    for code in unit.codes:
        check()
        if code.kind is CodeKind.PLACEHOLDER:
            text = unit.text[code.start : code.end]
            placeholder = text.strip()
            pieces += (unit.text[position : code.start], text.replace(placeholder, MASK * len(placeholder), 1))
            position = code.end
    return "".join((*pieces, unit.text[position:]))


def unmasked(unit: TextUnit, text: str, check: Check = never_ends) -> str:
    """Return a text as long as the unit with the placeholders of the unit at their positions."""
    pieces: list[str] = []
    position = 0
    for code in unit.codes:
        check()
        if code.kind is CodeKind.PLACEHOLDER:
            pieces += (text[position : code.start], unit.text[code.start : code.end])
            position = code.end
    return "".join((*pieces, text[position:]))


def masked_target(unit: TextUnit, target: str) -> str:
    """Return a translation of a unit, as the model writes it, with `MASK` for each character of a placeholder."""
    pieces: list[str] = []
    position = 0
    for _, span in placeholder_ranges(unit, target):
        pieces += (target[position : span.start], MASK * (span.end - span.start))
        position = span.end
    return "".join((*pieces, target[position:]))
