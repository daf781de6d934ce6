"""The text side of one request: split and tokenize before the queue, detokenize and join after it."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, islice
from typing import Protocol

from service.datatypes import (
    Hypothesis,
    SearchConfig,
    Segment,
    SegmentResult,
    SentenceAlignment,
    Span,
    TextHypothesis,
    Translation,
    TranslationRequest,
    TranslationWarning,
    WarningKind,
)
from service.errors import InvalidFieldError
from service.text.limits import EXTRA_TARGET_TOKENS
from service.text.segmentation import Joined, filler_between, join, split_overlong, split_sentences, trim


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def eos_id(self) -> int:
        """Ends every source."""

    def encode(self, text: str) -> list[int]:
        """Return token ids, without EOS."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text; special tokens are skipped."""

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return the spelling of each token."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """A piece of a text that is decoded as one segment."""

    span: Span
    segment: Segment
    sentence_index: int
    """Parts of one sentence follow each other and share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """What is decoded of one text."""

    text: str
    parts: tuple[TextPart, ...]

    @property
    def spans(self) -> list[Span]:
        """Where the parts are in the text."""
        return [part.span for part in self.parts]

    def sentences(self) -> list[list[TextPart]]:
        """Return the parts of each sentence."""
        return [list(parts) for _, parts in groupby(self.parts, key=lambda part: part.sentence_index)]


class TextPipeline:
    """The text side of one request: before the queue and after it."""

    def __init__(self, request: TranslationRequest, *, model: TextModel, search: SearchConfig) -> None:
        self.num_characters = sum(map(len, request.texts))
        """Size of the work."""
        self._request = request
        self._options = request.options
        self._model = model
        self._tokenizer = model.tokenizer
        self._search = search
        self._filler = filler_between(request.source_language, request.target_language)

    def plan(self) -> list[TextPlan]:
        """Split and tokenize all texts."""
        return [
            TextPlan(text=text, parts=tuple(self._parts(text, f"texts[{index}]")))
            for index, text in enumerate(self._request.texts)
        ]

    def assemble(self, plans: Sequence[TextPlan], results: Sequence[SegmentResult]) -> tuple[Translation, ...]:
        """Detokenize and join; `results` has one for each part of all plans, in order."""
        remaining = iter(results)
        return tuple(self._translation(plan, list(islice(remaining, len(plan.parts)))) for plan in plans)

    def _parts(self, text: str, field: str) -> Iterator[TextPart]:
        sentences = (
            split_sentences(text, language=self._request.source_language)
            if self._options.split_sentences
            else trim(text)
        )
        sentence_index = 0
        for sentence in sentences:
            segments = [(span, self._segment(ids)) for span, ids in self._encoded(text, sentence, field) if ids]
            yield from (TextPart(span=span, segment=one, sentence_index=sentence_index) for span, one in segments)
            sentence_index += bool(segments)

    def _encoded(self, text: str, sentence: Span, field: str) -> list[tuple[Span, list[int]]]:
        """Return the parts of a sentence that fit the model, nearly always one, with their token ids."""
        limit = self._model.max_source_tokens - 1  # EOS comes on top

        def encode(span: Span) -> list[int]:
            return self._tokenizer.encode(text[span.start : span.end])

        token_ids = encode(sentence)
        if len(token_ids) <= limit:
            return [(sentence, token_ids)]
        try:
            parts = split_overlong(text, sentence, fits=lambda part: len(self._tokenizer.encode(part)) <= limit)
        except ValueError as error:
            raise InvalidFieldError(field, str(error), f"within {limit} source tokens") from error
        return [(part, encode(part)) for part in parts]

    def _segment(self, token_ids: list[int]) -> Segment:
        source_ids = (*token_ids, self._tokenizer.eos_id)
        max_target_tokens = self._options.max_target_tokens or min(
            max(len(source_ids) + EXTRA_TARGET_TOKENS, self._search.min_target_tokens + 1),
            self._model.max_target_tokens,
        )
        return Segment(source_ids=source_ids, search=replace(self._search, max_target_tokens=max_target_tokens))

    def _translation(self, plan: TextPlan, results: Sequence[SegmentResult]) -> Translation:
        if not plan.parts:
            return Translation(hypotheses=(TextHypothesis(text=plan.text, score=0.0),), sentences=())
        rows = [result.hypotheses for result in results]
        chosen = [
            [row[index] for row, index in zip(rows, indices, strict=True)]
            for indices in best_combinations(rows, count=self._search.num_hypotheses)
        ]
        decode = cache(self._target)  # most combinations share most of their hypotheses
        joined = [
            join(plan.text, plan.spans, [decode(one.token_ids) for one in hypotheses], filler=self._filler)
            for hypotheses in chosen
        ]
        sentences = tuple(_alignments(plan, chosen[0], joined[0].spans))
        return Translation(
            hypotheses=tuple(map(self._text_hypothesis, joined, chosen)),
            sentences=sentences,
            warnings=tuple(self._warnings(plan, sentences)),
        )

    def _target(self, token_ids: tuple[int, ...]) -> str:
        return self._tokenizer.decode(token_ids).strip()  # the white space around it is the source's

    def _text_hypothesis(self, joined: Joined, hypotheses: Sequence[Hypothesis]) -> TextHypothesis:
        token_ids = [token_id for hypothesis in hypotheses for token_id in hypothesis.token_ids]
        log_probs = (log_prob for hypothesis in hypotheses for log_prob in hypothesis.token_log_probs)
        return TextHypothesis(
            text=joined.text,
            score=sum(hypothesis.score for hypothesis in hypotheses),
            tokens=tuple(self._tokenizer.pieces(token_ids)) if self._options.return_tokens else (),
            token_log_probs=tuple(log_probs) if self._options.return_scores else (),
        )

    def _warnings(self, plan: TextPlan, sentences: Sequence[SentenceAlignment]) -> Iterator[TranslationWarning]:
        for index, (sentence, parts) in enumerate(zip(sentences, plan.sentences(), strict=True)):
            if sentence.is_split:
                message = (
                    f"decoded in {len(parts)} parts: {sentence.num_source_tokens} source tokens, "
                    f"the model takes {self._model.max_source_tokens}"
                )
                yield TranslationWarning(kind=WarningKind.SOURCE_SPLIT, message=message, sentence_index=index)
            if sentence.is_truncated:
                limit = max(part.segment.search.max_target_tokens for part in parts)
                message = f"cut off at the limit of {limit} target tokens"
                yield TranslationWarning(kind=WarningKind.TRUNCATED, message=message, sentence_index=index)


def best_combinations(hypotheses: Sequence[Sequence[Hypothesis]], *, count: int) -> list[tuple[int, ...]]:
    """Return the best combinations of one hypothesis per row, each as indices into the rows; best first.

    As within a sentence, finished before unfinished decides first: fewer unfinished hypotheses, then the larger sum
    of scores, then the one that is better in an earlier row. Keeping the best `count` after each row is exact: what
    is worse than that many others stays so whatever is added to all of them.

    Args:
        hypotheses: each row best first, not empty.
        count: at least 1; fewer are returned if there are no more.
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
    plan: TextPlan, hypotheses: Sequence[Hypothesis], targets: Sequence[Span]
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
        )
