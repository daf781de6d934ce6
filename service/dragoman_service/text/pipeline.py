"""The text side of a request: plans segments before decoding, and assembles translations from their results."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, groupby, islice

import numpy as np

from dragoman_service.datatypes import (
    AlignmentLink,
    CrossAttention,
    Hypothesis,
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
from dragoman_service.request import AttentionDetail, TextFormat
from dragoman_service.text.alignment import Weights, align, alignment_layer, head_average, shifted
from dragoman_service.text.documents import PlannedSentence, document_sentences
from dragoman_service.text.hypotheses import best_combinations, distinct, features, probability, sentence_warnings
from dragoman_service.text.placeholders.patterns import may_have_literals
from dragoman_service.text.placeholders.restoration import (
    Assembled,
    Assembler,
    Fragment,
    Restored,
    forced_prefix,
    restore,
)
from dragoman_service.text.planning import TextPart, TextPlan, TextPlanner
from dragoman_service.text.segmentation import Joined, join

_MAX_SHOWN_CHARACTERS = 80
_MARKUP_COST = 4  # of a character of markup or of a text with placeholders, relative to plain text
_TERMS_OF_DOUBLE_COST = 16  # number of terms that double the cost of a request

# Length of the n-grams that redecoding may not repeat, so that no placeholder occurs twice.
_MIN_NGRAM_SIZE, _MAX_NGRAM_SIZE = 3, 5

_Decode = Callable[[tuple[int, ...]], str]
_Part = tuple[TextPart, Hypothesis, SegmentResult]  # part of a sentence, its chosen hypothesis and its result


class TextPipeline(TextPlanner):
    """A planner that also assembles the results of its segments."""

    @property
    def cost_characters(self) -> int:
        """Cost of the text work, as the number of characters of a plain English text with the same cost."""
        options = self._options
        # A character counts its bytes, because it may become as many tokens.
        num_bytes = sum(len(text.encode(errors="surrogatepass")) for text in self._request.texts)
        has_codes = options.format is not TextFormat.PLAIN or any(map(may_have_literals, self._request.texts))
        cost = num_bytes * (_MARKUP_COST if has_codes or options.protection.patterns else 1)
        cost *= self.search.num_hypotheses if options.wants_attention else 1
        return cost + cost * len(options.terms) // _TERMS_OF_DOUBLE_COST

    def document_sentences(self) -> Iterator[PlannedSentence]:
        """Yield the only text sentence by sentence, split and tokenized as far as it is read.

        Raises:
            InvalidFieldError: as `plan`; the field is `text`.
        """
        (text,) = self._request.texts
        self._is_document = True
        if self._num_alignable_tokens:
            self._num_alignable_tokens = math.inf  # only a few sentences are in memory at a time
        return document_sentences(text, self._sentences(text, 0, "text"), separator=self._separator, fixed=self._fixed)

    def assemble(self, plans: Sequence[TextPlan], results: Sequence[SegmentResult]) -> tuple[Translation, ...]:
        """Return the translation of each text; `results` has one result for each part of all plans, in order."""
        remaining = iter(results)
        return tuple(self._translation(plan, list(islice(remaining, len(plan.parts)))) for plan in plans)

    def redecode_requests(self, plans: Sequence[TextPlan], results: Sequence[SegmentResult]) -> dict[int, Segment]:
        """Return segments to decode again because the best hypotheses lost placeholders, by the index of the result.

        The target prefix of each is the first translation up to the last missing placeholder, with all of them
        inserted; decoding continues from there.
        """
        parts = chain.from_iterable(plan.parts for plan in plans)
        pairs = enumerate(zip(parts, results, strict=True))
        return {index: segment for index, pair in pairs if (segment := self._redecode_request(*pair)) is not None}

    def choose_redecoded(
        self, plans: Sequence[TextPlan], results: Sequence[SegmentResult], redecoded: Mapping[int, SegmentResult]
    ) -> list[SegmentResult]:
        """Return the results, replaced by redecoded ones where these need fewer repairs."""
        parts = list(chain.from_iterable(plan.parts for plan in plans))
        chosen = list(results)
        for index, result in redecoded.items():
            if self._num_repairs(parts[index], result) < self._num_repairs(parts[index], results[index]):
                chosen[index] = result
        return chosen

    def features(
        self, plan: TextPlan, hypotheses: Sequence[Hypothesis], results: Sequence[SegmentResult], usual_log_ratio: float
    ) -> Iterator[tuple[float, ...]]:
        """Yield the confidence features of each sentence of a text; see `dragoman_service.text.hypotheses`."""
        for sentence in _by_sentence(plan, hypotheses, results):
            yield self._features(plan, sentence, usual_log_ratio, self._decode)

    def _features(
        self, plan: TextPlan, sentence: Sequence[_Part], usual_log_ratio: float, decode: _Decode
    ) -> tuple[float, ...]:
        # Both sides are the texts that the model sees, with placeholders.
        parts, hypotheses, results = zip(*sentence, strict=True)
        return features(
            " ".join(part.unit.text if part.unit else plan.text[part.span.start : part.span.end] for part in parts),
            " ".join(decode(hypothesis.token_ids) for hypothesis in hypotheses),
            num_source_tokens=sum(len(part.segment.source_ids) for part in parts),
            token_log_probs=[log_prob for hypothesis in hypotheses for log_prob in hypothesis.token_log_probs],
            has_defect=any(result.degeneration is not None for result in results)
            or not all(hypothesis.is_finished for hypothesis in hypotheses),
            usual_log_ratio=usual_log_ratio,
        )

    def _redecode_request(self, part: TextPart, result: SegmentResult) -> Segment | None:
        self._check()
        search, tags = part.segment.search, self._tokenizer.target_prefix
        if part.unit is None or not part.unit.has_placeholders or search.target_prefix != tags:
            return None
        best = result.hypotheses[0]
        prefix = forced_prefix(part.unit, self._decode(best.token_ids), self._links(part.unit.text, best))
        if prefix is None:
            return None
        token_ids = (*tags, *self._tokenizer.encode_target(prefix)) if prefix else tags
        if len(token_ids) >= search.max_target_tokens or self._tokenizer.unk_id in token_ids:
            return None
        sizes = (len(self._tokenizer.encode_target(placeholder)) for placeholder in part.unit.placeholders)
        size = min(*sizes, search.no_repeat_ngram_size or _MAX_NGRAM_SIZE)
        if size >= _MIN_NGRAM_SIZE:  # shorter n-grams would forbid words
            search = replace(search, no_repeat_ngram_size=size)
        return replace(part.segment, search=replace(search, target_prefix=token_ids))

    def _num_repairs(self, part: TextPart, result: SegmentResult) -> tuple[int, bool]:
        best = result.hypotheses[0]
        return len(self._restored(part, best).repairs), not best.is_finished

    def _translation(self, plan: TextPlan, results: Sequence[SegmentResult]) -> Translation:
        decode = cache(self._decode)  # most combinations share most of their hypotheses
        rows: list[Sequence[Hypothesis]] = [result.hypotheses for result in results]
        if self.search.sampling is None:
            rows = [distinct(row, [decode(hypothesis.token_ids) for hypothesis in row]) for row in rows]
        chosen = [
            [row[index] for row, index in zip(rows, indices, strict=True)]
            for indices in best_combinations(rows, count=self.search.num_hypotheses)
        ]
        joined = self._joined(plan, chosen, decode)
        if self.search.sampling is None:  # different hypotheses may give the same text
            pairs = distinct(list(zip(chosen, joined, strict=True)), [text.text for text in joined])
            chosen, joined = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        sentences: list[SentenceAlignment] = []
        warnings: list[TranslationWarning] = []
        targets = iter(joined[0].spans)
        for index, sentence in enumerate(_by_sentence(plan, chosen[0], results)):
            sentences.append(self._alignment(plan, sentence, list(islice(targets, len(sentence))), decode))
            warnings += sentence_warnings(
                sentences[-1],
                [result for _, _, result in sentence],
                sentence_index=index,
                max_source_tokens=self._model.max_source_tokens,
                max_target_tokens=max(part.segment.search.max_target_tokens for part, _, _ in sentence),
            )
        warnings += self._lost_placeholders(plan, chosen[0])
        return Translation(
            hypotheses=tuple(self._text_hypothesis(plan, *pair) for pair in zip(joined, chosen, strict=True)),
            sentences=tuple(sentences),
            warnings=tuple(sorted(warnings, key=lambda warning: warning.sentence_index or 0)),
        )

    def _alignment(
        self, plan: TextPlan, sentence: Sequence[_Part], targets: Sequence[Span], decode: _Decode
    ) -> SentenceAlignment:
        confidence = self._model.confidence
        score = None
        if confidence is not None:
            score = probability(confidence, self._features(plan, sentence, confidence.usual_log_ratio, decode))
        return SentenceAlignment(
            source=Span(start=sentence[0][0].span.start, end=sentence[-1][0].span.end),
            target=Span(start=targets[0].start, end=targets[-1].end),
            num_source_tokens=sum(len(part.segment.source_ids) for part, _, _ in sentence),
            num_target_tokens=sum(len(hypothesis.token_ids) for _, hypothesis, _ in sentence),
            is_truncated=not all(hypothesis.is_finished for _, hypothesis, _ in sentence),
            is_split=len(sentence) > 1,
            score=score,
        )

    def _joined(self, plan: TextPlan, chosen: Sequence[Sequence[Hypothesis]], decode: _Decode) -> Sequence[Joined]:
        # The text of each combination of hypotheses.
        if plan.is_plain:
            return [
                join(plan.text, plan.spans, [decode(each.token_ids) for each in hypotheses], separator=self._separator)
                for hypotheses in chosen
            ]
        fixed = [(term.span, term.target) for term in plan.fixed]
        texts = []
        for hypotheses in chosen:
            pairs = zip(plan.parts, hypotheses, strict=True)
            parts = [(part.span, self._restored(part, hypothesis).fragments) for part, hypothesis in pairs]
            texts.append(Assembler(plan.text, parts, fixed).assemble(separator=self._separator))
        return texts

    def _restored(self, part: TextPart, hypothesis: Hypothesis) -> Restored:
        self._check()
        target = self._decode(hypothesis.token_ids)
        if part.unit is None:
            return Restored(fragments=(Fragment(text=target),))
        return restore(part.unit, target, self._links(part.unit.text, hypothesis))

    def _decode(self, token_ids: tuple[int, ...]) -> str:
        return self._tokenizer.decode(token_ids).strip()  # white space around a sentence is copied from the source

    def _text_hypothesis(self, plan: TextPlan, joined: Joined, hypotheses: Sequence[Hypothesis]) -> TextHypothesis:
        token_ids = [token_id for hypothesis in hypotheses for token_id in hypothesis.token_ids]
        log_probs = (log_prob for hypothesis in hypotheses for log_prob in hypothesis.token_log_probs)
        options = self._options
        has_attention = options.return_attention is not AttentionDetail.NONE
        return TextHypothesis(
            text=joined.text,
            score=sum((hypothesis.score for hypothesis in hypotheses), 0.0),
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
        # Links from a source to its translation as `_decode` returns it; None without attention.
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
        stripped = len(target) - len(target.lstrip())
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

    def _lost_placeholders(self, plan: TextPlan, hypotheses: Sequence[Hypothesis]) -> Iterator[TranslationWarning]:
        for part, hypothesis in zip(plan.parts, hypotheses, strict=True):
            if part.unit is None or not part.unit.has_placeholders:
                continue
            for repair in self._restored(part, hypothesis).repairs:
                source = repair.code.source
                shown = plan.text[source.start : source.end][:_MAX_SHOWN_CHARACTERS]
                yield TranslationWarning(
                    kind=WarningKind.PLACEHOLDER_LOST,
                    message=f"{shown!r} {repair.action.value}",
                    sentence_index=part.sentence_index,
                )


def _attention_of(hypothesis: Hypothesis) -> Weights:
    if hypothesis.attention is None:
        raise EngineError("result without the requested attention")
    return hypothesis.attention


def _by_sentence(
    plan: TextPlan, hypotheses: Sequence[Hypothesis], results: Sequence[SegmentResult]
) -> Iterator[list[_Part]]:
    # The parts of each sentence.
    parts = zip(plan.parts, hypotheses, results, strict=True)
    return (list(sentence) for _, sentence in groupby(parts, key=lambda part: part[0].sentence_index))
