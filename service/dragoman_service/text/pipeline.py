"""The text side of a request: plans segments before decoding, and assembles translations from their results."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby, islice
from typing import Any

import numpy as np

from dragoman_service.datatypes import (
    AlignmentLink,
    CrossAttention,
    Hypothesis,
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
from dragoman_service.text.attempts import Attempt, Chosen, attempt_warnings
from dragoman_service.text.candidates import Candidate, CandidateReader
from dragoman_service.text.casing import is_irregular
from dragoman_service.text.documents import PlannedSentence, document_sentences, untranslated_warning
from dragoman_service.text.hypotheses import (
    best_combinations,
    distinct,
    features,
    probability,
    sentence_warnings,
    without_violations,
)
from dragoman_service.text.invariants.symbols import quotation_marks
from dragoman_service.text.invariants.violations import HARD_KINDS
from dragoman_service.text.placeholders.markdown import is_markup_intact
from dragoman_service.text.placeholders.masking import Placeholders
from dragoman_service.text.placeholders.patterns import may_have_literals
from dragoman_service.text.placeholders.protected_units import with_placeholders
from dragoman_service.text.placeholders.restoration import Assembled, Assembler, forced_prefix
from dragoman_service.text.placeholders.spans import ProtectedSpan
from dragoman_service.text.placeholders.text_units import TextUnit, spans_in_unit
from dragoman_service.text.planning import TextPlanner
from dragoman_service.text.plans import ModelText, TextPart, TextPlan
from dragoman_service.text.quotation import localized_marks
from dragoman_service.text.repair import Repair, part_unit, plan_repair, repaired_search
from dragoman_service.text.segmentation import Joined, join

_MARKUP_COST = 4  # of a character of markup or of a text with placeholders, relative to plain text
_TERMS_OF_DOUBLE_COST = 16  # number of terms that double the cost of a request

# Length of the n-grams that redecoding may not repeat, so that no placeholder occurs twice.
_MIN_NGRAM_SIZE, _MAX_NGRAM_SIZE = 3, 5


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
        """Return the part to decode again because the best candidate violates an invariant; None if it need not be.

        A segment that the worker has already decoded twice is not decoded again, nor one with sampling or a target
        prefix of the caller.
        """
        self._check()
        if not attempt.best.violations and not attempt.best.is_copied_label:
            return None
        part, search, tags = attempt.part, attempt.part.segment.search, self._tokenizer.target_prefix
        if attempt.result.degeneration is not None or search.sampling is not None or search.target_prefix != tags:
            return None
        guards_copies = search.repetition_guard
        language = self._request.source_language
        repair = plan_repair(
            attempt.source,
            part,
            attempt.best,
            guards_copies=guards_copies,
            language=language,
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
        """Return the confidence features of a sentence from its parts; see `dragoman_service.text.hypotheses`."""
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
        if search.sampling is None:
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

    def _candidate(self, source: str, part: TextPart, hypothesis: Hypothesis) -> Candidate:
        target = self._decode(hypothesis.token_ids)
        return self._reader.read(source, part, hypothesis, target, self._links(part.model_text.text, hypothesis))

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
        target = self._decode(best.hypothesis.token_ids)
        prefix = forced_prefix(part.unit, target, self._links(part.model_text.text, best.hypothesis))
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

    def _translation(self, plan: TextPlan, attempts: Sequence[Attempt]) -> Translation:
        rows: list[list[Chosen]] = [[(attempt, candidate) for candidate in attempt.candidates] for attempt in attempts]
        counts_violations = self.search.sampling is None and not self._has_prefix
        ranks = [
            [
                (each.num_hard * counts_violations, not each.hypothesis.is_finished, -each.hypothesis.score)
                for _, each in row
            ]
            for row in rows
        ]
        chosen = [
            [row[index] for row, index in zip(rows, indices, strict=True)]
            for indices in best_combinations(ranks, count=self.search.num_hypotheses)
        ]
        is_plain = not plan.fixed and all(attempt.part.unit is None for attempt in attempts)
        joined = [self._joined(plan, combination, is_plain=is_plain) for combination in chosen]
        if self.search.sampling is None:  # different hypotheses may give the same text
            pairs = distinct(list(zip(chosen, joined, strict=True)), [text.text for text in joined])
            chosen, joined = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return Translation(
            hypotheses=tuple(self._text_hypothesis(*pair) for pair in zip(joined, chosen, strict=True)),
            **self._described(plan, chosen[0], joined[0]),
        )

    def _described(self, plan: TextPlan, chosen: Sequence[Chosen], joined: Joined) -> dict[str, Any]:
        # The sentences of the best combination, and the warnings about it.
        sentences: list[SentenceAlignment] = []
        warnings: list[TranslationWarning] = []
        targets = iter(joined.spans)
        groups = groupby(chosen, key=lambda each: each[0].part.sentence_index)
        for index, sentence in enumerate(list(group) for _, group in groups):
            spans = list(islice(targets, len(sentence)))
            sentences.append(self._alignment(sentence, spans))
            warnings += sentence_warnings(
                sentences[-1],
                [attempt.result for attempt, _ in sentence],
                sentence_index=index,
                max_source_tokens=self._model.max_source_tokens,
                max_target_tokens=max(attempt.part.segment.search.max_target_tokens for attempt, _ in sentence),
            )
            warnings += attempt_warnings(sentence, sentences[-1], spans, sentence_index=index)
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
            return join(plan.text, plan.spans, texts, separator=self._separator)
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
            _attention_of(candidate.hypothesis)
        if isinstance(joined, Assembled):
            yield from joined.links
            return
        for (attempt, candidate), target_span in zip(chosen, joined.spans, strict=True):
            start = attempt.part.span.start
            yield from shifted(candidate.links or (), source_by=start, target_by=target_span.start)

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

    def _attention(self, attempt: Attempt, candidate: Candidate) -> CrossAttention:
        hypothesis = candidate.hypothesis
        attention = _attention_of(hypothesis)
        layer = alignment_layer(len(attention))
        has_heads = self._options.return_attention is AttentionDetail.ALL_HEADS
        return CrossAttention(
            source_pieces=tuple(self._tokenizer.source_pieces(attempt.part.segment.source_ids)),
            target_pieces=tuple(self._tokenizer.pieces(hypothesis.token_ids)),
            layer=layer,
            weights=attention[layer] if has_heads else head_average(attention)[np.newaxis],
        )


def _has_remaining_defect(result: SegmentResult) -> bool:
    return result.degeneration is not None and bool(result.degeneration.remaining)


def _attention_of(hypothesis: Hypothesis) -> Weights:
    if hypothesis.attention is None:
        raise EngineError("result without the requested attention")
    return hypothesis.attention
