"""Second searches: what a part is decoded with again after its translation violated an invariant."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dragoman_service.datatypes import SearchConfig, Span, WarningKind
from dragoman_service.language_tags import primary_language
from dragoman_service.request import TranslationRequest
from dragoman_service.text.alignment import hypothesis_links
from dragoman_service.text.candidates import Attempt, Candidate
from dragoman_service.text.casing import is_irregular, lowered_words
from dragoman_service.text.placeholders.masking import Placeholders
from dragoman_service.text.placeholders.number_values import numbers_in
from dragoman_service.text.placeholders.protected_units import with_placeholders
from dragoman_service.text.placeholders.restoration import forced_prefix
from dragoman_service.text.placeholders.spans import ProtectedSpan
from dragoman_service.text.placeholders.text_units import TextUnit, spans_in_unit
from dragoman_service.text.planning import SegmentBuilder
from dragoman_service.text.plans import ModelText, TextModel, TextPart
from dragoman_service.text.quotation import localized_marks
from dragoman_service.text.segmentation import Check

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
# Length of the n-grams that a search with placeholders may not repeat, so that no placeholder occurs twice.
_MIN_NGRAM_SIZE, _MAX_NGRAM_SIZE = 3, 5
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


class Repairer:
    """Changes parts of one request for their second searches."""

    def __init__(
        self,
        request: TranslationRequest,
        model: TextModel,
        *,
        segments: SegmentBuilder,
        model_text: Callable[[str, TextUnit], ModelText],
        check: Check,
    ) -> None:
        """Take a validated request and its model.

        Args:
            request: languages and options.
            model: the model that translates it.
            segments: adds the prefix and suffix of sources.
            model_text: returns the text that the model reads instead of the text of a unit.
            check: called regularly.
        """
        self._request = request
        self._model, self._tokenizer = model, model.tokenizer
        self._segments = segments
        self._model_text = model_text
        self._check = check

    def second_part(self, attempt: Attempt) -> TextPart | None:
        """Return the part to decode again because of an attempt; None if that cannot help.

        A segment that the worker has already decoded twice is not decoded again, nor one with sampling or a target
        prefix of the caller.
        """
        part, search, tags = attempt.part, attempt.part.segment.search, self._tokenizer.target_prefix
        if attempt.result.degeneration is not None or search.sampling is not None or search.target_prefix != tags:
            return None
        repair = plan_repair(
            attempt.source,
            part,
            attempt.best,
            guards_copies=search.repetition_guard,
            language=self._request.source_language,
            is_piece=self._tokenizer.is_one_token,
        )
        if not repair.is_needed:
            return None
        changed = self._changed(attempt, repair)
        if changed is None:
            return None
        search = repaired_search(changed.segment.search, repair, byte_ids=self._tokenizer.byte_ids)
        segment = replace(changed.segment, search=search)
        return None if segment == part.segment else replace(changed, segment=segment)

    def _changed(self, attempt: Attempt, repair: Repair) -> TextPart | None:
        # The part with the text or the prefix of a repair; None if that is not possible.
        part = attempt.part
        if repair.spans and (changed := self._with_spans(attempt, repair.spans)) is not None:
            return changed
        if repair.inserts_placeholders and (changed := self._with_prefix(attempt)) is not None:
            return changed
        if repair.recased:
            return self._read_as(part, replace(part.model_text, text=repair.recased, is_recased=True))
        return part

    def _with_spans(self, attempt: Attempt, spans: Sequence[Span]) -> TextPart | None:
        # The part with more protected spans; None if that is not possible.
        part, source = attempt.part, attempt.source
        unit = part_unit(source, part)
        in_message = [span.shifted(part.span.start) for span in spans]
        protected = self._protected(unit, spans_in_unit(unit, in_message, self._check))
        if not protected:
            return None
        placeholders = Placeholders(source, self._tokenizer.placeholders, self._check)
        changed = with_placeholders(unit, protected, placeholders, self._check)
        return self._read_as(replace(part, unit=changed), self._model_text(changed.text, changed))

    def _protected(self, unit: TextUnit, spans: Sequence[Span]) -> list[ProtectedSpan]:
        # Typographic quotation marks get the style of the target language, everything else stays.
        positions = [span.start for span in spans if span.end - span.start == 1]
        localized = localized_marks(unit.text, positions, target_language=self._request.target_language)
        return [ProtectedSpan(span=span, kind=None, target=localized.get(span.start)) for span in spans]

    def _with_prefix(self, attempt: Attempt) -> TextPart | None:
        # The part with the first translation as prefix, up to the last missing placeholder, with all of them inserted.
        part, best = attempt.part, attempt.best
        if part.unit is None:
            return None
        target, links = self._tokenizer.decode(best.hypothesis.token_ids).strip(), None
        if best.hypothesis.attention is not None:
            links = hypothesis_links(self._tokenizer, part.model_text.text, best.hypothesis)
        prefix = forced_prefix(part.unit, target, links)
        if prefix is None:
            return None
        search, tags = part.segment.search, self._tokenizer.target_prefix
        token_ids = (*tags, *self._tokenizer.encode_target(prefix)) if prefix else tags
        if len(token_ids) >= search.max_target_tokens or self._tokenizer.unk_id in token_ids:
            return None
        sizes = (len(self._tokenizer.encode_target(placeholder)) for placeholder in part.unit.placeholders)
        size = min(*sizes, search.no_repeat_ngram_size or _MAX_NGRAM_SIZE)
        if size >= _MIN_NGRAM_SIZE:  # shorter n-grams would forbid words
            search = replace(search, no_repeat_ngram_size=size)
        return replace(part, segment=replace(part.segment, search=replace(search, target_prefix=token_ids)))

    def _read_as(self, part: TextPart, model_text: ModelText) -> TextPart | None:
        # The part with another model text; None if it is too long.
        source_ids = self._segments.source_ids(self._tokenizer.encode(model_text.text))
        if len(source_ids) > self._model.max_source_tokens:
            return None
        return replace(part, model_text=model_text, segment=replace(part.segment, source_ids=source_ids))
