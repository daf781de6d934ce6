"""Plans the segments of each text: sentences, or parts of long ones, as token ids."""

import math
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Protocol

import numpy as np

from dragoman_service.bundle.manifest import Confidence
from dragoman_service.datatypes import SearchConfig, Segment, Span
from dragoman_service.errors import InvalidFieldError
from dragoman_service.request import (
    FixedSpan,
    LongSentencePolicy,
    NumberFormat,
    ProtectedKind,
    TextFormat,
    TranslationRequest,
)
from dragoman_service.text.abbreviations import AbbreviationFinder
from dragoman_service.text.casing import is_in_capitals, sentence_case
from dragoman_service.text.invariants.violations import primary_language
from dragoman_service.text.ordinary import is_ordinary
from dragoman_service.text.placeholders.markdown import markdown_units
from dragoman_service.text.placeholders.markup import MarkupError, markup_units, nested_groups
from dragoman_service.text.placeholders.masking import Placeholders, masked, renumbered, unmasked
from dragoman_service.text.placeholders.numbers import NumberFinder
from dragoman_service.text.placeholders.patterns import compile_protection, enabled_kinds
from dragoman_service.text.placeholders.protected_units import protected_units, with_placeholders
from dragoman_service.text.placeholders.spans import ProtectedSpan, SpanFinder
from dragoman_service.text.placeholders.terms import TermMatcher
from dragoman_service.text.placeholders.text_units import CodeKind, InlineCode, TextUnit, plain_unit, spans_in_unit
from dragoman_service.text.placeholders.unknown_characters import UnknownCharacterFinder
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
from dragoman_service.text.tokenizer import SentencePieceTokenizer

# Target tokens beyond the length of the source if the caller sets no limit (Vaswani et al. 2017, section 6.1).
EXTRA_TARGET_TOKENS = 50

# Source tokens times hypotheses of a request with attention for placing codes; the attention is in memory until the
# response is sent. Beyond the limit, words are taken to be in the order of the source.
MAX_RESTORED_TOKENS = 8192

# Characters that may be escapes, accelerators or kept white space of plain text.
_SPECIAL = re.compile(r"[\\&_]|  ")

_SPACE = " \xa0"

# Languages whose words have no other letters than those of ASCII, with few exceptions.
_ASCII_LANGUAGES = frozenset({"en"})

# Tokens by which a part of a sentence may grow when a cut within a placeholder moves out of it.
_CUT_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """Text that a model reads instead of a text of the same length."""

    text: str
    is_from_capitals: bool = False  # sentence case instead of capitals, so the translation is set in capitals
    is_recased: bool = False  # other case instead of a copied label, so the translation gets the capital of the source


@dataclass(frozen=True, slots=True, kw_only=True)
class _EncodedPart:
    span: Span  # in the text of the request
    token_ids: list[int]
    model_text: ModelText
    unit: TextUnit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """Part of a text that is decoded as one segment: a sentence, or a part of a long one."""

    span: Span
    segment: Segment
    sentence_index: int  # shared by the parts of one sentence, which are adjacent
    model_text: ModelText
    unit: TextUnit | None = None  # the text with placeholders, if that differs; as long as the model text
    begins_sentence: bool = True

    def shifted(self, by: int) -> "TextPart":
        """Return the same part of a text that has `by` more characters in front."""
        return replace(self, span=self.span.shifted(by), unit=self.unit.shifted(by) if self.unit else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedTranslation:
    """A range outside all decoded sentences, such as a term, and its translation."""

    span: Span
    target: str
    is_untranslated: bool = False  # a sentence in letters that the model cannot spell, which stays as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """The segments of one text."""

    text: str
    parts: tuple[TextPart, ...]  # ordered; a part with a unit may enclose others, such as the text of an attribute
    fixed: tuple[FixedTranslation, ...] = ()

    @property
    def spans(self) -> list[Span]:
        """Positions of the parts in the text."""
        return [part.span for part in self.parts]


class TextModel(Protocol):
    """The properties of a model that text processing needs. Limits include EOS."""

    @property
    def tokenizer(self) -> SentencePieceTokenizer:
        """Tokenizer of the language pair."""

    @property
    def max_source_tokens(self) -> int:
        """Longest source."""

    @property
    def max_target_tokens(self) -> int:
        """Longest target."""

    @property
    def confidence(self) -> Confidence | None:
        """Weights of the confidence of sentences; None if the bundle has none."""


class TextBudget(Protocol):
    """Limits of text work. Each method raises if the work exceeds a limit or its deadline, or is cancelled."""

    def check(self) -> None:
        """Check deadline and cancellation; called every few milliseconds."""

    def check_sentence(self, num_tokens: int) -> None:
        """Check the source tokens of a sentence before it is split further."""

    def add(self, segments: Sequence[Segment]) -> None:
        """Count the segments of a sentence."""


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
        protection = request.options.protection
        if request.options.format is not TextFormat.PLAIN:
            protection = replace(protection, disabled_kinds=protection.disabled_kinds | {ProtectedKind.TAG})
        kinds = enabled_kinds(protection)
        self._has_escapes = ProtectedKind.ESCAPE in kinds
        self._has_accelerators = ProtectedKind.ACCELERATOR in kinds
        self._has_tags = ProtectedKind.TAG in kinds
        compiled = compile_protection(protection, request.options.terms, glossary)
        number_format = request.options.number_format or NumberFormat.LOCALIZED
        of_languages = _finders(kinds, request.source_language, request.target_language, number_format)
        language = primary_language(request.source_language)
        self._is_ascii = language in _ASCII_LANGUAGES
        unknown = UnknownCharacterFinder(
            self._is_readable, self._tokenizer.readable[language], is_foreign=self._is_foreign
        )
        finders = (*compiled.finders, *of_languages, unknown)
        self._protection = replace(compiled, finders=finders)
        self._abbreviations = of_languages[0]
        self._known = self._tokenizer.readable[language]
        # Whether an ordinary text has no spans but abbreviations.
        self._has_short_path = compiled.needs_trigger and not request.options.terms and glossary is None
        self._num_alignable_tokens: float = MAX_RESTORED_TOKENS if has_attention else 0
        self._fixed: deque[FixedTranslation] = deque()
        self._is_document = False

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

    def _encoded_sentences(self, text: str, text_index: int, field: str) -> Iterator[list[list[_EncodedPart]]]:
        fixed_spans = self._request.fixed_spans[text_index] if self._request.fixed_spans else ()
        if self._options.format is TextFormat.PLAIN and not fixed_spans and self._is_plain(text):
            for span in self._spans(text):
                read = self._model_text(text[span.start : span.end])
                parts = [
                    _EncodedPart(span=own.shifted(span.start), token_ids=ids, model_text=_part_of(read, own))
                    for own, ids in self._encoded(read.text, span.start, field)
                    if ids
                ]
                if parts:
                    yield [parts]
            return
        placeholders = Placeholders(text, self._tokenizer.placeholders, self._check)
        if self._options.format is TextFormat.PLAIN:
            units = [
                plain_unit(
                    text,
                    has_escapes=self._has_escapes,
                    has_accelerators=self._has_accelerators,
                    is_word=self._tokenizer.is_one_token,
                    has_tags=self._has_tags,
                    check=self._check,
                )
            ]
        elif self._options.format is TextFormat.MARKDOWN:
            try:
                units = markdown_units(text, placeholders=placeholders, check=self._check)
            except MarkupError as error:
                raise InvalidFieldError(field, f"Markdown {error}", "Markdown that can be read") from error
        else:
            try:
                is_xml = self._options.format is TextFormat.XML
                units = markup_units(text, is_xml=is_xml, placeholders=placeholders, check=self._check)
            except MarkupError as error:
                raise InvalidFieldError(field, f"XML {error}", "well-formed XML") from error
        if fixed_spans:
            units = [self._with_fixed_spans(unit, fixed_spans, placeholders) for unit in units]
        for group in nested_groups(units):
            protected = chain.from_iterable(
                protected_units(unit, self._protection, placeholders, check=self._check) for unit in group
            )
            yield from self._encoded_group(list(protected), text, field)

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

    def _is_plain(self, text: str) -> bool:
        # Whether a plain text has no codes.
        if self._is_ordinary(text):
            return not self._abbreviations.add_to((), text, self._check)
        return not _SPECIAL.search(text) and not self._protection.find(text, self._check)

    def _is_ordinary(self, text: str) -> bool:
        return self._has_short_path and is_ordinary(text) and self._known.issuperset(text)

    def _encoded_unit(
        self, unit: TextUnit, text: str, field: str, *, is_alone: bool = False
    ) -> Iterator[list[_EncodedPart]]:
        for span in self._spans(unit.text, ends=unit.sentence_ends):
            whole = _without_outer_symbols(unit, unit.outside_codes(span), text)
            sentence = unit.part(whole, self._check)
            if is_alone and self._is_unreadable(sentence, text):
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

    def _is_unreadable(self, sentence: TextUnit, text: str) -> bool:
        # Whether the model cannot spell most letters of a sentence.
        if not sentence.has_placeholders:
            return False
        num_letters = sum(map(str.isalpha, masked(sentence, self._check)))
        num_unknown = 0
        for code in sentence.codes:
            self._check()
            if code.kind is CodeKind.PLACEHOLDER and code.target is None:  # a term is translated
                letters = list(filter(str.isalpha, text[code.source.start : code.source.end]))
                num_letters += len(letters)
                num_unknown += len(letters) - sum(map(self._tokenizer.spells, letters))
        return 2 * num_unknown > num_letters

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
            own = _part_of(read, whole)
            token_ids = ids if whole == cut else self._tokenizer.encode(own.text)
            if token_ids:
                parts.append(_EncodedPart(span=part.source, token_ids=token_ids, model_text=own, unit=part))
        return parts

    def _spans(self, text: str, ends: Sequence[Span] = ()) -> Iterator[Span]:
        if self._options.split_sentences:
            breaks = ESCAPED_BREAKS if self._has_escapes and self._options.format is TextFormat.PLAIN else None
            language = self._request.source_language
            return iterate_sentences(text, language=language, check=self._check, breaks=breaks, ends=ends)
        starts = (0, *(end.end for end in ends))
        stops = (*(end.start for end in ends), len(text))
        whole = (Span(start=start, end=stop) for start, stop in zip(starts, stops, strict=True))
        return chain.from_iterable(trim(text, span) for span in whole)

    def _model_text(self, text: str, unit: TextUnit | None = None) -> ModelText:
        # Placeholders are unchanged.
        if unit is None and self._is_ordinary(text):
            return ModelText(text=text)
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
        return self._is_ascii and not character.isascii() and character.isalpha()

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

    def _segment(self, part: _EncodedPart, text_index: int, segment_index: int) -> Segment:
        self._check()
        source_ids = self._source_ids(part.token_ids)
        field, prefix = self._prefix(text_index) if segment_index == 0 else ("", ())
        tags = self._tokenizer.target_prefix
        prefix = (*tags, *prefix)
        max_target_tokens = self._options.max_target_tokens or min(
            max(max(len(source_ids), len(prefix)) + EXTRA_TARGET_TOKENS, self.search.min_target_tokens + 1),
            self._model.max_target_tokens,
        )
        if len(tags) >= max_target_tokens:
            raise InvalidFieldError("options.max_target_tokens", max_target_tokens, f"at least {len(tags) + 1}")
        if len(prefix) >= max_target_tokens:
            limit = f"fewer than {max_target_tokens} tokens, the limit of the translation"
            raise InvalidFieldError(field, f"{len(prefix)} tokens long", limit)
        # Each part has a letter or digit, so its translation is not empty.
        shortest = max(self.search.min_target_tokens, min(len(prefix) + 1, max_target_tokens - 1))
        search = replace(
            self.search, min_target_tokens=shortest, max_target_tokens=max_target_tokens, target_prefix=prefix
        )
        if search.sampling:
            seed = segment_seed(search.sampling.seed, text_index=text_index, segment_index=segment_index)
            search = replace(search, sampling=replace(search.sampling, seed=seed))
        wants_attention = self._options.wants_attention
        if part.unit is not None and part.unit.needs_alignment and not wants_attention:
            num_tokens = len(source_ids) * search.num_hypotheses
            wants_attention = num_tokens <= self._num_alignable_tokens
            self._num_alignable_tokens -= num_tokens * wants_attention
        return Segment(source_ids=source_ids, search=search, wants_attention=wants_attention)

    def _source_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        return (*self._tokenizer.source_prefix, *token_ids, *self._tokenizer.source_suffix)

    def _prefix(self, text_index: int) -> tuple[str, tuple[int, ...]]:
        if self._request.target_prefixes:
            field, prefix = f"target_prefixes[{text_index}]", self._request.target_prefixes[text_index]
        else:
            field, prefix = "options.target_prefix", self._options.target_prefix
        token_ids = tuple(self._tokenizer.encode_target(prefix)) if prefix else ()
        if self._tokenizer.unk_id in token_ids:
            raise InvalidFieldError(field, "a text with unknown characters", "text that the vocabulary can encode")
        return field, token_ids


@lru_cache(maxsize=256)
def _finders(
    kinds: frozenset[ProtectedKind], source_language: str, target_language: str, number_format: NumberFormat
) -> tuple[SpanFinder, ...]:
    return (
        AbbreviationFinder(source_language, target_language),
        NumberFinder(kinds, source_language, target_language, number_format),
    )


def _without_outer_symbols(unit: TextUnit, span: Span, text: str) -> Span:
    # Without protected symbols at the edges, such as `✓ ` and ` 👋`: they are copied, and the model does not read them.
    codes = unit.codes
    start, end = span.start, span.end
    first, last = (bisect_left(codes, position, key=lambda code: code.start) for position in (start, end))
    while first < last and codes[first].start == start and _is_symbol(codes[first], text):
        stop = position = codes[first].end
        limit = codes[first + 1].start if first + 1 < last else end  # a placeholder may begin with a space
        while position < limit and unit.text[position] in _SPACE:
            position += 1
        if position in {stop, end}:
            break
        start, first = position, first + 1
    while first < last and codes[last - 1].end == end and _is_symbol(codes[last - 1], text):
        stop = position = codes[last - 1].start
        limit = codes[last - 2].end if first < last - 1 else start
        while position > limit and unit.text[position - 1] in _SPACE:
            position -= 1
        if position in {start, stop}:
            break
        end, last = position, last - 1
    return Span(start=start, end=end) if start < end else span


def _is_symbol(code: InlineCode, text: str) -> bool:
    is_copied = code.kind is CodeKind.PLACEHOLDER and code.target is None
    return is_copied and not any(map(str.isalnum, text[code.source.start : code.source.end]))


def _part_of(whole: ModelText, span: Span) -> ModelText:
    if span.end - span.start == len(whole.text):
        return whole
    return replace(whole, text=whole.text[span.start : span.end])


def segment_seed(seed: int, *, text_index: int, segment_index: int) -> int:
    """Return the seed of one segment of a request; deterministic, and different for each segment."""
    sequence = np.random.SeedSequence(seed, spawn_key=(text_index, segment_index))
    return int(sequence.generate_state(1, np.uint64)[0])


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
