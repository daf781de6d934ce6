"""The values that invariants take and return."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dragoman_service.datatypes import Span, WarningKind

MASK = "\ufffc"  # a run of these replaces a protected span, which is restored exactly

MAX_VIOLATIONS = 16
"""Most violations that one invariant reports for one text."""

HARD_KINDS = frozenset(
    {
        WarningKind.EMPTY_TRANSLATION,
        WarningKind.INVALID_OUTPUT,
        WarningKind.NUMBER_CHANGED,
        WarningKind.IDENTIFIER_CHANGED,
        WarningKind.SYMBOL_CHANGED,
        WarningKind.PLACEHOLDER_LOST,
        WarningKind.MARKUP_CHANGED,
    }
)
"""Kinds of damage that make a translation wrong. The other kinds may be correct in rare cases."""

INVARIANT_KINDS = HARD_KINDS - {WarningKind.PLACEHOLDER_LOST} | {
    WarningKind.NAME_CHANGED,
    WarningKind.ADDRESS_CHANGED,
    WarningKind.ENDING_CHANGED,
    WarningKind.WHITE_SPACE_CHANGED,
    WarningKind.CAPITALS_CHANGED,
    WarningKind.UNTRANSLATED,
}
"""Kinds that a comparison of two texts finds."""

_MAX_QUOTED_CHARACTERS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A property of the source that the target does not preserve."""

    kind: WarningKind
    detail: str  # for people; quotes the text, shortened
    source: Span | None  # None: the text was added, or the whole source
    target: Span | None  # None: the text is missing, or the whole target


def _can_spell_all(_: str) -> bool:
    return True


def _is_word_of_none(_: str) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """A source and its target.

    Both may contain runs of `MASK`, which are not letters, digits or symbols and separate words.
    """

    source: str
    target: str
    source_language: str  # BCP-47 tag
    target_language: str
    spells: Callable[[str], bool] = _can_spell_all  # whether the vocabulary of the model has a character
    is_word: Callable[[str], bool] = _is_word_of_none  # whether a word of the source is one token

    def is_rare(self, word: str) -> bool:
        """Return whether a word is several tokens, as it is written and in lower case; False if that is unknown."""
        return self.is_word is not _is_word_of_none and not self.is_word(word) and not self.is_word(word.lower())


Invariant = Callable[[Texts], Iterator[Violation]]


def quoted(text: str) -> str:
    """Return a text for a message, shortened."""
    return text if len(text) <= _MAX_QUOTED_CHARACTERS else f"{text[: _MAX_QUOTED_CHARACTERS - 1]}…"
