"""The text side of a request: plan, decode, decode some parts again, assemble.

`translation_steps` is a generator that yields segments and receives their results. The scheduler drives it for
requests and documents, `translate_offline` for datasets and evaluation, so all of them give the same texts.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, islice
from typing import Any

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
from dragoman_service.request import AttentionDetail, TextFormat
from dragoman_service.text.alignment import attention_of, cross_attention, hypothesis_links, shifted
from dragoman_service.text.candidates import Attempt, Candidate, CandidateReader, Chosen
from dragoman_service.text.casing import is_irregular
from dragoman_service.text.confidence import features, probability, without_violations
from dragoman_service.text.documents import PlannedSentence, document_sentences, untranslated_warning
from dragoman_service.text.hypotheses import best_combinations, distinct
from dragoman_service.text.invariants.symbols import quotation_marks
from dragoman_service.text.invariants.violations import HARD_KINDS
from dragoman_service.text.placeholders.markdown import is_markup_intact
from dragoman_service.text.placeholders.patterns import may_have_literals
from dragoman_service.text.placeholders.restoration import Assembled, Assembler
from dragoman_service.text.planning import TextPlanner
from dragoman_service.text.plans import TextPart, TextPlan
from dragoman_service.text.repair import Repairer
from dragoman_service.text.segmentation import Joined, join
from dragoman_service.text.sentence_warnings import attempt_warnings, low_confidence_warnings, sentence_warnings

_MARKUP_COST = 4  # of a character of markup or of a text with placeholders, relative to plain text
_TERMS_OF_DOUBLE_COST = 16  # number of terms that double the cost of a request

RULES_VERSION = 1
"""Version of the rules that prepare, check and correct texts; increases when the same model gives other texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searches:
    """Segments to decode. The results of second searches are optional."""

    segments: list[Segment]
    is_second: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The translations of the texts of a request, and the results behind them."""

    pipeline: "TextPipeline"
    translations: tuple[Translation, ...]
    plans: Sequence[TextPlan]
    first: Sequence[Attempt]  # one for each part
    chosen: Sequence[Attempt]  # the same, or the second attempt
    num_second: int = 0  # parts with a second search
    is_skipped: bool = False  # whether the second searches have no results

    @property
    def results(self) -> list[SegmentResult]:
        """The chosen result of each part."""
        return [attempt.result for attempt in self.chosen]

    @property
    def num_replaced(self) -> int:
        """Parts whose second result was chosen."""
        return sum(old is not new for old, new in zip(self.first, self.chosen, strict=True) if not new.is_skipped)


class TextPipeline(TextPlanner):
    """A planner that also assembles the results of its segments."""

    def costs_more_than(self, num_characters: int) -> bool:
        """Return whether the text work costs more than that of a plain English text of this length."""
        options = self._options
        # A character counts its bytes, because it may become as many tokens.
        cost = sum(len(text.encode(errors="surrogatepass")) for text in self._request.texts)
        cost *= self.search.num_hypotheses if self._segments.returns_attention else 1
        cost += cost * len(options.terms) // _TERMS_OF_DOUBLE_COST
        if cost * _MARKUP_COST <= num_characters:
            return False
        has_codes = options.format is not TextFormat.PLAIN or options.protection.patterns
        if has_codes or any(map(may_have_literals, self._request.texts)):
            cost *= _MARKUP_COST
        return cost > num_characters

    def document_sentences(self) -> Iterator[PlannedSentence]:
        """Yield the only text sentence by sentence, split and tokenized as far as it is read.

        Raises:
            InvalidFieldError: as `plan`; the field is `text`.
        """
        (text,) = self._request.texts
        self._is_document = True
        if self._segments.num_alignable_tokens:
            self._segments.num_alignable_tokens = math.inf  # only a few sentences are in memory at a time
        return document_sentences(text, self._sentences(text, 0, "text"), separator=self._separator, fixed=self._fixed)

    @property
    def is_markdown(self) -> bool:
        """True if the texts are Markdown."""
        return self._options.format is TextFormat.MARKDOWN

    def document_warnings(self, target: str) -> tuple[TranslationWarning, ...]:
        """Return the warnings about the whole translation of a document: whether it has the marks of its source."""
        return self._markup_warnings(self._request.texts[0], target) if self.is_markdown else ()

    def attempts(self, plans: Sequence[TextPlan], results: Sequence[SegmentResult]) -> list[Attempt]:
        """Return the first attempt of each part; `results` has one result for each part of all plans, in order."""
        parts = ((plan, part) for plan in plans for part in plan.parts)
        return [self._attempt(plan.text, part, result) for (plan, part), result in zip(parts, results, strict=True)]

    def second_part(self, attempt: Attempt) -> TextPart | None:
        """Return the part to decode again because the best candidate violates an invariant; None if it need not be."""
        self._check()
        if not attempt.best.violations and not attempt.best.is_copied_label:
            return None
        return self._repairer.second_part(attempt)

    def better(self, first: Attempt, part: TextPart, result: SegmentResult | None) -> Attempt:
        """Return the better of two attempts; the first, marked as skipped, if the second search has no result.

        Fewer hard violations win. For as many hard and fewer other violations, the confidence must not fall.
        """
        if result is None:
            return replace(first, is_skipped=True)
        second = self._attempt(first.text, part, result)
        old, new = (self._num_violations(attempt) for attempt in (first, second))
        if new[0] != old[0]:
            return second if new < old else first
        is_better = new < old and self._confidence(second) >= self._confidence(first)
        return second if is_better else first

    def assemble(self, plans: Sequence[TextPlan], attempts: Sequence[Attempt]) -> tuple[Translation, ...]:
        """Return the translation of each text; `attempts` has one attempt for each part of all plans, in order."""
        remaining = iter(attempts)
        return tuple(self._translation(plan, list(islice(remaining, len(plan.parts)))) for plan in plans)

    def features(self, attempts: Sequence[Attempt], usual_log_ratio: float) -> tuple[float, ...]:
        """Return the confidence features of a sentence from its parts; see `dragoman_service.text.confidence`."""
        return self._features([(attempt, attempt.best) for attempt in attempts], usual_log_ratio)

    def _features(self, sentence: Sequence[Chosen], usual_log_ratio: float) -> tuple[float, ...]:
        # Both sides are the texts that the model reads and writes, with placeholders.
        hypotheses = [candidate.hypothesis for _, candidate in sentence]
        return features(
            " ".join(attempt.part.model_text.text for attempt, _ in sentence),
            " ".join(candidate.decoded for _, candidate in sentence),
            num_source_tokens=sum(len(attempt.part.segment.source_ids) for attempt, _ in sentence),
            token_log_probs=[log_prob for hypothesis in hypotheses for log_prob in hypothesis.token_log_probs],
            has_defect=any(attempt.result.degeneration is not None for attempt, _ in sentence)
            or not all(hypothesis.is_finished for hypothesis in hypotheses),
            num_hard=sum(candidate.num_hard + _has_remaining_defect(attempt.result) for attempt, candidate in sentence),
            num_soft=sum(each.kind not in HARD_KINDS for _, candidate in sentence for each in candidate.violations),
            usual_log_ratio=usual_log_ratio,
        )

    def _confidence(self, attempt: Attempt) -> float:
        # The confidence of a part without the features that a violation changes; the mean log-probability if the model
        # has no confidence.
        confidence, hypothesis = self._model.confidence, attempt.best.hypothesis
        if confidence is None:
            return hypothesis.log_prob / len(hypothesis.token_ids)
        values = self.features([attempt], confidence.usual_log_ratio)
        return probability(confidence, without_violations(values))

    def _num_violations(self, attempt: Attempt) -> tuple[int, int]:
        # Hard violations, and all. A short copy counts as a soft one, or as a hard one if its capitals are a slip. A
        # misplaced quotation mark counts twice, because a text without quotation marks is easier to read.
        best = attempt.best
        is_copy = best.is_copied_label
        lost = (each.source for each in best.violations if each.kind is WarningKind.PLACEHOLDER_LOST and each.source)
        num_misplaced = sum(quotation_marks(attempt.source[span.start : span.end]) == [0] for span in lost)
        num_hard = best.num_hard + num_misplaced + (is_copy and is_irregular(attempt.source))
        return num_hard, len(best.violations) + num_misplaced + is_copy

    def _attempt(self, text: str, part: TextPart, result: SegmentResult) -> Attempt:
        # Candidates with fewer hard violations come first, unless the caller has fixed a prefix or samples.
        self._check()
        source = text[part.span.start : part.span.end]
        search = part.segment.search
        candidates = [self._candidate(source, part, hypothesis) for hypothesis in result.hypotheses]
        if search.sampling is None and len(candidates) > 1:
            candidates = distinct(candidates, [candidate.decoded for candidate in candidates])
            if not self._has_prefix:
                candidates.sort(key=lambda candidate: candidate.num_hard)  # stable
        return Attempt(text=text, source=source, part=part, result=result, candidates=tuple(candidates))

    @cached_property
    def _reader(self) -> CandidateReader:
        request = self._request
        return CandidateReader(
            source_language=request.source_language,
            target_language=request.target_language,
            spells=self._tokenizer.spells,
            is_word=self._tokenizer.is_one_token,
            is_compared=self._tokenizer.is_of_translations,
            keeps_start=self._has_prefix,
        )

    @property
    def _has_prefix(self) -> bool:
        # True if the caller has fixed the start of a translation.
        return bool(self._options.target_prefix or self._request.target_prefixes)

    @cached_property
    def _repairer(self) -> Repairer:
        return Repairer(
            self._request, self._model, segments=self._segments, model_text=self._model_text, check=self._check
        )

    def _candidate(self, source: str, part: TextPart, hypothesis: Hypothesis) -> Candidate:
        target = self._decode(hypothesis.token_ids)
        links = None
        if hypothesis.attention is not None:
            links = hypothesis_links(self._tokenizer, part.model_text.text, hypothesis)
        return self._reader.read(source, part, hypothesis, target, links)

    def _translation(self, plan: TextPlan, attempts: Sequence[Attempt]) -> Translation:
        chosen = self._combinations(attempts)
        is_plain = not plan.fixed and all(attempt.part.unit is None for attempt in attempts)
        joined = [self._joined(plan, combination, is_plain=is_plain) for combination in chosen]
        if self.search.sampling is None and len(chosen) > 1:  # different hypotheses may give the same text
            pairs = distinct(list(zip(chosen, joined, strict=True)), [text.text for text in joined])
            chosen, joined = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return Translation(
            hypotheses=tuple(self._text_hypothesis(*pair) for pair in zip(joined, chosen, strict=True)),
            **self._described(plan, chosen[0], joined[0]),
        )

    def _combinations(self, attempts: Sequence[Attempt]) -> list[list[Chosen]]:
        # The best combinations of one candidate per attempt.
        rows: list[list[Chosen]] = [[(attempt, candidate) for candidate in attempt.candidates] for attempt in attempts]
        if all(len(row) == 1 for row in rows):
            return [[row[0] for row in rows]]
        counts_violations = self.search.sampling is None and not self._has_prefix
        ranks = [
            [
                (each.num_hard * counts_violations, not each.hypothesis.is_finished, -each.hypothesis.score)
                for _, each in row
            ]
            for row in rows
        ]
        return [
            [row[index] for row, index in zip(rows, indices, strict=True)]
            for indices in best_combinations(ranks, count=self.search.num_hypotheses)
        ]

    def _described(self, plan: TextPlan, chosen: Sequence[Chosen], joined: Joined) -> dict[str, Any]:
        # The sentences of the best combination, and the warnings about it.
        sentences: list[SentenceAlignment] = []
        warnings: list[TranslationWarning] = []
        targets = iter(joined.spans)
        groups = groupby(chosen, key=lambda each: each[0].part.sentence_index)
        for index, sentence in enumerate(list(group) for _, group in groups):
            spans = list(islice(targets, len(sentence)))
            sentences.append(self._alignment(sentence, spans))
            if len(sentence) == 1 and _is_clean(*sentence[0]):
                warnings += low_confidence_warnings(sentences[-1], sentence_index=index)
                continue
            own = list(
                sentence_warnings(
                    sentences[-1],
                    [attempt.result for attempt, _ in sentence],
                    sentence_index=index,
                    max_source_tokens=self._model.max_source_tokens,
                    max_target_tokens=max(attempt.part.segment.search.max_target_tokens for attempt, _ in sentence),
                )
            )
            own += attempt_warnings(sentence, sentences[-1], spans, sentence_index=index)
            warnings += own or low_confidence_warnings(sentences[-1], sentence_index=index)
        warnings += (untranslated_warning(fixed.span) for fixed in plan.fixed if fixed.is_untranslated)
        if self.is_markdown and not self._is_document:
            warnings += self._markup_warnings(plan.text, joined.text)
        warnings.sort(key=lambda warning: warning.sentence_index or 0)
        return {"sentences": tuple(sentences), "warnings": tuple(warnings)}

    def _markup_warnings(self, source: str, target: str) -> tuple[TranslationWarning, ...]:
        if is_markup_intact(source, target, self._check):
            return ()
        message = "the translation has other Markdown marks than the text"
        return (TranslationWarning(kind=WarningKind.MARKUP_CHANGED, message=message, sentence_index=None),)

    def _alignment(self, sentence: Sequence[Chosen], targets: Sequence[Span]) -> SentenceAlignment:
        confidence = self._model.confidence
        score = None
        if confidence is not None:
            score = probability(confidence, self._features(sentence, confidence.usual_log_ratio))
        parts = [attempt.part for attempt, _ in sentence]
        hypotheses = [candidate.hypothesis for _, candidate in sentence]
        return SentenceAlignment(
            source=Span(start=parts[0].span.start, end=parts[-1].span.end),
            target=Span(start=targets[0].start, end=targets[-1].end),
            num_source_tokens=sum(len(part.segment.source_ids) for part in parts),
            num_target_tokens=sum(len(hypothesis.token_ids) for hypothesis in hypotheses),
            is_truncated=not all(hypothesis.is_finished for hypothesis in hypotheses),
            is_split=len(sentence) > 1,
            score=score,
        )

    def _joined(self, plan: TextPlan, chosen: Sequence[Chosen], *, is_plain: bool) -> Joined:
        # The text of a combination of candidates.
        if is_plain:
            texts = [candidate.text for _, candidate in chosen]
            return join(plan.text, [part.span for part in plan.parts], texts, separator=self._separator)
        parts = [(attempt.part.span, candidate.fragments) for attempt, candidate in chosen]
        fixed = [(each.span, None if each.is_untranslated else each.target) for each in plan.fixed]
        return Assembler(plan.text, parts, fixed).assemble(separator=self._separator)

    def _decode(self, token_ids: tuple[int, ...]) -> str:
        return self._tokenizer.decode(token_ids).strip()  # white space around a sentence is copied from the source

    def _text_hypothesis(self, joined: Joined, chosen: Sequence[Chosen]) -> TextHypothesis:
        hypotheses = [candidate.hypothesis for _, candidate in chosen]
        token_ids = [token_id for hypothesis in hypotheses for token_id in hypothesis.token_ids]
        log_probs = (log_prob for hypothesis in hypotheses for log_prob in hypothesis.token_log_probs)
        options = self._options
        has_attention = options.return_attention is not AttentionDetail.NONE
        return TextHypothesis(
            text=joined.text,
            score=sum((hypothesis.score for hypothesis in hypotheses), 0.0),
            tokens=tuple(self._tokenizer.pieces(token_ids)) if options.return_tokens else (),
            token_log_probs=tuple(log_probs) if options.return_scores else (),
            alignment=tuple(self._text_links(joined, chosen)) if options.return_alignment else (),
            attention=tuple(self._attention(*each) for each in chosen) if has_attention else (),
        )

    def _text_links(self, joined: Joined, chosen: Sequence[Chosen]) -> Iterator[AlignmentLink]:
        for _, candidate in chosen:
            attention_of(candidate.hypothesis)
        if isinstance(joined, Assembled):
            yield from joined.links
            return
        for (attempt, candidate), target_span in zip(chosen, joined.spans, strict=True):
            start = attempt.part.span.start
            yield from shifted(candidate.links or (), source_by=start, target_by=target_span.start)

    def _attention(self, attempt: Attempt, candidate: Candidate) -> CrossAttention:
        has_heads = self._options.return_attention is AttentionDetail.ALL_HEADS
        source_ids = attempt.part.segment.source_ids
        return cross_attention(self._tokenizer, source_ids, candidate.hypothesis, has_heads=has_heads)


def _is_clean(attempt: Attempt, candidate: Candidate) -> bool:
    # Whether a candidate causes no warning.
    has_finding = candidate.violations or candidate.is_copied_label or not candidate.hypothesis.is_finished
    return not (has_finding or attempt.is_skipped or attempt.result.degeneration)


def _has_remaining_defect(result: SegmentResult) -> bool:
    return result.degeneration is not None and bool(result.degeneration.remaining)


Steps = Generator[Searches, Sequence[SegmentResult] | None, Outcome]


def translation_steps(pipeline: TextPipeline, plans: Sequence[TextPlan] | None = None) -> Steps:
    """Yield the searches of a request; each needs one result per segment, or None for second searches.

    Args:
        pipeline: the text side of the request.
        plans: plans of some of its texts; None: plan all texts.
    """
    plans = pipeline.plan() if plans is None else plans
    parts = [part for plan in plans for part in plan.parts]
    results: Sequence[SegmentResult] | None = ()
    if parts:
        results = yield Searches(segments=[part.segment for part in parts])
    if results is None:
        raise ValueError("first searches need results")
    first = pipeline.attempts(plans, results)
    again = {index: part for index, each in enumerate(first) if (part := pipeline.second_part(each)) is not None}
    chosen = list(first)
    second: Sequence[SegmentResult] | None = ()
    if again:
        second = yield Searches(segments=[part.segment for part in again.values()], is_second=True)
        for number, (index, part) in enumerate(again.items()):
            result = None if second is None else second[number]
            chosen[index] = pipeline.better(first[index], part, result)
    return Outcome(
        pipeline=pipeline,
        translations=pipeline.assemble(plans, chosen),
        plans=plans,
        first=first,
        chosen=chosen,
        num_second=len(again),
        is_skipped=second is None,
    )


def advance(steps: Steps, results: Sequence[SegmentResult] | None = None) -> Searches | Outcome:
    """Start the steps, or send the results of the last searches; return the next searches or the outcome."""
    try:
        return steps.send(results)  # a generator that has not started receives None
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome


def translate_offline(
    requests: Sequence[Steps], decode: Callable[[list[Segment]], Sequence[SegmentResult]]
) -> list[Outcome]:
    """Return the outcome of each request; the searches of all requests are decoded together.

    Args:
        requests: steps that have not started.
        decode: returns one result for each segment, in order.
    """
    states = [advance(steps) for steps in requests]
    while waiting := [index for index, state in enumerate(states) if isinstance(state, Searches)]:
        searches = [state.segments for state in states if isinstance(state, Searches)]
        results = iter(decode(list(chain.from_iterable(searches))))
        for index, segments in zip(waiting, searches, strict=True):
            states[index] = advance(requests[index], list(islice(results, len(segments))))
    return [state for state in states if isinstance(state, Outcome)]
