"""What is decoded of each text: sentences, or parts of them, as segments of token ids."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol

import numpy as np

from dragoman_service.bundle.manifest import Confidence
from dragoman_service.datatypes import SearchConfig, Segment, Span
from dragoman_service.errors import InvalidFieldError
from dragoman_service.request import LongSentencePolicy, ProtectedKind, TextFormat, TranslationRequest
from dragoman_service.text.alignment import Offset
from dragoman_service.text.documents import DocumentPiece, FixedText, TextPart, TextPlan, document_pieces
from dragoman_service.text.placeholders.blocks import Block, Placeholders, plain_block, protected_blocks
from dragoman_service.text.placeholders.markup import MarkupError, innermost_last, markup_blocks
from dragoman_service.text.placeholders.patterns import TermMatcher, compile_protection
from dragoman_service.text.segmentation import iterate_sentences, separator_between, split_overlong, trim
from dragoman_service.text.windowed_search import Check, never_ends

EXTRA_TARGET_TOKENS = 50
"""What a target may have more than its source if the caller sets no limit, as in section 6.1 of Vaswani et al. 2017."""

MAX_RESTORED_TOKENS = 8192
"""Source tokens times hypotheses of a request whose attention says where protected spans and tags belong: it is in
memory until the answer is made. Words of what is beyond are taken to be in the order of the source."""

_CUT_TOKENS = 16
"""What a part of a sentence may grow by when it is cut in front of a stand-in instead of within it."""

_EncodedPart = tuple[Span, list[int], Block | None]
"""Where a part of a sentence is, what the model gets of it, and how that came from the text if it is not the same."""


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def unk_id(self) -> int:
        """Stands for what the vocabulary cannot spell."""

    @property
    def source_prefix(self) -> tuple[int, ...]:
        """What every source begins with."""

    @property
    def source_suffix(self) -> tuple[int, ...]:
        """What every source ends with, nearly always EOS."""

    @property
    def target_prefix(self) -> tuple[int, ...]:
        """What every target is made to begin with."""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Pieces of source and target that the model was taught to copy."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a source, without prefix and suffix."""

    def encode_target(self, text: str) -> list[int]:
        """Return the token ids of a target, without prefix and EOS."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a target; special tokens and prefix are skipped."""

    def offsets(self, text: str) -> list[Offset]:
        """Return where each token of `encode` is in the text."""

    def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[Offset]]:
        """Return the text and where each token is in it; none is special."""

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return the spelling of each target token."""

    def source_pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return the spelling of each source token."""

    def token_id(self, piece: str) -> int | None:
        """Return the target token with this spelling; None if there is none or it is special."""


class TextModel(Protocol):
    """What the text side must know of a model."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its vocabulary."""

    @property
    def max_source_tokens(self) -> int:
        """Longest source it takes, EOS counted."""

    @property
    def max_target_tokens(self) -> int:
        """Longest target it gives, EOS counted."""

    @property
    def confidence(self) -> Confidence | None:
        """How likely its sentences are translated well; None: it does not say."""


class TextBudget(Protocol):
    """Ends text work that exceeds a limit, is too late or is no longer wanted, by raising."""

    def check(self) -> None:
        """Look whether the work must end; called every few milliseconds."""

    def check_sentence(self, num_tokens: int) -> None:
        """Look at a sentence of so many source tokens before it is split further."""

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
        """Take a request and what translates it; the arguments are those of `text.pipeline.TextPipeline`."""
        self._request = request
        self._options = request.options
        self._model = model
        self._search = search
        self._budget = budget
        self._check: Check = budget.check if budget else never_ends
        self._tokenizer = model.tokenizer
        protection = request.options.protection
        if request.options.format is not TextFormat.PLAIN:
            protection = replace(protection, disabled_kinds=protection.disabled_kinds | {ProtectedKind.TAG})
        self._protection = compile_protection(protection, request.options.terms, glossary)
        self._num_alignable_tokens: float = MAX_RESTORED_TOKENS if has_attention else 0
        self._fixed: deque[FixedText] = deque()
        self._is_document = False

    def plan(self) -> list[TextPlan]:
        """Split and tokenize all texts.

        Raises:
            InvalidFieldError: naming a text that the model cannot take or the prefix that leaves no room.
        """
        return [self._plan(text, index) for index, text in enumerate(self._request.texts)]

    def _plan(self, text: str, index: int) -> TextPlan:
        parts = tuple(chain.from_iterable(self._sentences(text, index, f"texts[{index}]")))
        fixed = tuple(sorted(self._fixed, key=_start))
        self._fixed.clear()
        return TextPlan(text=text, parts=parts, fixed=fixed)

    def pieces(self) -> Iterator[DocumentPiece]:
        """Yield the only text piece by piece, split and tokenized as far as it is asked for.

        With `TextPipeline.assemble_piece`, what comes out is what `plan` and `assemble` make of the text.

        Raises:
            InvalidFieldError: naming `text`, if the model cannot take a sentence, or the prefix that leaves no room.
        """
        (text,) = self._request.texts
        self._is_document = True
        if self._num_alignable_tokens:
            self._num_alignable_tokens = math.inf  # few sentences are in memory at a time
        separator = separator_between(self._request.source_language, self._request.target_language)
        return document_pieces(text, self._sentences(text, 0, "text"), separator=separator, fixed=self._fixed)

    def _sentences(self, text: str, text_index: int, field: str) -> Iterator[list[TextPart]]:
        """Yield the parts of each sentence in which the tokenizer sees anything; `field` names the text in errors."""
        if text_index in self._request.unchanged_texts:
            return
        num_segments = num_sentences = 0
        for sentences in self._encoded_sentences(text, field):
            group: list[TextPart] = []
            for encoded in sentences:
                group += [
                    TextPart(
                        span=span,
                        segment=self._segment(ids, text_index, num_segments + index, block),
                        sentence_index=num_sentences,
                        block=block,
                    )
                    for index, (span, ids, block) in enumerate(encoded)
                ]
                num_segments += len(encoded)
                num_sentences += 1
            if self._budget:
                self._budget.add([part.segment for part in group])
            yield group

    def _encoded_sentences(self, text: str, field: str) -> Iterator[list[list[_EncodedPart]]]:
        """Yield each sentence with those inside it, such as those of attributes, as parts that fit the model."""
        if self._options.format is TextFormat.PLAIN and not self._protection.find(text, self._check):
            for span in self._spans(text):
                parts: list[_EncodedPart] = [(own, ids, None) for own, ids in self._encoded(text, span, field) if ids]
                if parts:
                    yield [parts]
            return
        stand_ins = Placeholders.of(text, self._tokenizer.placeholders, self._check)
        if self._options.format is TextFormat.PLAIN:
            blocks = [plain_block(text)]
        else:
            try:
                is_xml = self._options.format is TextFormat.XML
                blocks = markup_blocks(text, is_xml=is_xml, stand_ins=stand_ins, check=self._check)
            except MarkupError as error:
                raise InvalidFieldError(field, f"XML {error}", "well-formed XML") from error
        for group in innermost_last(blocks):
            protected = [
                inner
                for block in group
                for inner in protected_blocks(block, self._protection, stand_ins, check=self._check)
            ]
            yield from self._encoded_group(protected, field)

    def _encoded_group(self, group: Sequence[Block], field: str) -> Iterator[list[list[_EncodedPart]]]:
        """Yield the sentences of a block, each as it is needed, with those of the blocks inside it."""
        outer, *others = group
        waiting = deque(sorted(others, key=lambda block: block.source.start))

        def inside(end: float) -> list[list[_EncodedPart]]:
            found: list[list[_EncodedPart]] = []
            while waiting and waiting[0].source.start < end:
                found += self._encoded_block(waiting.popleft(), field)
            if found and self._is_document:  # `document_pieces` takes those before the sentence that is next
                self._fixed.extend(sorted([self._fixed.popleft() for _ in range(len(self._fixed))], key=_start))
            return sorted(found, key=lambda parts: (parts[0][0].start, -parts[-1][0].end))

        for parts in self._encoded_block(outer, field):
            yield from _outermost(inside(parts[0][0].start))
            yield [parts, *inside(parts[-1][0].end)]
        yield from _outermost(inside(math.inf))

    def _encoded_block(self, block: Block, field: str) -> Iterator[list[_EncodedPart]]:
        """Yield the sentences of a block."""
        for span in self._spans(block.text):
            if parts := self._encoded_sentence(block, block.without_cut_pieces(span), field):
                yield parts

    def _encoded_sentence(self, block: Block, span: Span, field: str) -> list[_EncodedPart]:
        """Return the parts of a sentence of a block; none if there is nothing in it but protected spans."""
        self._check()
        sentence = block.part(span, self._check)
        if sentence.has_stand_ins and not sentence.has_words:
            fixed = ((piece.source, piece.target) for piece in sentence.pieces)
            self._fixed += [FixedText(span=source, target=target) for source, target in fixed if target is not None]
            return []
        parts: list[_EncodedPart] = []
        for own, ids in self._encoded(block.text, span, field, num_reserved=_CUT_TOKENS * sentence.has_stand_ins):
            whole = block.without_cut_pieces(own)
            part = block.part(whole, self._check)
            token_ids = ids if whole == own else self._tokenizer.encode(part.text)
            if token_ids:
                parts.append((part.source, token_ids, part))
        return parts

    def _spans(self, text: str) -> Iterator[Span]:
        if self._options.split_sentences:
            return iterate_sentences(text, language=self._request.source_language, check=self._check)
        return iter(trim(text))

    def _encoded(self, text: str, sentence: Span, field: str, *, num_reserved: int = 0) -> list[tuple[Span, list[int]]]:
        """Return the parts of a sentence that fit the model, nearly always one, with their token ids.

        Those of a sentence that is split have room for `num_reserved` tokens more.
        """
        added = len(self._tokenizer.source_prefix) + len(self._tokenizer.source_suffix)
        limit = self._model.max_source_tokens - added

        def encode(span: Span) -> list[int]:
            return self._tokenizer.encode(text[span.start : span.end])

        def fits(part: str) -> bool:
            self._check()
            return len(self._tokenizer.encode(part)) <= room

        token_ids = encode(sentence)
        if self._budget:
            self._budget.check_sentence(len(token_ids))
        if len(token_ids) <= limit:
            return [(sentence, token_ids)]
        if self._options.long_sentences is LongSentencePolicy.REFUSE:
            value = f"{len(token_ids) + added} source tokens long in the sentence at character {sentence.start}"
            raise InvalidFieldError(field, value, f"at most {limit + added} unless options.long_sentences is SPLIT")
        room = limit - num_reserved if limit > num_reserved else limit
        try:
            parts = split_overlong(text, sentence, fits=fits)
        except ValueError as error:
            raise InvalidFieldError(field, str(error), f"within {limit} source tokens") from error
        return [(part, encode(part)) for part in parts]

    def _segment(self, token_ids: list[int], text_index: int, segment_index: int, block: Block | None) -> Segment:
        self._check()
        source_ids = (*self._tokenizer.source_prefix, *token_ids, *self._tokenizer.source_suffix)
        field, prefix = self._prefix(text_index) if segment_index == 0 else ("", ())
        tags = self._tokenizer.target_prefix
        prefix = (*tags, *prefix)
        max_target_tokens = self._options.max_target_tokens or min(
            max(max(len(source_ids), len(prefix)) + EXTRA_TARGET_TOKENS, self._search.min_target_tokens + 1),
            self._model.max_target_tokens,
        )
        if len(tags) >= max_target_tokens:
            limit = f"at least {len(tags) + 1}"
            raise InvalidFieldError("options.max_target_tokens", max_target_tokens, limit)
        if len(prefix) >= max_target_tokens:
            limit = f"fewer than {max_target_tokens} tokens, the most that the translation may have"
            raise InvalidFieldError(field, f"{len(prefix)} tokens long", limit)
        search = replace(self._search, max_target_tokens=max_target_tokens, target_prefix=prefix)
        if search.sampling:
            seed = segment_seed(search.sampling.seed, text_index=text_index, segment_index=segment_index)
            search = replace(search, sampling=replace(search.sampling, seed=seed))
        wants_attention = self._options.wants_attention
        if block is not None and block.needs_alignment and not wants_attention:
            num_tokens = len(source_ids) * search.num_hypotheses
            wants_attention = num_tokens <= self._num_alignable_tokens
            self._num_alignable_tokens -= num_tokens * wants_attention
        return Segment(source_ids=source_ids, search=search, wants_attention=wants_attention)

    def _prefix(self, text_index: int) -> tuple[str, tuple[int, ...]]:
        """Return the name of the field that says what a translation begins with, and its token ids."""
        if self._request.target_prefixes:
            field, prefix = f"target_prefixes[{text_index}]", self._request.target_prefixes[text_index]
        else:
            field, prefix = "options.target_prefix", self._options.target_prefix
        token_ids = tuple(self._tokenizer.encode_target(prefix)) if prefix else ()
        if self._tokenizer.unk_id in token_ids:
            raise InvalidFieldError(field, "a text with unknown characters", "what the model's vocabulary can spell")
        return field, token_ids


def _outermost(sentences: Sequence[list[_EncodedPart]]) -> Iterator[list[list[_EncodedPart]]]:
    """Yield sentences that are in no other, each with those inside it; they are ordered by their places."""
    group: list[list[_EncodedPart]] = []
    for parts in sentences:
        if group and parts[0][0].start >= group[0][-1][0].end:
            yield group
            group = []
        group.append(parts)
    if group:
        yield group


def _start(one: FixedText) -> int:
    return one.span.start


def segment_seed(seed: int, *, text_index: int, segment_index: int) -> int:
    """Return the seed of one segment of a request: the same each time, unlike those of its neighbours."""
    sequence = np.random.SeedSequence(seed, spawn_key=(text_index, segment_index))
    return int(sequence.generate_state(1, np.uint64)[0])
