"""The text side of one request: split and tokenize before the queue, detokenize and join after it."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, groupby, islice, repeat
from typing import Protocol

import numpy as np

from service.bundle.manifest import Confidence
from service.datatypes import (
    AlignmentLink,
    CrossAttention,
    DefectKind,
    GuardReport,
    Hypothesis,
    SearchConfig,
    Segment,
    SegmentResult,
    SentenceAlignment,
    Span,
    TextHypothesis,
    Translation,
    TranslationWarning,
    WarningKind,
)
from service.errors import EngineError, InvalidFieldError
from service.requests import AttentionDetail, LongSentencePolicy, ProtectedKind, TextFormat, TranslationRequest
from service.text.alignment import Offset, Weights, align, alignment_layer, head_average, shifted
from service.text.blocks import Block, StandIns, plain_block, protected_blocks
from service.text.confidence import features, probability
from service.text.documents import DocumentPiece, FixedText, TextPart, TextPlan, document_pieces
from service.text.markup import MarkupError, innermost_last, markup_blocks
from service.text.protection import TermMatcher, compile_protection
from service.text.restoration import Assembled, Assembler, Item, Restored, forced_prefix, restore
from service.text.segmentation import Joined, iterate_sentences, join, separator_between, split_overlong, trim

EXTRA_TARGET_TOKENS = 50
"""What a target may have more than its source if the caller sets no limit, as in section 6.1 of Vaswani et al. 2017."""

MAX_RESTORED_TOKENS = 8192
"""Source tokens times hypotheses of a request whose attention says where protected spans and tags belong: it is in
memory until the answer is made. Words of what is beyond are taken to be in the order of the source."""

_CUT_TOKENS = 16
"""What a part of a sentence may grow by when it is cut in front of a stand-in instead of within it."""

_MAX_SHOWN_CHARACTERS = 80

_MIN_NGRAM_SIZE, _MAX_NGRAM_SIZE = 3, 5
"""Of the runs of tokens that a second search may not repeat, so that no stand-in comes twice."""

_EncodedPart = tuple[Span, list[int], Block | None]
"""Where a part of a sentence is, what the model gets of it, and how that came from the text if it is not the same."""

WARNING_KINDS: Mapping[DefectKind, WarningKind] = {kind: WarningKind[kind.name] for kind in DefectKind}
"""Every defect is worth a warning, cured or not."""


def sentence_warnings(
    sentence: SentenceAlignment,
    results: Sequence[SegmentResult],
    *,
    sentence_index: int,
    max_source_tokens: int,
    max_target_tokens: int,
) -> Iterator[TranslationWarning]:
    """Yield the warnings about one sentence of the best hypothesis, by the results of its parts.

    `max_source_tokens` is what the model takes, `max_target_tokens` what the search was allowed.
    """
    if sentence.is_split:
        message = (
            f"decoded in {len(results)} parts: {sentence.num_source_tokens} source tokens, "
            f"the model takes {max_source_tokens}"
        )
        yield TranslationWarning(kind=WarningKind.SOURCE_SPLIT, message=message, sentence_index=sentence_index)
    if sentence.is_truncated:
        message = f"cut off at the limit of {max_target_tokens} target tokens"
        yield TranslationWarning(kind=WarningKind.TRUNCATED, message=message, sentence_index=sentence_index)
    for number, result in enumerate(results, start=1):
        place = f"part {number} of {len(results)}: " if sentence.is_split else ""
        for kind, message in _findings(result.guard):
            yield TranslationWarning(kind=kind, message=place + message, sentence_index=sentence_index)


def _findings(report: GuardReport | None) -> Iterator[tuple[WarningKind, str]]:
    """Yield one message for each kind of defect, whether found at first or only after decoding again."""
    if report is None:
        return
    found = {defect.kind: defect.detail for defect in report.found}
    remaining = {defect.kind: defect.detail for defect in report.remaining}
    for kind, detail in found.items():
        effect = f"left {remaining[kind]}" if kind in remaining else "cured it"
        yield WARNING_KINDS[kind], f"{detail}; decoding again {effect if report.is_replaced else 'did not help'}"
    for kind, detail in remaining.items():
        if kind not in found:
            yield WARNING_KINDS[kind], f"{detail}, since it was decoded again"


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
    """Ends text work that exceeds a limit or is no longer wanted, by raising."""

    def check_sentence(self, num_tokens: int) -> None:
        """Look at a sentence of so many source tokens before it is split further."""

    def add(self, segments: Sequence[Segment]) -> None:
        """Count the segments of a sentence."""


class TextPipeline:
    """The text side of one request: before the queue and after it."""

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
        num_characters = sum(map(len, request.texts))
        self.cost_characters = num_characters * (search.num_hypotheses if request.options.wants_attention else 1)
        """Size of the work, as if it were that of plain texts of so many characters."""
        self.search = search
        """What the search of every segment obeys, but for its own limit, prefix and seed."""
        self._request = request
        self._options = request.options
        self._model = model
        self._budget = budget
        self._tokenizer = model.tokenizer
        self._separator = separator_between(request.source_language, request.target_language)
        protection = request.options.protection
        if request.options.format is not TextFormat.PLAIN:
            protection = replace(protection, disabled_kinds=protection.disabled_kinds | {ProtectedKind.TAG})
        self._protection = compile_protection(protection, request.options.terms, glossary)
        self._num_alignable_tokens: float = MAX_RESTORED_TOKENS if has_attention else 0
        self._fixed: deque[FixedText] = deque()

    def plan(self) -> list[TextPlan]:
        """Split and tokenize all texts.

        Raises:
            InvalidFieldError: naming a text that the model cannot take or the prefix that leaves no room.
        """
        return [self._plan(text, index) for index, text in enumerate(self._request.texts)]

    def _plan(self, text: str, index: int) -> TextPlan:
        parts = tuple(chain.from_iterable(self._sentences(text, index, f"texts[{index}]")))
        fixed = tuple(self._fixed)
        self._fixed.clear()
        return TextPlan(text=text, parts=parts, fixed=fixed)

    def pieces(self) -> Iterator[DocumentPiece]:
        """Yield the only text piece by piece, split and tokenized as far as it is asked for.

        With `assemble_piece`, what comes out is what `plan` and `assemble` make of the text.

        Raises:
            InvalidFieldError: naming `text`, if the model cannot take a sentence, or the prefix that leaves no room.
        """
        (text,) = self._request.texts
        if self._num_alignable_tokens:
            self._num_alignable_tokens = math.inf  # few sentences are in memory at a time
        return document_pieces(text, self._sentences(text, 0, "text"), separator=self._separator, fixed=self._fixed)

    def assemble_piece(self, piece: DocumentPiece, results: Sequence[SegmentResult]) -> Translation | None:
        """Detokenize and join the sentence of a piece; spans are those in its own text. None if it has none."""
        return self._translation(piece.plan, results) if piece.plan else None

    def assemble(self, plans: Sequence[TextPlan], results: Sequence[SegmentResult]) -> tuple[Translation, ...]:
        """Detokenize and join; `results` has one for each part of all plans, in order."""
        remaining = iter(results)
        return tuple(self._translation(plan, list(islice(remaining, len(plan.parts)))) for plan in plans)

    def second_searches(self, plans: Sequence[TextPlan], results: Sequence[SegmentResult]) -> dict[int, Segment]:
        """Return segments that must hold what the best hypotheses lost, by the index of the result to be replaced.

        Their prefixes are the first translations up to the last protected span that is missing, with all of them at
        their places: the search goes on from there.
        """
        parts = chain.from_iterable(plan.parts for plan in plans)
        pairs = enumerate(zip(parts, results, strict=True))
        return {index: second for index, pair in pairs if (second := self._second_search(*pair)) is not None}

    def with_second_results(
        self, plans: Sequence[TextPlan], results: Sequence[SegmentResult], second: Mapping[int, SegmentResult]
    ) -> list[SegmentResult]:
        """Return the results, of each segment that was searched twice the one that holds more protected spans."""
        parts = list(chain.from_iterable(plan.parts for plan in plans))
        chosen = list(results)
        for index, result in second.items():
            if self._num_repairs(parts[index], result) < self._num_repairs(parts[index], results[index]):
                chosen[index] = result
        return chosen

    def _second_search(self, part: TextPart, result: SegmentResult) -> Segment | None:
        search, tags = part.segment.search, self._tokenizer.target_prefix
        if part.block is None or not part.block.has_stand_ins or search.target_prefix != tags:
            return None
        best = result.hypotheses[0]
        prefix = forced_prefix(part.block, self._target(best.token_ids), self._links(part.block.text, best))
        if prefix is None:
            return None
        token_ids = (*tags, *self._tokenizer.encode_target(prefix)) if prefix else tags
        if len(token_ids) >= search.max_target_tokens or self._tokenizer.unk_id in token_ids:
            return None
        numbers = (self._tokenizer.encode_target(one) for one in part.block.stand_ins)
        size = min(*map(len, numbers), search.no_repeat_ngram_size or _MAX_NGRAM_SIZE)
        if size >= _MIN_NGRAM_SIZE:  # else words would be forbidden, too
            search = replace(search, no_repeat_ngram_size=size)
        return replace(part.segment, search=replace(search, target_prefix=token_ids))

    def _num_repairs(self, part: TextPart, result: SegmentResult) -> tuple[int, bool]:
        best = result.hypotheses[0]
        return len(self._restored(part, best).repairs), not best.is_finished

    def _sentences(self, text: str, text_index: int, field: str) -> Iterator[list[TextPart]]:
        """Yield the parts of each sentence in which the tokenizer sees anything; `field` names the text in errors."""
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
        if self._options.format is TextFormat.PLAIN and not self._protection.find(text):
            for span in self._spans(text):
                parts: list[_EncodedPart] = [(own, ids, None) for own, ids in self._encoded(text, span, field) if ids]
                if parts:
                    yield [parts]
            return
        stand_ins = StandIns.of(text, self._tokenizer.placeholders)
        if self._options.format is TextFormat.PLAIN:
            blocks = [plain_block(text)]
        else:
            try:
                blocks = markup_blocks(text, is_xml=self._options.format is TextFormat.XML, stand_ins=stand_ins)
            except MarkupError as error:
                raise InvalidFieldError(field, f"XML {error}", "well-formed XML") from error
        for group in innermost_last(blocks):
            protected = chain.from_iterable(protected_blocks(block, self._protection, stand_ins) for block in group)
            yield from self._encoded_group(list(protected), field)

    def _encoded_group(self, group: Sequence[Block], field: str) -> Iterator[list[list[_EncodedPart]]]:
        """Yield the sentences of a block, each as it is needed, with those of the blocks inside it."""
        outer, *others = group
        waiting = deque(sorted(others, key=lambda block: block.source.start))

        def inside(end: float) -> list[list[_EncodedPart]]:
            found: list[list[_EncodedPart]] = []
            while waiting and waiting[0].source.start < end:
                found += self._encoded_block(waiting.popleft(), field)
            if found and self._fixed:
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
        sentence = block.part(span)
        if sentence.has_stand_ins and not sentence.has_words:
            fixed = ((piece.source, piece.target) for piece in sentence.pieces)
            self._fixed += [FixedText(span=source, target=target) for source, target in fixed if target is not None]
            return []
        parts: list[_EncodedPart] = []
        for own, ids in self._encoded(block.text, span, field, num_reserved=_CUT_TOKENS * sentence.has_stand_ins):
            whole = block.without_cut_pieces(own)
            part = block.part(whole)
            token_ids = ids if whole == own else self._tokenizer.encode(part.text)
            if token_ids:
                parts.append((part.source, token_ids, part))
        return parts

    def _spans(self, text: str) -> Iterator[Span]:
        if self._options.split_sentences:
            return iterate_sentences(text, language=self._request.source_language)
        return iter(trim(text))

    def _encoded(self, text: str, sentence: Span, field: str, *, num_reserved: int = 0) -> list[tuple[Span, list[int]]]:
        """Return the parts of a sentence that fit the model, nearly always one, with their token ids.

        Those of a sentence that is split have room for `num_reserved` tokens more.
        """
        added = len(self._tokenizer.source_prefix) + len(self._tokenizer.source_suffix)
        limit = self._model.max_source_tokens - added

        def encode(span: Span) -> list[int]:
            return self._tokenizer.encode(text[span.start : span.end])

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
            parts = split_overlong(text, sentence, fits=lambda part: len(self._tokenizer.encode(part)) <= room)
        except ValueError as error:
            raise InvalidFieldError(field, str(error), f"within {limit} source tokens") from error
        return [(part, encode(part)) for part in parts]

    def _segment(self, token_ids: list[int], text_index: int, segment_index: int, block: Block | None) -> Segment:
        source_ids = (*self._tokenizer.source_prefix, *token_ids, *self._tokenizer.source_suffix)
        field, prefix = self._prefix(text_index) if segment_index == 0 else ("", ())
        tags = self._tokenizer.target_prefix
        prefix = (*tags, *prefix)
        max_target_tokens = self._options.max_target_tokens or min(
            max(max(len(source_ids), len(prefix)) + EXTRA_TARGET_TOKENS, self.search.min_target_tokens + 1),
            self._model.max_target_tokens,
        )
        if len(tags) >= max_target_tokens:
            limit = f"at least {len(tags) + 1}"
            raise InvalidFieldError("options.max_target_tokens", max_target_tokens, limit)
        if len(prefix) >= max_target_tokens:
            limit = f"fewer than {max_target_tokens} tokens, the most that the translation may have"
            raise InvalidFieldError(field, f"{len(prefix)} tokens long", limit)
        search = replace(self.search, max_target_tokens=max_target_tokens, target_prefix=prefix)
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

    def _translation(self, plan: TextPlan, results: Sequence[SegmentResult]) -> Translation:
        if not plan.parts:
            text = plan.text if plan.is_plain else self._joined(plan, [[]], self._target)[0].text
            return Translation(hypotheses=(TextHypothesis(text=text, score=0.0),), sentences=())
        rows = [result.hypotheses for result in results]
        chosen = [
            [row[index] for row, index in zip(rows, indices, strict=True)]
            for indices in best_combinations(rows, count=self.search.num_hypotheses)
        ]
        decode = cache(self._target)  # most combinations share most of their hypotheses, and the scores look at them
        joined = self._joined(plan, chosen, decode)
        scores = self._scores(plan, chosen[0], results, decode)
        sentences = tuple(_alignments(plan, chosen[0], joined[0].spans, scores))
        warnings = [*self._warnings(plan, sentences, results), *self._lost(plan, chosen[0])]
        return Translation(
            hypotheses=tuple(self._text_hypothesis(plan, *pair) for pair in zip(joined, chosen, strict=True)),
            sentences=sentences,
            warnings=tuple(sorted(warnings, key=lambda warning: warning.sentence_index or 0)),
        )

    def _scores(
        self,
        plan: TextPlan,
        hypotheses: Sequence[Hypothesis],
        results: Sequence[SegmentResult],
        decode: Callable[[tuple[int, ...]], str],
    ) -> Iterator[float | None]:
        """Yield the confidence of each sentence of a text, or None without end if the model does not say."""
        confidence = self._model.confidence
        if confidence is None:
            return repeat(None)
        known = self._features(plan, hypotheses, results, decode, usual_log_ratio=confidence.usual_log_ratio)
        return (probability(confidence, values) for values in known)

    def features(
        self,
        plan: TextPlan,
        hypotheses: Sequence[Hypothesis],
        results: Sequence[SegmentResult],
        *,
        usual_log_ratio: float,
    ) -> Iterator[tuple[float, ...]]:
        """Yield what is known of each sentence of a text, see `service.text.confidence`.

        Texts are those that the model sees: what is protected has no part in it.
        """
        return self._features(plan, hypotheses, results, self._target, usual_log_ratio=usual_log_ratio)

    def _features(
        self,
        plan: TextPlan,
        hypotheses: Sequence[Hypothesis],
        results: Sequence[SegmentResult],
        decode: Callable[[tuple[int, ...]], str],
        *,
        usual_log_ratio: float,
    ) -> Iterator[tuple[float, ...]]:
        for _, members in groupby(zip(plan.parts, hypotheses, results, strict=True), key=lambda m: m[0].sentence_index):
            parts, chosen, found = zip(*members, strict=True)
            yield features(
                " ".join(
                    part.block.text if part.block else plan.text[part.span.start : part.span.end] for part in parts
                ),
                " ".join(decode(hypothesis.token_ids) for hypothesis in chosen),
                num_source_tokens=sum(len(part.segment.source_ids) for part in parts),
                token_log_probs=[log_prob for hypothesis in chosen for log_prob in hypothesis.token_log_probs],
                has_defect=any(result.guard is not None for result in found)
                or not all(hypothesis.is_finished for hypothesis in chosen),
                usual_log_ratio=usual_log_ratio,
            )

    def _joined(
        self, plan: TextPlan, chosen: Sequence[Sequence[Hypothesis]], decode: Callable[[tuple[int, ...]], str]
    ) -> Sequence[Joined]:
        """Put the text together with each of some combinations of hypotheses."""
        if plan.is_plain:
            return [
                join(plan.text, plan.spans, [decode(one.token_ids) for one in hypotheses], separator=self._separator)
                for hypotheses in chosen
            ]
        fixed = [(one.span, one.target) for one in plan.fixed]
        assembler = Assembler(plan.text, fixed, separator=self._separator)
        return [
            assembler.assemble(
                plan.spans,
                [self._restored(part, one).items for part, one in zip(plan.parts, hypotheses, strict=True)],
            )
            for hypotheses in chosen
        ]

    def _restored(self, part: TextPart, hypothesis: Hypothesis) -> Restored:
        target = self._target(hypothesis.token_ids)
        if part.block is None:
            return Restored(items=(Item(text=target),), repairs=())
        return restore(part.block, target, self._links(part.block.text, hypothesis))

    def _lost(self, plan: TextPlan, hypotheses: Sequence[Hypothesis]) -> Iterator[TranslationWarning]:
        """Yield a warning for each protected span of the best translation that did not come back by itself."""
        for part, hypothesis in zip(plan.parts, hypotheses, strict=True):
            if part.block is None or not part.block.has_stand_ins:
                continue
            for repair in self._restored(part, hypothesis).repairs:
                source = repair.piece.source
                message = f"{plan.text[source.start : source.end][:_MAX_SHOWN_CHARACTERS]!r} {repair.action}"
                kind = WarningKind.PLACEHOLDER_LOST
                yield TranslationWarning(kind=kind, message=message, sentence_index=part.sentence_index)

    def _target(self, token_ids: tuple[int, ...]) -> str:
        return self._tokenizer.decode(token_ids).strip()  # the white space around it is the source's

    def _text_hypothesis(self, plan: TextPlan, joined: Joined, hypotheses: Sequence[Hypothesis]) -> TextHypothesis:
        token_ids = [token_id for hypothesis in hypotheses for token_id in hypothesis.token_ids]
        log_probs = (log_prob for hypothesis in hypotheses for log_prob in hypothesis.token_log_probs)
        options = self._options
        has_attention = options.return_attention is not AttentionDetail.NONE
        return TextHypothesis(
            text=joined.text,
            score=sum(hypothesis.score for hypothesis in hypotheses),
            tokens=tuple(self._tokenizer.pieces(token_ids)) if options.return_tokens else (),
            token_log_probs=tuple(log_probs) if options.return_scores else (),
            alignment=tuple(self._text_links(plan, joined, hypotheses)) if options.return_alignment else (),
            attention=tuple(map(self._attention, plan.parts, hypotheses)) if has_attention else (),
        )

    def _text_links(self, plan: TextPlan, joined: Joined, hypotheses: Sequence[Hypothesis]) -> Iterator[AlignmentLink]:
        for hypothesis in hypotheses:
            _attention_of(hypothesis)
        if isinstance(joined, Assembled):
            yield from joined.links
            return
        for part, target_span, hypothesis in zip(plan.parts, joined.spans, hypotheses, strict=True):
            links = self._links(plan.text[part.span.start : part.span.end], hypothesis) or ()
            yield from shifted(links, source_by=part.span.start, target_by=target_span.start)

    def _links(self, source: str, hypothesis: Hypothesis) -> list[AlignmentLink] | None:
        """Return which piece of a hypothesis as `_target` decodes it comes from which of its source; None: unknown."""
        if hypothesis.attention is None:
            return None
        num_forced, num_added = len(self._tokenizer.target_prefix), len(self._tokenizer.source_prefix)
        words = hypothesis.token_ids[num_forced : -1 if hypothesis.is_finished else None]
        target, target_offsets = self._tokenizer.decode_with_offsets(words)
        links = align(
            head_average(hypothesis.attention)[num_forced:, num_added:],
            source=source,
            source_offsets=self._tokenizer.offsets(source),
            target=target,
            target_offsets=target_offsets,
        )
        stripped = len(target) - len(target.lstrip())  # as in `_target`
        return list(shifted(links, source_by=0, target_by=-stripped))

    def _attention(self, part: TextPart, hypothesis: Hypothesis) -> CrossAttention:
        attention = _attention_of(hypothesis)
        layer = alignment_layer(len(attention))
        has_heads = self._options.return_attention is AttentionDetail.ALL_HEADS
        return CrossAttention(
            source_pieces=tuple(self._tokenizer.source_pieces(part.segment.source_ids)),
            target_pieces=tuple(self._tokenizer.pieces(hypothesis.token_ids)),
            layer=layer,
            weights=attention[layer] if has_heads else head_average(attention)[np.newaxis],
        )

    def _warnings(
        self, plan: TextPlan, sentences: Sequence[SentenceAlignment], results: Sequence[SegmentResult]
    ) -> Iterator[TranslationWarning]:
        remaining = iter(results)
        for index, (sentence, parts) in enumerate(zip(sentences, plan.sentences(), strict=True)):
            yield from sentence_warnings(
                sentence,
                list(islice(remaining, len(parts))),
                sentence_index=index,
                max_source_tokens=self._model.max_source_tokens,
                max_target_tokens=max(part.segment.search.max_target_tokens for part in parts),
            )


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


def _attention_of(hypothesis: Hypothesis) -> Weights:
    if hypothesis.attention is None:
        raise EngineError("a segment came back without the attention it was asked for")
    return hypothesis.attention


def segment_seed(seed: int, *, text_index: int, segment_index: int) -> int:
    """Return the seed of one segment of a request: the same each time, unlike those of its neighbours."""
    sequence = np.random.SeedSequence(seed, spawn_key=(text_index, segment_index))
    return int(sequence.generate_state(1, np.uint64)[0])


def best_combinations(hypotheses: Sequence[Sequence[Hypothesis]], *, count: int) -> list[tuple[int, ...]]:
    """Return at most `count` combinations of one hypothesis per row, each as indices into the rows; best first.

    As within a sentence, finished before unfinished decides first: fewer unfinished hypotheses, then the larger sum
    of scores, then the one that is better in an earlier row. Keeping the best `count` after each row is exact: what
    is worse than that many others stays so whatever is added to all of them. Each row is best first, and not empty.
    """
    best: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    for row in hypotheses:
        extended = [
            (num_unfinished + (not hypothesis.is_finished), cost - hypothesis.score, (*indices, index))
            for place, (num_unfinished, cost, indices) in enumerate(best, start=1)
            for index, hypothesis in enumerate(row[: count // place])  # any further has `count` before it
        ]
        best = heapq.nsmallest(count, extended)
    return [indices for _, _, indices in best]


def _alignments(
    plan: TextPlan, hypotheses: Sequence[Hypothesis], targets: Sequence[Span], scores: Iterator[float | None]
) -> Iterator[SentenceAlignment]:
    """Yield one alignment for each sentence; its parts follow each other."""
    triples = zip(plan.parts, hypotheses, targets, strict=True)
    for _, sentence in groupby(triples, key=lambda triple: triple[0].sentence_index):
        members = list(sentence)
        (first, _, first_target), (last, _, last_target) = members[0], members[-1]
        yield SentenceAlignment(
            source=Span(start=first.span.start, end=last.span.end),
            target=Span(start=first_target.start, end=last_target.end),
            num_source_tokens=sum(len(part.segment.source_ids) for part, _, _ in members),
            num_target_tokens=sum(len(hypothesis.token_ids) for _, hypothesis, _ in members),
            is_truncated=not all(hypothesis.is_finished for _, hypothesis, _ in members),
            is_split=len(members) > 1,
            score=next(scores),
        )
