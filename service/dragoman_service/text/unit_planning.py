"""Plans the sentences of texts with inline codes: protected spans, markup, escapes."""

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

from dragoman_service.datatypes import Span
from dragoman_service.errors import InvalidFieldError
from dragoman_service.language_tags import primary_language
from dragoman_service.request import (
    FixedSpan,
    NumberFormat,
    ProtectedKind,
    ProtectionOptions,
    TextFormat,
    TranslationRequest,
)
from dragoman_service.text.abbreviations import abbreviation_finder
from dragoman_service.text.placeholders.markdown import markdown_units
from dragoman_service.text.placeholders.markup import MarkupError, markup_units, nested_groups
from dragoman_service.text.placeholders.masking import Placeholders, renumbered
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
from dragoman_service.text.plans import EncodedPart, FixedTranslation, ModelText
from dragoman_service.text.punctuation import readable
from dragoman_service.text.segmentation import ESCAPED_BREAKS, Check
from dragoman_service.text.tokenizer import SentencePieceTokenizer

# Characters that may be escapes, accelerators or kept white space of plain text.
_SPECIAL = re.compile(r"[\\&_]|  ")

# Languages whose words have ASCII letters only, with few exceptions.
_ASCII_LANGUAGES = frozenset({"en"})

# Tokens by which a part of a sentence may grow when a cut within a placeholder moves out of it.
_CUT_TOKENS = 16


class UnitPlanner:
    """Plans the texts of one request that have codes."""

    def __init__(
        self,
        request: TranslationRequest,
        tokenizer: SentencePieceTokenizer,
        *,
        glossary: TermMatcher | None,
        is_document: bool,
        fixed: deque[FixedTranslation],
        split: Callable[[str, Sequence[Span], re.Pattern[str] | None], Iterator[Span]],
        encode: Callable[..., list[tuple[Span, list[int]]]],
        model_text: Callable[[str, TextUnit], ModelText],
        check: Check,
    ) -> None:
        """Take a validated request, and the steps that texts without codes need as well.

        Args:
            request: texts and options.
            tokenizer: tokenizer of the model.
            glossary: terms that apply where no term of the request matches.
            is_document: whether the text is read sentence by sentence.
            fixed: gets the fixed translations outside of all sentences.
            split: yields the sentences of a text, with ranges and breaks that end a sentence.
            encode: returns the parts of a sentence that fit the model, and their tokens.
            model_text: returns the text that the model reads instead of a sentence.
            check: called regularly.
        """
        self._request, self._options = request, request.options
        self._tokenizer = tokenizer
        self._glossary = glossary
        self._known = tokenizer.readable[primary_language(request.source_language)]
        self._is_document = is_document
        self._fixed = fixed
        self._split = split
        self._encode = encode
        self._model_text = model_text
        self._check = check

    def spans_of_plain(self, text: str) -> Sequence[ProtectedSpan] | None:
        """Return the protected spans of a plain text; None if the text may have other codes."""
        return None if _SPECIAL.search(text) else self._protection.find(text, self._check)

    def sentences(
        self, text: str, fixed_spans: Sequence[FixedSpan], spans: Sequence[ProtectedSpan] | None, field: str
    ) -> Iterator[list[list[EncodedPart]]]:
        """Yield the parts of each sentence that has tokens, and of the sentences inside it.

        Args:
            text: the text.
            fixed_spans: spans of the caller.
            spans: from `spans_of_plain`; None: unknown.
            field: name of the text in errors.
        """
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
        own = (abbreviation_finder(*languages), numbers, unknown)
        return replace(compiled, finders=(*compiled.finders, *own))

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

    def _encoded_group(self, group: Sequence[TextUnit], text: str, field: str) -> Iterator[list[list[EncodedPart]]]:
        # The sentences of a unit and of the units inside it, each when it is needed.
        outer, *others = group
        waiting = deque(sorted(others, key=lambda unit: unit.source.start))

        def inside(end: float) -> list[list[EncodedPart]]:
            sentences: list[list[EncodedPart]] = []
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
    ) -> Iterator[list[EncodedPart]]:
        for span in self._split(unit.text, unit.sentence_ends, self._breaks(unit.text)):
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

    def _encoded_sentence(self, sentence: TextUnit, start: int, field: str) -> list[EncodedPart]:
        # Nothing is decoded for a sentence of protected spans only.
        self._check()
        if sentence.has_placeholders and not sentence.has_words:
            fixed = ((code.source, code.target) for code in sentence.codes if code.kind is CodeKind.PLACEHOLDER)
            self._fixed += [
                FixedTranslation(span=source, target=target) for source, target in fixed if target is not None
            ]
            return []
        parts: list[EncodedPart] = []
        num_reserved = _CUT_TOKENS * sentence.has_placeholders
        read = self._model_text(sentence.text, sentence)
        for cut, ids in self._encode(read.text, start, field, num_reserved=num_reserved):
            whole = sentence.outside_codes(cut)
            part = sentence.part(whole, self._check)
            own = read.part(whole)
            token_ids = ids if whole == cut else self._tokenizer.encode(own.text)
            if token_ids:
                parts.append(EncodedPart(span=part.source, token_ids=token_ids, model_text=own, unit=part))
        return parts

    def _breaks(self, text: str) -> re.Pattern[str] | None:
        is_escaped = "\\" in text and self._options.format is TextFormat.PLAIN and ProtectedKind.ESCAPE in self._kinds
        return ESCAPED_BREAKS if is_escaped else None

    def _is_foreign(self, character: str) -> bool:
        # Whether a letter is one of a foreign name, which models translate as a word: `Björk`.
        is_ascii = primary_language(self._request.source_language) in _ASCII_LANGUAGES
        return is_ascii and not character.isascii() and character.isalpha()

    def _is_readable(self, character: str) -> bool:
        spells = self._tokenizer.spells
        return spells(character) or readable(character, spells) != character


def _outermost(sentences: Sequence[list[EncodedPart]]) -> Iterator[list[list[EncodedPart]]]:
    # Groups each outermost sentence with those inside it; all are ordered by position.
    group: list[list[EncodedPart]] = []
    for parts in sentences:
        if group and parts[0].span.start >= group[0][-1].span.end:
            yield group
            group = []
        group.append(parts)
    if group:
        yield group


def _start(fixed: FixedTranslation) -> int:
    return fixed.span.start
