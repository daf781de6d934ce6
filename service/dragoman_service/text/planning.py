"""Plans the segments of each text: sentences, or parts of long ones, as token ids."""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

import numpy as np

from dragoman_service.datatypes import SearchConfig, Segment, Span
from dragoman_service.errors import InvalidFieldError
from dragoman_service.language_tags import primary_language
from dragoman_service.request import AttentionDetail, LongSentencePolicy, TextFormat, TranslationRequest
from dragoman_service.text.abbreviations import abbreviation_finder
from dragoman_service.text.casing import is_in_capitals, sentence_case
from dragoman_service.text.placeholders.masking import masked, unmasked
from dragoman_service.text.placeholders.spans import ProtectedSpan
from dragoman_service.text.placeholders.terms import TermMatcher
from dragoman_service.text.placeholders.text_units import TextUnit
from dragoman_service.text.plans import (
    EncodedPart,
    FixedTranslation,
    ModelText,
    TextBudget,
    TextModel,
    TextPart,
    TextPlan,
)
from dragoman_service.text.punctuation import readable
from dragoman_service.text.segmentation import (
    Check,
    iterate_sentences,
    never_ends,
    separator_between,
    split_overlong,
    trim,
)
from dragoman_service.text.unit_planning import UnitPlanner

# Target tokens beyond the length of the source if the caller sets no limit (Vaswani et al. 2017, section 6.1).
EXTRA_TARGET_TOKENS = 50

# Source tokens times hypotheses of a request with attention for placing codes; the attention is in memory until the
# response is sent. Beyond the limit, words are taken to be in the order of the source.
MAX_RESTORED_TOKENS = 8192

_SPECIAL = re.compile(
    r"[^A-Za-zäöüÄÖÜß ,.!?;:'-]"
    r"|[A-ZÄÖÜ][A-ZÄÖÜ.]|[a-zäöüß][A-ZÄÖÜ]"  # acronyms, initials, inner capitals
    r"|[.!?;:,][^ ]|(?:^| )[-.,!?;:' ]|''|-(?![A-Za-zäöüÄÖÜß])"
)
_MAX_CHARACTERS = 4_096  # of one call of `re`, which holds the global interpreter lock (GIL)


def is_ordinary(text: str) -> bool:
    """Return whether a text has only words with the usual punctuation between them.

    No rule of `placeholders`, `casing`, `punctuation` and `invariants` applies to it, except for abbreviations and for
    copies of the source. Most sentences are ordinary, so they take a short path.
    """
    return len(text) <= _MAX_CHARACTERS and not _SPECIAL.search(text) and not text.isupper()


class SegmentBuilder:
    """Builds the segments of one request."""

    def __init__(
        self, request: TranslationRequest, *, model: TextModel, search: SearchConfig, has_attention: bool
    ) -> None:
        """Take a validated request, and the options of all its segments."""
        self._request, self._options = request, request.options
        self._model, self._tokenizer = model, model.tokenizer
        self._search = search
        options = request.options
        self.returns_attention = options.return_alignment or options.return_attention is not AttentionDetail.NONE
        self.num_alignable_tokens: float = MAX_RESTORED_TOKENS if has_attention else 0

    def build(self, token_ids: Sequence[int], *, text_index: int, segment_index: int, needs_alignment: bool) -> Segment:
        """Return a segment of a text.

        Args:
            token_ids: the source, without prefix and suffix.
            text_index: index of the text in the request.
            segment_index: index of the segment in the text.
            needs_alignment: whether the segment has codes whose place depends on the attention of the model.

        Raises:
            InvalidFieldError: if the prefix of the text is invalid or too long.
        """
        source_ids = self.source_ids(token_ids)
        field, prefix = self._prefix(text_index) if segment_index == 0 else ("", ())
        tags = self._tokenizer.target_prefix
        prefix = (*tags, *prefix)
        max_target_tokens = self._options.max_target_tokens or min(
            max(max(len(source_ids), len(prefix)) + EXTRA_TARGET_TOKENS, self._search.min_target_tokens + 1),
            self._model.max_target_tokens,
        )
        if len(tags) >= max_target_tokens:
            raise InvalidFieldError("options.max_target_tokens", max_target_tokens, f"at least {len(tags) + 1}")
        if len(prefix) >= max_target_tokens:
            limit = f"fewer than {max_target_tokens} tokens, the limit of the translation"
            raise InvalidFieldError(field, f"{len(prefix)} tokens long", limit)
        # Each part has a letter or digit, so its translation is not empty.
        shortest = max(self._search.min_target_tokens, min(len(prefix) + 1, max_target_tokens - 1))
        search = replace(
            self._search, min_target_tokens=shortest, max_target_tokens=max_target_tokens, target_prefix=prefix
        )
        if search.sampling:
            seed = segment_seed(search.sampling.seed, text_index=text_index, segment_index=segment_index)
            search = replace(search, sampling=replace(search.sampling, seed=seed))
        wants_attention = self.returns_attention
        if needs_alignment and not wants_attention:
            num_tokens = len(source_ids) * search.num_hypotheses
            wants_attention = num_tokens <= self.num_alignable_tokens
            self.num_alignable_tokens -= num_tokens * wants_attention
        return Segment(source_ids=source_ids, search=search, wants_attention=wants_attention)

    def source_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the token ids of a source with its prefix and suffix."""
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


def segment_seed(seed: int, *, text_index: int, segment_index: int) -> int:
    """Return the seed of one segment of a request; deterministic, and different for each segment."""
    sequence = np.random.SeedSequence(seed, spawn_key=(text_index, segment_index))
    return int(sequence.generate_state(1, np.uint64)[0])


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

    def _segment(self, part: EncodedPart, text_index: int, segment_index: int) -> Segment:
        self._check()
        needs_alignment = part.unit is not None and part.unit.needs_alignment
        return self._segments.build(
            part.token_ids, text_index=text_index, segment_index=segment_index, needs_alignment=needs_alignment
        )

    def _encoded_sentences(self, text: str, text_index: int, field: str) -> Iterator[list[list[EncodedPart]]]:
        fixed_spans = self._request.fixed_spans[text_index] if self._request.fixed_spans else ()
        is_plain = self._options.format is TextFormat.PLAIN and not fixed_spans
        is_ordinary = is_plain and self._is_ordinary(text)
        spans = self._spans_of_plain(text, is_ordinary=is_ordinary) if is_plain else None
        if spans is not None and not spans:
            yield from self._plain_sentences(text, field, is_ordinary=is_ordinary)
            return
        yield from self._units.sentences(text, fixed_spans, spans, field)

    def _spans_of_plain(self, text: str, *, is_ordinary: bool) -> Sequence[ProtectedSpan] | None:
        # The protected spans of a plain text; None if the text may have other codes.
        if is_ordinary:
            finder = abbreviation_finder(self._request.source_language, self._request.target_language)
            return finder.add_to((), text, self._check) if finder.expression.search(text) else ()
        return self._units.spans_of_plain(text)

    @cached_property
    def _units(self) -> UnitPlanner:
        return UnitPlanner(
            self._request,
            self._tokenizer,
            glossary=self._glossary,
            is_document=self._is_document,
            fixed=self._fixed,
            split=self._spans,
            encode=self._encoded,
            model_text=self._model_text,
            check=self._check,
        )

    def _is_ordinary(self, text: str) -> bool:
        return self._has_short_path and is_ordinary(text) and self._known.issuperset(text)

    def _plain_sentences(self, text: str, field: str, *, is_ordinary: bool) -> Iterator[list[list[EncodedPart]]]:
        # The sentences of a text without codes.
        for span in self._spans(text):
            sentence = text[span.start : span.end]
            if is_ordinary and not sentence.isupper():
                read = ModelText(text=sentence, is_ordinary=True)
            else:
                read = self._model_text(sentence)
            parts = [
                EncodedPart(
                    span=Span(start=span.start + own.start, end=span.start + own.end),
                    token_ids=ids,
                    model_text=read if own.end - own.start == len(sentence) else read.part(own),
                )
                for own, ids in self._encoded(read.text, span.start, field)
                if ids
            ]
            if parts:
                yield [parts]

    def _spans(self, text: str, ends: Sequence[Span] = (), breaks: re.Pattern[str] | None = None) -> Iterator[Span]:
        if self._options.split_sentences:
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


def _start(fixed: FixedTranslation) -> int:
    return fixed.span.start
