"""Second searches: what a part is decoded with again after its translation violated an invariant."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from dragoman_service.datatypes import SearchConfig, Span, WarningKind
from dragoman_service.text.candidates import Candidate
from dragoman_service.text.casing import is_irregular, lowered_words
from dragoman_service.text.invariants.violations import primary_language
from dragoman_service.text.placeholders.number_values import numbers_in
from dragoman_service.text.placeholders.text_units import TextUnit
from dragoman_service.text.plans import TextPart

# Violations whose span in the source is protected in the second search.
_PROTECTED = frozenset(
    (
        WarningKind.NUMBER_CHANGED,
        WarningKind.IDENTIFIER_CHANGED,
        WarningKind.SYMBOL_CHANGED,
        WarningKind.NAME_CHANGED,
        WarningKind.ADDRESS_CHANGED,
    )
)

_WORD = re.compile(r"[^\W\d_]+")
_BEFORE_NUMBER = re.compile(r"(?<![\w-])(?:[A-ZÄÖÜ]{2,8} )?(?:\d{1,20}-){0,4}\Z")
_AFTER_NUMBER = re.compile(r"(?:-\d{1,20}){1,4}(?!\w)")
_MAX_NUMBER = 64
_NO_REPEAT_SIZE = 3  # a search that must not copy its source tends to repeat itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Changes for the second search of a part."""

    spans: tuple[Span, ...] = ()  # ranges of the text of the part to protect
    avoids_source: bool = False
    suppresses_bytes: bool = False
    min_added_tokens: int = 0  # tokens that the translation must have
    recased: str = ""  # model text in another case
    inserts_placeholders: bool = False  # begin with the first translation, with lost placeholders inserted

    @property
    def is_needed(self) -> bool:
        """True if anything changes."""
        return self != Repair()


def plan_repair(
    source: str,
    part: TextPart,
    candidate: Candidate,
    *,
    guards_copies: bool,
    language: str,
    is_piece: Callable[[str], bool],
) -> Repair:
    """Return the changes for the second search of a part with this best candidate.

    Args:
        source: the text of the part.
        part: the part.
        candidate: the best candidate of the first search.
        guards_copies: whether copies of the source are decoded again.
        language: the source language.
        is_piece: whether the tokenizer of the source encodes a word as one token.
    """
    kinds = candidate.kinds
    recased = None
    if guards_copies and candidate.is_copied_label and candidate.hypothesis.is_finished:
        recased = _in_other_case(part.model_text.text, language, is_piece)
    return Repair(
        spans=_spans(source, candidate),
        avoids_source=guards_copies and WarningKind.UNTRANSLATED in kinds,
        suppresses_bytes=WarningKind.INVALID_OUTPUT in kinds,
        min_added_tokens=2 if WarningKind.EMPTY_TRANSLATION in kinds else 0,
        recased=recased or "",
        inserts_placeholders=WarningKind.PLACEHOLDER_LOST in kinds,
    )


def repaired_search(search: SearchConfig, repair: Repair, *, byte_ids: frozenset[int]) -> SearchConfig:
    """Return the search of a repair; stricter limits of the caller are kept."""
    if repair.avoids_source:
        size = min(search.no_repeat_ngram_size or _NO_REPEAT_SIZE, _NO_REPEAT_SIZE)
        search = replace(search, avoids_source=True, no_repeat_ngram_size=size)
    if repair.suppresses_bytes:
        search = replace(search, suppressed_tokens=search.suppressed_tokens | byte_ids)
    if repair.min_added_tokens:
        shortest = len(search.target_prefix) + repair.min_added_tokens
        search = replace(
            search, min_target_tokens=max(search.min_target_tokens, min(shortest, search.max_target_tokens - 1))
        )
    return search


def _in_other_case(text: str, language: str, is_piece: Callable[[str], bool]) -> str | None:
    # Models copy labels because of their capitals, and German nouns in lower case. A word of several tokens in both
    # cases may be a name: it stays as it is.
    if primary_language(language) == "de" and text.isalpha() and text.islower():
        return text.capitalize()
    if is_irregular(text):
        return text.capitalize() if is_piece(text.capitalize()) or is_piece(text.lower()) else None
    lowered = lowered_words(text, language=language)
    if lowered is None:
        return None
    words = zip(_WORD.findall(text), _WORD.findall(lowered), strict=True)
    return lowered if all(is_piece(word) or is_piece(lower) for word, lower in words) else None


def part_unit(source: str, part: TextPart) -> TextUnit:
    """Return the unit of a part, also of one without codes."""
    return part.unit or TextUnit(text=source, start=part.span.start, source=part.span, codes=())


def _spans(source: str, candidate: Candidate) -> tuple[Span, ...]:
    # Ordered, and apart from each other.
    spans: list[Span] = []
    for each in candidate.violations:
        if each.kind is WarningKind.SYMBOL_CHANGED and each.source is not None:
            symbol = re.escape(source[each.source.start : each.source.end])
            spans += (Span(start=match.start(), end=match.end()) for match in re.finditer(symbol, source))
        elif each.kind is WarningKind.NUMBER_CHANGED and each.source is not None:
            spans.append(_whole_number(source, each.source))
        elif each.kind in _PROTECTED and each.source is not None:
            spans.append(each.source)
    if any(each.kind is WarningKind.NUMBER_CHANGED and each.source is None for each in candidate.violations):
        spans += [number.span for number in numbers_in(source)]
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(start=merged[-1].start, end=max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return tuple(merged)


def _whole_number(source: str, span: Span) -> Span:
    # With the acronym before the number and the numbers that a hyphen joins: `ISO 9001`, `PO 8313-39`.
    before = _BEFORE_NUMBER.search(source, max(0, span.start - _MAX_NUMBER), span.start)
    after = _AFTER_NUMBER.match(source, span.end)
    start = before.start() if before and not source.isupper() else span.start
    return Span(start=start, end=after.end() if after else span.end)
