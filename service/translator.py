"""One request, from text to text: split → tokenize → queue → detokenize → join.

The sentences of all texts of a request are queued at once and decoded by whoever runs the batches; here only text is
worked on, in a thread of its own when there is much of it, so that the event loop stays free.
"""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from service.bundle import Manifest
from service.datatypes import (
    Priority,
    Segment,
    SegmentResult,
    StageTimings,
    Translation,
    TranslationRequest,
    TranslationResult,
)
from service.errors import EngineError
from service.telemetry.metrics import Metrics
from service.text.limits import (
    TranslationDefaults,
    TranslationLimits,
    check_attention,
    check_prefixes,
    check_segments,
    check_texts,
)
from service.text.options import (
    check_attention_known,
    check_target_limit,
    new_seed,
    search_config,
    suppressed_ids,
    tells_attention,
)
from service.text.pipeline import TextModel, TextPipeline

_Result = TypeVar("_Result")

_INLINE_CHARACTERS = 2000
"""Texts of a request that cost up to this are worked on in the event loop: a few milliseconds at most."""


class SegmentQueue(Protocol):
    """Where segments wait to be decoded."""

    def submit(
        self, segments: Sequence[Segment], *, deadline_s: float | None, priority: Priority
    ) -> Sequence[concurrent.futures.Future[SegmentResult]]:
        """Admit all segments or none; return one future each, in order. A cancelled future frees its place."""


class ServingModel(TextModel, Protocol):
    """A model that answers requests."""

    @property
    def name(self) -> str:
        """Name, without version."""

    @property
    def version(self) -> str:
        """Version."""

    @property
    def manifest(self) -> Manifest:
        """Of its bundle."""

    @property
    def precision(self) -> str:
        """Which of the bundle's graphs it runs."""

    @property
    def scheduler(self) -> SegmentQueue:
        """Its queue."""


class ModelSource(Protocol):
    """Knows which model answers."""

    def resolve(self, model: str, source_language: str, target_language: str) -> ServingModel:
        """Return the model that answers; RequestError if there is none."""


class Translator:
    """Translates requests; it keeps nothing between them, so any number may be under way at once."""

    def __init__(
        self,
        models: ModelSource,
        *,
        metrics: Metrics,
        limits: TranslationLimits | None = None,
        defaults: TranslationDefaults | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw_seed: Callable[[], int] = new_seed,
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._limits = limits or TranslationLimits()
        self._defaults = defaults or TranslationDefaults()
        self._clock = clock
        self._draw_seed = draw_seed

    async def translate(self, request: TranslationRequest, *, deadline_s: float | None) -> TranslationResult:
        """Translate all texts of a request, or none: the first sentence that fails drops the others.

        If the awaiting task is cancelled, so are the segments it waits for.

        Args:
            request: its options and texts are checked here.
            deadline_s: on the monotonic clock; None: never given up.

        Raises:
            RequestError: if the caller must change the request; names the field.
            OverloadedError: if the queue has no room for all of it.
            DrainingError: if the server is about to stop.
            DeadlineExceededError: if the deadline passes first.
            EngineError: if a sentence could not be decoded.
        """
        model, pipeline = self._pipeline(request)
        plans, split_s = await self._timed(pipeline, pipeline.plan)
        segments = [part.segment for plan in plans for part in plan.parts]
        check_segments(segments, self._limits)
        check_attention(request.options, segments)
        futures = model.scheduler.submit(segments, deadline_s=deadline_s, priority=request.priority) if segments else ()
        results = await _answers(futures)
        translations, join_s = await self._timed(pipeline, lambda: pipeline.assemble(plans, results))
        self._record(translations, text_s=split_s + join_s)
        return TranslationResult(
            translations=translations,
            model_name=model.name,
            model_version=model.version,
            timings=_longest(results, text_s=split_s + join_s),
            num_source_tokens=sum(len(segment.source_ids) for segment in segments),
            num_target_tokens=sum(len(result.hypotheses[0].token_ids) for result in results),
        )

    def _pipeline(self, request: TranslationRequest) -> tuple[ServingModel, TextPipeline]:
        """Check what can be checked before any text is looked at; choose the model."""
        options = request.options
        check_texts(request.texts, self._limits)
        check_prefixes(request)
        search = search_config(options, self._defaults, draw_seed=self._draw_seed)
        model = self._models.resolve(request.model, request.source_language, request.target_language)
        name = f"{model.name}/{model.version}"
        check_target_limit(options, limit=model.max_target_tokens, model=name)
        if not tells_attention(model.manifest, model.precision):
            check_attention_known(options)
        suppressed = suppressed_ids(options.suppressed_tokens, token_id=model.tokenizer.token_id, model=name)
        return model, TextPipeline(request, model=model, search=replace(search, suppressed_ids=suppressed))

    async def _timed(self, pipeline: TextPipeline, step: Callable[[], _Result]) -> tuple[_Result, float]:
        """Run a step of text work, in another thread if it is much; return its result and duration."""
        started_s = self._clock()
        result = await asyncio.to_thread(step) if pipeline.cost_characters > _INLINE_CHARACTERS else step()
        return result, self._clock() - started_s

    def _record(self, translations: Sequence[Translation], *, text_s: float) -> None:
        self._metrics.text_seconds.observe(text_s)
        for translation in translations:
            for warning in translation.warnings:
                self._metrics.warnings.labels(warning.kind.value).inc()


async def _answers(futures: Sequence["concurrent.futures.Future[SegmentResult]"]) -> list[SegmentResult]:
    """Wait for all results; if one fails, or the waiting task is cancelled, cancel the rest."""
    if not futures:
        return []
    answers = [asyncio.wrap_future(future) for future in futures]
    for answer in answers:
        answer.add_done_callback(_retrieve)
    try:
        await asyncio.wait(answers, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for future in futures:
            future.cancel()
    for error in map(_retrieve, answers):
        if error is not None:
            raise error
    if any(answer.cancelled() for answer in answers):  # not by this task's caller, or it would not be here
        raise EngineError("a segment was cancelled unanswered")
    return [answer.result() for answer in answers]


def _retrieve(answer: "asyncio.Future[SegmentResult]") -> BaseException | None:
    """Return the error, if any; asyncio logs those that nobody looked at, here all but the first of a batch."""
    return answer.exception() if answer.done() and not answer.cancelled() else None


def _longest(results: Iterable[SegmentResult], *, text_s: float) -> StageTimings:
    timings = [result.timings for result in results]
    return StageTimings(
        queue_s=max((timing.queue_s for timing in timings), default=0.0),
        encode_s=max((timing.encode_s for timing in timings), default=0.0),
        decode_s=max((timing.decode_s for timing in timings), default=0.0),
        text_s=text_s,
    )
