"""The text side of a request: planned before the queue (`text.planning`), detokenized and joined after it."""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, groupby, islice, repeat
from typing import TypeVar

import numpy as np

from dragoman_service.datatypes import (
    AlignmentLink,
    CrossAttention,
    DegenerationKind,
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
from dragoman_service.errors import EngineError
from dragoman_service.request import AttentionDetail, TextFormat, TranslationRequest
from dragoman_service.text.alignment import Weights, align, alignment_layer, head_average, shifted
from dragoman_service.text.confidence import features, probability
from dragoman_service.text.documents import DocumentPiece, TextPart, TextPlan
from dragoman_service.text.placeholders.patterns import TermMatcher, may_have_literals
from dragoman_service.text.placeholders.restoration import Assembled, Assembler, Item, Restored, forced_prefix, restore
from dragoman_service.text.planning import TextBudget, TextModel, TextPlanner
from dragoman_service.text.segmentation import Joined, join, separator_between
from dragoman_service.text.windowed_search import Check, never_ends

_T = TypeVar("_T")

_MAX_SHOWN_CHARACTERS = 80

_MARKUP_COST = 4
"""Of a character of markup or of a text with placeholders, compared with one of plain text."""

_TERMS_OF_DOUBLE_COST = 16
"""So many terms of a request cost as much as its texts."""

_MIN_NGRAM_SIZE, _MAX_NGRAM_SIZE = 3, 5
"""Of the runs of tokens that a second search may not repeat, so that no stand-in comes twice."""

WARNING_KINDS: Mapping[DegenerationKind, WarningKind] = {kind: WarningKind[kind.name] for kind in DegenerationKind}
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


def _cost_characters(request: TranslationRequest, search: SearchConfig) -> int:
    """Return the size of the text work on a request; a character counts its bytes, as it may become as many tokens."""
    options = request.options
    num_bytes = sum(len(text.encode(errors="surrogatepass")) for text in request.texts)
    has_pieces = options.format is not TextFormat.PLAIN or any(map(may_have_literals, request.texts))
    cost = num_bytes * (_MARKUP_COST if has_pieces or options.protection.patterns else 1)
    cost *= search.num_hypotheses if options.wants_attention else 1
    return cost + cost * len(options.terms) // _TERMS_OF_DOUBLE_COST


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
        self.cost_characters = _cost_characters(request, search)
        """Size of the work, as that of a plain English text with this number of characters."""
        self.search = search
        """What the search of every segment obeys, but for its own limit, prefix and seed."""
        self._options = request.options
        self._check: Check = budget.check if budget else never_ends
        self._model = model
        self._tokenizer = model.tokenizer
        self._separator = separator_between(request.source_language, request.target_language)
        self._planner = TextPlanner(
            request, model=model, search=search, budget=budget, has_attention=has_attention, glossary=glossary
        )

    def plan(self) -> list[TextPlan]:
        """Split and tokenize all texts; see `TextPlanner.plan`."""
        return self._planner.plan()

    def pieces(self) -> Iterator[DocumentPiece]:
        """Yield the only text piece by piece; see `TextPlanner.pieces`. `assemble_piece` puts each together."""
        return self._planner.pieces()

    def assemble_piece(self, piece: DocumentPiece, results: Sequence[SegmentResult]) -> Translation | None:
        """Detokenize and join the sentence of a piece; spans are those in its own text. None if it has none."""
        return self._translation(piece.plan, results) if piece.plan else None

    def assemble(self, plans: Sequence[TextPlan], results: Sequence[SegmentResult]) -> tuple[Translation, ...]:
        """Detokenize and join; `results` has one for each part of all plans, in order."""
        remaining = iter(results)
        return tuple(self._translation(plan, list(islice(remaining, len(plan.parts)))) for plan in plans)

    def redecode_requests(self, plans: Sequence[TextPlan], results: Sequence[SegmentResult]) -> dict[int, Segment]:
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
        self._check()
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

    def _translation(self, plan: TextPlan, results: Sequence[SegmentResult]) -> Translation:
        if not plan.parts:
            text = plan.text if plan.is_plain else self._joined(plan, [[]], self._target)[0].text
            return Translation(hypotheses=(TextHypothesis(text=text, score=0.0),), sentences=())
        decode = cache(self._target)  # most combinations share most of their hypotheses, and the scores look at them
        rows: list[Sequence[Hypothesis]] = [result.hypotheses for result in results]
        if self.search.sampling is None:
            rows = [_distinct(row, [decode(hypothesis.token_ids) for hypothesis in row]) for row in rows]
        chosen = [
            [row[index] for row, index in zip(rows, indices, strict=True)]
            for indices in best_combinations(rows, count=self.search.num_hypotheses)
        ]
        joined = self._joined(plan, chosen, decode)
        if self.search.sampling is None:  # different hypotheses may be joined to the same text
            pairs = _distinct(list(zip(chosen, joined, strict=True)), [one.text for one in joined])
            chosen, joined = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
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
        """Yield what is known of each sentence of a text, see `dragoman_service.text.confidence`.

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
        self._check()
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


def _attention_of(hypothesis: Hypothesis) -> Weights:
    if hypothesis.attention is None:
        raise EngineError("a segment came back without the attention it was asked for")
    return hypothesis.attention


def _distinct(candidates: Sequence[_T], texts: Sequence[str]) -> list[_T]:
    """Return the first candidate of each text, in order, without the empty text if there is another one."""
    firsts: dict[str, _T] = {}
    for candidate, text in zip(candidates, texts, strict=True):
        firsts.setdefault(text, candidate)
    if len(firsts) > 1:
        firsts.pop("", None)
    return list(firsts.values())


def best_combinations(hypotheses: Sequence[Sequence[Hypothesis]], *, count: int) -> list[tuple[int, ...]]:
    """Return at most `count` combinations of one hypothesis per row, each as indices into the rows; best first.

    As within a sentence, finished before unfinished decides first: fewer unfinished hypotheses, then the larger sum
    of scores, then the one that is better in an earlier row. Keeping the best `count` after each row is exact: what
    is worse than that many others stays so whatever is added to all of them. Each row is best first, and not empty.
    """
    best = [(0, 0.0, 0)]  # unfinished hypotheses, negated score, rank by indices
    steps: list[list[tuple[int, int]]] = []  # of each row: place of the combination that is extended, and the index
    for row in hypotheses:
        extended = [
            (num_unfinished + (not hypothesis.is_finished), cost - hypothesis.score, (rank, index), place)
            for place, (num_unfinished, cost, rank) in enumerate(best)
            for index, hypothesis in enumerate(row[: count // (place + 1)])  # any further has `count` before it
        ]
        chosen = heapq.nsmallest(count, extended)
        ranks = {key: rank for rank, key in enumerate(sorted(key for _, _, key, _ in chosen))}
        best = [(num_unfinished, cost, ranks[key]) for num_unfinished, cost, key, _ in chosen]
        steps.append([(place, index) for _, _, (_, index), place in chosen])
    return [_combination(steps, place) for place in range(len(best))]


def _combination(steps: Sequence[Sequence[tuple[int, int]]], place: int) -> tuple[int, ...]:
    """Return the indices of a combination, followed from the last row back to the first."""
    indices = []
    for row in reversed(steps):
        place, index = row[place]
        indices.append(index)
    return tuple(reversed(indices))


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
