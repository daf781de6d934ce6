"""Plans the segments of each text: sentences, or parts of long ones, as token ids."""

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

from dragoman_service.datatypes import SearchConfig, Segment, Span
from dragoman_service.errors import InvalidFieldError
from dragoman_service.language_tags import primary_language
from dragoman_service.request import (
    FixedSpan,
    LongSentencePolicy,
    NumberFormat,
    ProtectedKind,
    ProtectionOptions,
    TextFormat,
    TranslationRequest,
)
from dragoman_service.text.abbreviations import AbbreviationFinder
from dragoman_service.text.casing import is_in_capitals, sentence_case
from dragoman_service.text.placeholders.markdown import markdown_units
from dragoman_service.text.placeholders.markup import MarkupError, markup_units, nested_groups
from dragoman_service.text.placeholders.masking import Placeholders, masked, renumbered, unmasked
from dragoman_service.text.placeholders.numbers import NumberFinder
from dragoman_service.text.placeholders.patterns import Protection, compile_protection, enabled_kinds
from dragoman_service.text.placeholders.protected_units import (
    is_unreadable,
    protected_units,
    with_placeholders,
    without_outer_symbols,
)
from dragoman_service.text.placeholders.spans import ProtectedSpan
from dragoman_service.text.placeholders.terms import TermMatcher
from dragoman_service.text.placeholders.text_units import CodeKind, TextUnit, plain_unit, spans_in_unit
from dragoman_service.text.placeholders.unknown_characters import UnknownCharacterFinder
from dragoman_service.text.plans import (
    FixedTranslation,
    ModelText,
    SegmentBuilder,
    TextBudget,
    TextModel,
    TextPart,
    TextPlan,
    is_ordinary,
)
from dragoman_service.text.punctuation import readable
from dragoman_service.text.segmentation import (
    ESCAPED_BREAKS,
    Check,
    iterate_sentences,
    never_ends,
    separator_between,
    split_overlong,
    trim,
)

# Characters that may be escapes, accelerators or kept white space of plain text.
_SPECIAL = re.compile(r"[\\&_]|  ")

# Languages whose words have no other letters than those of ASCII, with few exceptions.
_ASCII_LANGUAGES = frozenset({"en"})

# Tokens by which a part of a sentence may grow when a cut within a placeholder moves out of it.
_CUT_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _EncodedPart:
    span: Span  # in the text of the request
    token_ids: list[int]
    model_text: ModelText
    unit: TextUnit | None = None


class TextPlanner:
    """Splits and tokenizes the texts of one request."""

    def __init__(
        self,
        request: TranslationRequest,
        *,
        model: TextModel,
        search: SearchConfig,
        budget: TextBudget | None = None,
        has_attention: bool = False,
        glossary: TermMatcher | None = None,
    ) -> None:
        """Take a validated request.

        Args:
            request: texts and options.
            model: the model that translates it.
            search: options of all segments; each segment gets its own token limit, prefix and seed.
            budget: limits of the work.
            has_attention: whether the model returns its cross-attention.
            glossary: terms that apply where no term of the request matches.
        """
        self.search = search
        self._request = request
        self._options = request.options
        self._model = model
        self._budget = budget
        self._check: Check = budget.check if budget else never_ends
        self._tokenizer = model.tokenizer
        self._separator = separator_between(request.source_language, request.target_language)
        self._glossary = glossary
        protection = request.options.protection
        # Then the only protected spans of an ordinary text are abbreviations.
        has_own_spans = protection.patterns or protection.enabled_kinds or request.options.terms or glossary
        self._has_short_path = not has_own_spans
        self._known = self._tokenizer.readable[primary_language(request.source_language)]
        self._segments = SegmentBuilder(request, model=model, search=search, has_attention=has_attention)
        self._fixed: deque[FixedTranslation] = deque()
        self._is_document = False

    @cached_property
    def _protection_options(self) -> ProtectionOptions:
        protection = self._options.protection
        if self._options.format is TextFormat.PLAIN:
            return protection
        return replace(protection, disabled_kinds=protection.disabled_kinds | {ProtectedKind.TAG})

    @cached_property
    def _kinds(self) -> frozenset[ProtectedKind]:
        return enabled_kinds(self._protection_options)

    @cached_property
    def _protection(self) -> Protection:
        languages = (self._request.source_language, self._request.target_language)
        numbers = NumberFinder(self._kinds, *languages, self._options.number_format or NumberFormat.LOCALIZED)
        unknown = UnknownCharacterFinder(
            self._is_readable,
            self._known,
            is_foreign=self._is_foreign,
            is_word=self._tokenizer.is_one_token,
            capitalizes_nouns=primary_language(languages[0]) == "de",
        )
        compiled = compile_protection(self._protection_options, self._options.terms, self._glossary)
        own = (_abbreviation_finder(*languages), numbers, unknown)
        return replace(compiled, finders=(*compiled.finders, *own))

    def plan(self) -> list[TextPlan]:
        """Split and tokenize all texts.

        Raises:
            InvalidFieldError: with the text that exceeds a limit of the model, or the prefix that is too long.
        """
        plans = []
        for index, text in enumerate(self._request.texts):
            parts = tuple(chain.from_iterable(self._sentences(text, index, f"texts[{index}]")))
            plans.append(TextPlan(text=text, parts=parts, fixed=tuple(sorted(self._fixed, key=_start))))
            self._fixed.clear()
        return plans

    def _sentences(self, text: str, text_index: int, field: str) -> Iterator[list[TextPart]]:
        # The parts of each sentence that has tokens, together with those of sentences inside it (attributes).
        if text_index in self._request.unchanged_texts:
            return
        num_segments = num_sentences = 0
        for sentences in self._encoded_sentences(text, text_index, field):
            group: list[TextPart] = []
            for encoded in sentences:
                group += [
                    TextPart(
                        span=part.span,
                        segment=self._segment(part, text_index, num_segments + index),
                        sentence_index=num_sentences,
                        model_text=part.model_text,
                        unit=part.unit,
                        begins_sentence=index == 0,
                    )
                    for index, part in enumerate(encoded)
                ]
                num_segments += len(encoded)
                num_sentences += 1
            if self._budget:
                self._budget.add([part.segment for part in group])
            yield group

    def _segment(self, part: _EncodedPart, text_index: int, segment_index: int) -> Segment:
        self._check()
        needs_alignment = part.unit is not None and part.unit.needs_alignment
        return self._segments.build(
            part.token_ids, text_index=text_index, segment_index=segment_index, needs_alignment=needs_alignment
        )

    def _encoded_sentences(self, text: str, text_index: int, field: str) -> Iterator[list[list[_EncodedPart]]]:
        fixed_spans = self._request.fixed_spans[text_index] if self._request.fixed_spans else ()
        is_plain = self._options.format is TextFormat.PLAIN and not fixed_spans
        is_ordinary = is_plain and self._is_ordinary(text)
        spans = self._spans_of_plain(text, is_ordinary=is_ordinary) if is_plain else None
        if spans is not None and not spans:
            yield from self._plain_sentences(text, field, is_ordinary=is_ordinary)
            return
        placeholders = Placeholders(text, self._tokenizer.placeholders, self._check)
        units = self._units(text, placeholders, field)
        if fixed_spans:
            units = [self._with_fixed_spans(unit, fixed_spans, placeholders) for unit in units]
        if units and units[0].codes:
            spans = None
        for group in nested_groups(units):
            protected = chain.from_iterable(
                protected_units(unit, self._protection, placeholders, spans=spans, check=self._check) for unit in group
            )
            yield from self._encoded_group(list(protected), text, field)

    def _spans_of_plain(self, text: str, *, is_ordinary: bool) -> Sequence[ProtectedSpan] | None:
        # The protected spans of a plain text; None if the text may have other codes.
        if is_ordinary:
            finder = _abbreviation_finder(self._request.source_language, self._request.target_language)
            return finder.add_to((), text, self._check) if finder.expression.search(text) else ()
        return None if _SPECIAL.search(text) else self._protection.find(text, self._check)

    def _is_ordinary(self, text: str) -> bool:
        return self._has_short_path and is_ordinary(text) and self._known.issuperset(text)

    def _plain_sentences(self, text: str, field: str, *, is_ordinary: bool) -> Iterator[list[list[_EncodedPart]]]:
        # The sentences of a text without codes.
        for span in self._spans(text):
            sentence = text[span.start : span.end]
            if is_ordinary and not sentence.isupper():
                read = ModelText(text=sentence, is_ordinary=True)
            else:
                read = self._model_text(sentence)
            parts = [
                _EncodedPart(
                    span=Span(start=span.start + own.start, end=span.start + own.end),
                    token_ids=ids,
                    model_text=read.part(own),
                )
                for own, ids in self._encoded(read.text, span.start, field)
                if ids
            ]
            if parts:
                yield [parts]

    def _units(self, text: str, placeholders: Placeholders, field: str) -> list[TextUnit]:
        text_format = self._options.format
        if text_format is TextFormat.PLAIN:
            unit = plain_unit(
                text,
                has_escapes=ProtectedKind.ESCAPE in self._kinds,
                has_accelerators=ProtectedKind.ACCELERATOR in self._kinds,
                is_word=self._tokenizer.is_one_token,
                has_tags=ProtectedKind.TAG in self._kinds,
                check=self._check,
            )
            return [unit]
        try:
            if text_format is TextFormat.MARKDOWN:
                return markdown_units(text, placeholders=placeholders, check=self._check)
            is_xml = text_format is TextFormat.XML
            return markup_units(text, is_xml=is_xml, placeholders=placeholders, check=self._check)
        except MarkupError as error:
            is_markdown = text_format is TextFormat.MARKDOWN
            name, allowed = ("Markdown", "Markdown that can be read") if is_markdown else ("XML", "well-formed XML")
            raise InvalidFieldError(field, f"{name} {error}", allowed) from error

    def _with_fixed_spans(
        self, unit: TextUnit, fixed_spans: Sequence[FixedSpan], placeholders: Placeholders
    ) -> TextUnit:
        inside = [
            each for each in fixed_spans if unit.source.start <= each.span.start and each.span.end <= unit.source.end
        ]
        spans = [
            ProtectedSpan(span=own, kind=None, target=each.target or None)
            for each in inside
            for own in spans_in_unit(unit, [each.span], self._check)
        ]
        return with_placeholders(unit, spans, placeholders, self._check) if spans else unit

    def _encoded_group(self, group: Sequence[TextUnit], text: str, field: str) -> Iterator[list[list[_EncodedPart]]]:
        # The sentences of a unit, each when it is needed, with those of the units inside it.
        outer, *others = group
        waiting = deque(sorted(others, key=lambda unit: unit.source.start))

        def inside(end: float) -> list[list[_EncodedPart]]:
            sentences: list[list[_EncodedPart]] = []
            while waiting and waiting[0].source.start < end:
                sentences += self._encoded_unit(waiting.popleft(), text, field)
            if sentences and self._is_document:  # `document_sentences` takes those before the next sentence
                self._fixed.extend(sorted([self._fixed.popleft() for _ in range(len(self._fixed))], key=_start))
            return sorted(sentences, key=lambda parts: (parts[0].span.start, -parts[-1].span.end))

        for parts in self._encoded_unit(outer, text, field, is_alone=not others):
            yield from _outermost(inside(parts[0].span.start))
            yield [parts, *inside(parts[-1].span.end)]
        yield from _outermost(inside(math.inf))

    def _encoded_unit(
        self, unit: TextUnit, text: str, field: str, *, is_alone: bool = False
    ) -> Iterator[list[_EncodedPart]]:
        for span in self._spans(unit.text, ends=unit.sentence_ends):
            whole = without_outer_symbols(unit, unit.outside_codes(span), text)
            sentence = unit.part(whole, self._check)
            if is_alone and is_unreadable(sentence, text, self._tokenizer.spells, self._check):
                source = sentence.source
                fixed = FixedTranslation(span=source, target=text[source.start : source.end], is_untranslated=True)
                self._fixed.append(fixed)
            else:
                if sentence.has_placeholders:
                    message = text[sentence.source.start : sentence.source.end]
                    own = Placeholders(message, self._tokenizer.placeholders, self._check)
                    sentence = renumbered(sentence, own, self._check)
                if parts := self._encoded_sentence(sentence, whole.start, field):
                    yield parts

    def _encoded_sentence(self, sentence: TextUnit, start: int, field: str) -> list[_EncodedPart]:
        # Nothing is decoded for a sentence of protected spans only.
        self._check()
        if sentence.has_placeholders and not sentence.has_words:
            fixed = ((code.source, code.target) for code in sentence.codes if code.kind is CodeKind.PLACEHOLDER)
            self._fixed += [
                FixedTranslation(span=source, target=target) for source, target in fixed if target is not None
            ]
            return []
        parts: list[_EncodedPart] = []
        num_reserved = _CUT_TOKENS * sentence.has_placeholders
        read = self._model_text(sentence.text, sentence)
        for cut, ids in self._encoded(read.text, start, field, num_reserved=num_reserved):
            whole = sentence.outside_codes(cut)
            part = sentence.part(whole, self._check)
            own = read.part(whole)
            token_ids = ids if whole == cut else self._tokenizer.encode(own.text)
            if token_ids:
                parts.append(_EncodedPart(span=part.source, token_ids=token_ids, model_text=own, unit=part))
        return parts

    def _spans(self, text: str, ends: Sequence[Span] = ()) -> Iterator[Span]:
        if self._options.split_sentences:
            is_plain = "\\" in text and self._options.format is TextFormat.PLAIN
            breaks = ESCAPED_BREAKS if is_plain and ProtectedKind.ESCAPE in self._kinds else None
            language = self._request.source_language
            return iterate_sentences(text, language=language, check=self._check, breaks=breaks, ends=ends)
        starts = (0, *(end.end for end in ends))
        stops = (*(end.start for end in ends), len(text))
        whole = (Span(start=start, end=stop) for start, stop in zip(starts, stops, strict=True))
        return chain.from_iterable(trim(text, span) for span in whole)

    def _model_text(self, text: str, unit: TextUnit | None = None) -> ModelText:
        # Placeholders are unchanged.
        visible = masked(unit, self._check) if unit else text
        self._check()
        is_from_capitals = "\\" not in visible and is_in_capitals(visible)  # escapes keep their case
        if is_from_capitals:
            language, filler = self._request.source_language, self._tokenizer.filler
            read = sentence_case(visible, language=language, filler=filler)
        else:
            read = visible
        read = readable(read, self._tokenizer.spells)
        if unit:
            read = unmasked(unit, read, self._check)
        return ModelText(text=read, is_from_capitals=is_from_capitals)

    def _is_foreign(self, character: str) -> bool:
        # Whether a letter is one of a foreign name, which models translate as a word: `Björk`.
        is_ascii = primary_language(self._request.source_language) in _ASCII_LANGUAGES
        return is_ascii and not character.isascii() and character.isalpha()

    def _is_readable(self, character: str) -> bool:
        spells = self._tokenizer.spells
        return spells(character) or readable(character, spells) != character

    def _encoded(self, text: str, start: int, field: str, *, num_reserved: int = 0) -> list[tuple[Span, list[int]]]:
        # Token ids of a sentence, or of parts of it that fit the model with `num_reserved` more tokens.
        added = len(self._tokenizer.source_prefix) + len(self._tokenizer.source_suffix)
        limit = self._model.max_source_tokens - added

        def fits(part: str) -> bool:
            self._check()
            return len(self._tokenizer.encode(part)) <= part_limit

        sentence = Span(start=0, end=len(text))
        token_ids = self._tokenizer.encode(text)
        if self._budget:
            self._budget.check_sentence(len(token_ids))
        if len(token_ids) <= limit:
            return [(sentence, token_ids)]
        if self._options.long_sentences is LongSentencePolicy.REFUSE:
            value = f"{len(token_ids) + added} source tokens long in the sentence at character {start}"
            raise InvalidFieldError(field, value, f"at most {limit + added} unless options.long_sentences is SPLIT")
        part_limit = limit - num_reserved if limit > num_reserved else limit
        try:
            parts = split_overlong(text, sentence, fits=fits)
        except ValueError as error:
            raise InvalidFieldError(field, str(error), f"within {limit} source tokens") from error
        return [(part, self._tokenizer.encode(text[part.start : part.end])) for part in parts]


@lru_cache(maxsize=256)
def _abbreviation_finder(source_language: str, target_language: str) -> AbbreviationFinder:
    return AbbreviationFinder(source_language, target_language)


def _outermost(sentences: Sequence[list[_EncodedPart]]) -> Iterator[list[list[_EncodedPart]]]:
    # Groups each outermost sentence with those inside it; all are ordered by position.
    group: list[list[_EncodedPart]] = []
    for parts in sentences:
        if group and parts[0].span.start >= group[0][-1].span.end:
            yield group
            group = []
        group.append(parts)
    if group:
        yield group


def _start(fixed: FixedTranslation) -> int:
    return fixed.span.start
