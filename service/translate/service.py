"""One request, from text to text: split → tokenize → queue → detokenize → join.

The sentences of all texts of a request are queued at once and decoded by whoever runs the batches; here only text is
worked on, in a thread of its own when there is much of it, so that the event loop stays free.
"""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol, TypeVar

from service.bundle import Manifest
from service.datatypes import (
    Priority,
    SearchConfig,
    Segment,
    SegmentResult,
    StageTimings,
    Translation,
    TranslationRequest,
    TranslationResult,
)
from service.errors import EngineError
from service.telemetry.access_record import current_record
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import current_trace, trace_segments
from service.text.pipeline import TextModel, TextPipeline
from service.translate.options import (
    TranslationDefaults,
    TranslationLimits,
    check_attention,
    check_attention_known,
    check_prefixes,
    check_segments,
    check_target_limit,
    check_texts,
    new_seed,
    search_config,
    suppressed_ids,
    tells_attention,
)

_Result = TypeVar("_Result")

_INLINE_CHARACTERS = 2000
"""Texts of a request that cost up to this are worked on in the event loop: a few milliseconds at most."""


class TokensTaken(Protocol):
    """Keeps account of what callers may ask for."""

    def __call__(self, caller: str, num_tokens: int, /) -> AbstractContextManager[None]:
        """Count source tokens, but not if what they are for fails inside; RateLimitedError if they are too many."""


def unlimited_tokens(caller: str, num_tokens: int) -> AbstractContextManager[None]:  # noqa: ARG001
    """Keep no account."""
    return nullcontext()


class SegmentQueue(Protocol):
    """Where segments wait to be decoded."""

    def refuse_early(
        self, num_characters: int, search: SearchConfig, *, deadline_s: float | None, priority: Priority, caller: str
    ) -> None:
        """Refuse a request of so many characters if there is no point in looking at its texts; else do nothing."""

    def submit(
        self,
        segments: Sequence[Segment],
        *,
        num_characters: int = 0,
        deadline_s: float | None,
        priority: Priority,
        caller: str,
    ) -> Sequence[concurrent.futures.Future[SegmentResult]]:
        """Admit all segments or none; return one future each, in order. A cancelled future frees its place.

        Callers, told apart by name, share the queue fairly. From `num_characters`, of the texts that the segments are
        all of, the queue learns what texts come to.
        """


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
        tokens_taken: TokensTaken = unlimited_tokens,
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._limits = limits or TranslationLimits()
        self._defaults = defaults or TranslationDefaults()
        self._clock = clock
        self._draw_seed = draw_seed
        self._tokens_taken = tokens_taken

    async def translate(
        self, request: TranslationRequest, *, deadline_s: float | None, caller: str = ""
    ) -> TranslationResult:
        """Translate all texts of a request, or none: the first sentence that fails drops the others.

        If the awaiting task is cancelled, so are the segments it waits for.

        Args:
            request: its options and texts are checked here.
            deadline_s: on the monotonic clock; None: never given up.
            caller: name of who asks, for fairness between callers.

        Raises:
            RequestError: if the caller must change the request; names the field.
            RateLimitedError: if the caller has used up its source tokens for now.
            OverloadedError: if the queue has no room for all of it.
            DrainingError: if the server is about to stop.
            DeadlineExceededError: if the deadline passes first.
            EngineError: if a sentence could not be decoded.
        """
        current_record().add_texts(request.texts)
        model, pipeline = self._pipeline(request)
        num_characters = sum(map(len, request.texts))
        model.scheduler.refuse_early(
            num_characters, pipeline.search, deadline_s=deadline_s, priority=request.priority, caller=caller
        )
        plans, split_s = await self._timed("text.split", pipeline, pipeline.plan)
        segments = [part.segment for plan in plans for part in plan.parts]
        check_segments(segments, self._limits)
        check_attention(request.options, segments)
        submitted_s = self._clock()
        with self._tokens_taken(caller, sum(len(segment.source_ids) for segment in segments)):
            futures = (
                model.scheduler.submit(
                    segments,
                    num_characters=num_characters,
                    deadline_s=deadline_s,
                    priority=request.priority,
                    caller=caller,
                )
                if segments
                else ()
            )
        results = await _answers(futures)
        trace_segments(current_trace(), submitted_s=submitted_s, segments=segments, results=results)
        translations, join_s = await self._timed("text.join", pipeline, lambda: pipeline.assemble(plans, results))
        self._record(translations, text_s=split_s + join_s)
        result = TranslationResult(
            translations=translations,
            model_name=model.name,
            model_version=model.version,
            timings=longest_timings(results, text_s=split_s + join_s),
            num_source_tokens=sum(len(segment.source_ids) for segment in segments),
            num_target_tokens=sum(len(result.hypotheses[0].token_ids) for result in results),
        )
        current_record().add_result(result)
        return result

    def _pipeline(self, request: TranslationRequest) -> tuple[ServingModel, TextPipeline]:
        """Check what can be checked before any text is looked at; choose the model."""
        check_texts(request.texts, self._limits)
        return prepare(request, models=self._models, defaults=self._defaults, draw_seed=self._draw_seed)

    async def _timed(self, name: str, pipeline: TextPipeline, step: Callable[[], _Result]) -> tuple[_Result, float]:
        """Run a step of text work, in another thread if it is much; return its result and duration."""
        started_s = self._clock()
        result = await asyncio.to_thread(step) if pipeline.cost_characters > _INLINE_CHARACTERS else step()
        ended_s = self._clock()
        current_trace().add(name, began_s=started_s, ended_s=ended_s)
        return result, ended_s - started_s

    def _record(self, translations: Sequence[Translation], *, text_s: float) -> None:
        self._metrics.text_seconds.observe(text_s, current_trace().exemplar)
        for translation in translations:
            for warning in translation.warnings:
                self._metrics.warnings.labels(warning.kind.value).inc()


def prepare(
    request: TranslationRequest, *, models: ModelSource, defaults: TranslationDefaults, draw_seed: Callable[[], int]
) -> tuple[ServingModel, TextPipeline]:
    """Check the options of a request, and choose its model.

    Args:
        request: whose texts are checked already, as far as they can be before they are looked at.
        models: where to choose.
        defaults: of the server.
        draw_seed: see `search_config`.

    Raises:
        RequestError: if the caller must change the request; names the field.
    """
    options = request.options
    check_prefixes(request)
    search = search_config(options, defaults, draw_seed=draw_seed)
    model = models.resolve(request.model, request.source_language, request.target_language)
    name = current_record().model = f"{model.name}/{model.version}"
    check_target_limit(options, limit=model.max_target_tokens, model=name)
    if not tells_attention(model.manifest, model.precision):
        check_attention_known(options)
    suppressed = suppressed_ids(options.suppressed_tokens, token_id=model.tokenizer.token_id, model=name)
    return model, TextPipeline(request, model=model, search=replace(search, suppressed_tokens=suppressed))


async def _answers(futures: Sequence["concurrent.futures.Future[SegmentResult]"]) -> list[SegmentResult]:
    """Wait for all results; if one fails, or the waiting task is cancelled, cancel the rest."""
    if not futures:
        return []
    answers = [asyncio.wrap_future(future) for future in futures]
    for answer in answers:
        answer.add_done_callback(retrieve_error)
    try:
        await asyncio.wait(answers, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for future in futures:
            future.cancel()
    for error in map(retrieve_error, answers):
        if error is not None:
            raise error
    if any(answer.cancelled() for answer in answers):  # not by this task's caller, or it would not be here
        raise EngineError("a segment was cancelled unanswered")
    return [answer.result() for answer in answers]


def retrieve_error(answer: "asyncio.Future[SegmentResult]") -> BaseException | None:
    """Return the error, if any; asyncio logs those that nobody looked at, here all but the first of a batch."""
    return answer.exception() if answer.done() and not answer.cancelled() else None


def longest_timings(results: Iterable[SegmentResult], *, text_s: float) -> StageTimings:
    """Return the longest stages of any of the results, and the text work of all."""
    timings = [result.timings for result in results]
    return StageTimings(
        queue_s=max((timing.queue_s for timing in timings), default=0.0),
        encode_s=max((timing.encode_s for timing in timings), default=0.0),
        decode_s=max((timing.decode_s for timing in timings), default=0.0),
        text_s=text_s,
    )
