"""One long text, sentence by sentence: each goes out in order, as soon as it and all before it are finished.

Only a window of the document is split, tokenized, queued or kept at a time. Whoever reads the sentences sets the pace:
while nobody asks for the next one, nothing new is queued.
"""

import asyncio
import concurrent.futures
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from service.datatypes import (
    Segment,
    SegmentResult,
    SentenceAlignment,
    Span,
    TextHypothesis,
    TranslatedSentence,
    Translation,
    TranslationOptions,
    TranslationRequest,
)
from service.document_window import DocumentWindow, PieceInWork, Sleep, WindowLimits, segment_cost
from service.telemetry.metrics import Metrics
from service.telemetry.request_facts import current_facts
from service.telemetry.tracing import current_trace, trace_segments
from service.text.alignment import shifted
from service.text.limits import (
    TranslationDefaults,
    TranslationLimits,
    check_attention,
    check_document,
    max_attention_tokens,
)
from service.text.options import new_seed
from service.text.pipeline import TextPipeline
from service.text.plan import DocumentPiece
from service.translator import (
    ModelSource,
    ServingModel,
    TokensTaken,
    longest_timings,
    prepare,
    unlimited_tokens,
)

_INLINE_TOKENS = 1000
"""Source tokens of a sentence times its hypotheses; more are put together in a thread of their own."""


class DocumentTranslator:
    """Translates documents; it keeps nothing between them, so any number may be under way at once."""

    def __init__(
        self,
        models: ModelSource,
        *,
        metrics: Metrics,
        limits: TranslationLimits | None = None,
        defaults: TranslationDefaults | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw_seed: Callable[[], int] = new_seed,
        sleep: Sleep = asyncio.sleep,
        tokens_taken: TokensTaken = unlimited_tokens,
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._limits = limits or TranslationLimits()
        self._defaults = defaults or TranslationDefaults()
        self._clock = clock
        self._draw_seed = draw_seed
        self._sleep = sleep
        self._tokens_taken = tokens_taken

    async def translate(
        self, request: TranslationRequest, *, deadline_s: float | None, caller: str = ""
    ) -> AsyncGenerator[TranslatedSentence, None]:
        """Yield the sentences of a document in order; closing the generator cancels what is under way.

        Args:
            request: with one text, the document; its options are checked here.
            deadline_s: on the clock; None: never given up.
            caller: name of who asks, for fairness between callers.

        Raises:
            RequestError: if the caller must change the request; names the field.
            OverloadedError: if the queue has not even room for the first segment.
            RateLimitedError: if the caller has used up its source tokens for now; later on, the document waits.
            DrainingError: if the server is about to stop.
            DeadlineExceededError: if the deadline passes first.
            EngineError: if a sentence could not be decoded.
        """
        began_s = self._clock()
        check_document(request.texts[0], self._limits)
        current_facts().add_texts(request.texts)
        model, pipeline = prepare(request, models=self._models, defaults=self._defaults, draw_seed=self._draw_seed)
        window = self._window(request, model, pipeline, deadline_s=deadline_s, caller=caller)
        document = _TranslatedDocument(model)
        try:
            while in_work := await window.next_finished():
                sentence = document.sentence(in_work, *await self._assembled(pipeline, in_work))
                if document.num_sentences == 1:
                    self._metrics.first_sentence_seconds.observe(self._clock() - began_s, current_trace().exemplar)
                self._record(in_work, sentence)
                yield sentence
        finally:
            window.cancel()
            self._metrics.text_seconds.observe(document.text_s, current_trace().exemplar)

    def _window(
        self,
        request: TranslationRequest,
        model: ServingModel,
        pipeline: TextPipeline,
        *,
        deadline_s: float | None,
        caller: str,
    ) -> DocumentWindow:
        def submit(segments: Sequence[Segment]) -> "Sequence[concurrent.futures.Future[SegmentResult]]":
            with self._tokens_taken(caller, sum(len(segment.source_ids) for segment in segments)):
                return model.scheduler.submit(segments, deadline_s=deadline_s, priority=request.priority, caller=caller)

        limits = WindowLimits(
            max_segments=self._limits.document_window_segments, max_cost=max_attention_tokens(request.options)
        )
        pieces = _checked(pipeline.pieces(), request.options)
        return DocumentWindow(
            pieces, submit, limits=limits, deadline_s=deadline_s, clock=self._clock, sleep=self._sleep
        )

    async def _assembled(
        self, pipeline: TextPipeline, in_work: PieceInWork
    ) -> tuple[Translation | None, Sequence[SegmentResult], float]:
        """Return the translation of a piece, what it is made of, and the time it took."""
        results = in_work.results()
        assemble = partial(pipeline.assemble_piece, in_work.piece, results)
        began_s = self._clock()
        is_long = sum(map(segment_cost, in_work.segments)) > _INLINE_TOKENS
        translation = await asyncio.to_thread(assemble) if is_long else assemble()
        return translation, results, self._clock() - began_s

    def _record(self, in_work: PieceInWork, sentence: TranslatedSentence) -> None:
        for warning in sentence.warnings:
            self._metrics.warnings.labels(warning.kind.value).inc()
        current_facts().add_sentence(sentence)
        trace_segments(
            current_trace(),
            submitted_s=in_work.submitted_s,
            segments=in_work.segments,
            results=in_work.results(),
        )


class _TranslatedDocument:
    """What has become of a document so far: counts its characters, so that each sentence knows its place."""

    def __init__(self, model: ServingModel) -> None:
        self._model = model
        self._length = 0
        self.num_sentences = 0
        self.text_s = 0.0

    def sentence(
        self, in_work: PieceInWork, translation: Translation | None, results: Sequence[SegmentResult], text_s: float
    ) -> TranslatedSentence:
        """Return the next sentence, and count it."""
        piece = in_work.piece
        target = translation.hypotheses[0].text if translation else ""
        target_start = self._length + len(piece.before)
        timings = longest_timings(results, text_s=in_work.text_s + text_s)
        sentence = TranslatedSentence(
            text=piece.before + target + piece.after,
            hypotheses=tuple(_moved(one, piece.start) for one in translation.hypotheses) if translation else (),
            sentence=(
                _placed(translation.sentences[0], source_by=piece.start, target_by=target_start)
                if translation
                else None
            ),
            warnings=translation.warnings if translation else (),
            model_name=self._model.name,
            model_version=self._model.version,
            timings=timings,
        )
        self._length += len(sentence.text)
        self.num_sentences += 1
        self.text_s += timings.text_s
        return sentence


def _checked(pieces: Iterator[DocumentPiece], options: TranslationOptions) -> Iterator[DocumentPiece]:
    """Refuse a sentence with more attention than an answer should hold."""
    for piece in pieces:
        check_attention(options, piece.segments, field="text")
        yield piece


def _moved(hypothesis: TextHypothesis, source_by: int) -> TextHypothesis:
    """Return a hypothesis of a sentence whose links begin in the document; their targets stay in its own text."""
    return replace(hypothesis, alignment=tuple(shifted(hypothesis.alignment, source_by=source_by, target_by=0)))


def _placed(sentence: SentenceAlignment, *, source_by: int, target_by: int) -> SentenceAlignment:
    """Return where a sentence is in both documents."""
    return replace(sentence, source=_span(sentence.source, source_by), target=_span(sentence.target, target_by))


def _span(span: Span, by: int) -> Span:
    return Span(start=span.start + by, end=span.end + by)
