"""Requests and documents, from text to text: split → tokenize → queue → detokenize → join.

The sentences of all texts of a request are queued at once, those of a document a window at a time. Here only text is
worked on, in a thread of its own when there is much of it, so that the event loop stays free.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from dragoman_service.datatypes import (
    DetectedLanguage,
    Segment,
    SegmentResult,
    StageTimings,
    TranslatedSentence,
    TranslationResult,
    TranslationWarning,
)
from dragoman_service.errors import GlossaryNotFoundError, InvalidFieldError, RetryableError, UnsupportedFieldError
from dragoman_service.models.model import Futures, SegmentQueue
from dragoman_service.observability.metrics import Metrics
from dragoman_service.observability.tracing import trace_segments
from dragoman_service.request import RequestContext, TextFormat, TranslationRequest
from dragoman_service.text.documents import TextPlan, TranslatedDocument
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.placeholders.patterns import TermMatcher
from dragoman_service.text.planning import TextModel
from dragoman_service.translation.document_window import DocumentWindow, ended, results_of, segment_cost
from dragoman_service.translation.language_detection import (
    Candidates,
    LanguageDetector,
    common_language,
    reported,
    source_languages,
)
from dragoman_service.translation.options import (
    TextBudget,
    TranslationDefaults,
    TranslationLimits,
    check_request,
    fit_to_model,
    max_attention_tokens,
    new_seed,
    num_source_tokens,
)
from dragoman_service.translation.pivot import LanguageSource, PivotRoute, routed, sources

_Result = TypeVar("_Result")

_INLINE_CHARACTERS = 2000
"""Texts of a request that cost up to this are worked on in the event loop: a few milliseconds at most."""

_INLINE_TOKENS = 1000
"""Likewise the source tokens of a sentence of a document, times its hypotheses, when they are put together."""

_PIECE_TOKENS = 4
"""What a tag or placeholder counts there, in source tokens."""

_NOT_INSTALLED = "languages cannot be detected here: pip install 'dragoman[detect]'"

_CHARACTERS_PER_TOKEN = 8
"""What a long text costs before it is looked at; ordinary text has more tokens, so it costs no more at last."""


class Quota(Protocol):
    """What callers may ask for in a time."""

    async def take_tokens(
        self, caller: str, num_tokens: int, *, work: Callable[[], int] | None = None
    ) -> Callable[[], None]:
        """Count source tokens and work tokens of a caller; RateLimitedError, and nothing counted, if too many.

        `work` tells how many work tokens, if any; it is called only for a caller whose work is limited.

        Returns:
            What puts them back, to be called at most once, if they were counted for nothing.
        """


class TextThreads:
    """Runs text work in threads of the event loop's pool: of each caller one piece at a time, the others wait.

    So callers with much text share the pool, and one whose calls are cancelled and repeated gains nothing.
    """

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, caller: str, work: Callable[[], _Result], *, cancel: Callable[[], None]) -> _Result:
        """Return what the work returns; if the awaiting task is cancelled, `cancel` tells the work to end."""
        turn = self._turns.setdefault(caller, asyncio.Lock())
        await turn.acquire()
        running = asyncio.ensure_future(asyncio.to_thread(work))

        def end(_: object) -> None:
            turn.release()
            if not running.cancelled():
                running.exception()  # looked at, whether or not anybody waits for it

        running.add_done_callback(end)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancel()
            raise


class Run(Protocol):
    """Takes a step of text work in another thread."""

    def __call__(self, work: Callable[[], _Result], /) -> Awaitable[_Result]:
        """Return what the work returns."""


class ServingModel(TextModel, Protocol):
    """A model that answers requests."""

    @property
    def name(self) -> str:
        """Name, without version."""

    @property
    def version(self) -> str:
        """Version."""

    @property
    def has_attention(self) -> bool:
        """Whether it can tell its cross-attention."""

    @property
    def engine(self) -> SegmentQueue:
        """Its queue."""


class ModelSource(LanguageSource, Protocol):
    """Knows which model answers."""

    def resolve(self, model: str, source_language: str, target_language: str) -> ServingModel:
        """Return the model that answers; RequestError if there is none."""


class GlossarySource(Protocol):
    """Knows the named glossaries."""

    def matcher(self, name: str, source_language: str, target_language: str) -> TermMatcher:
        """Return what finds the terms of a language pair; RequestError if there is no such glossary or pair."""


class Translator:
    """Translates requests and documents; it keeps nothing between them, so any number may be under way at once."""

    def __init__(
        self,
        models: ModelSource,
        *,
        metrics: Metrics,
        limits: TranslationLimits | None = None,
        defaults: TranslationDefaults | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw_seed: Callable[[], int] = new_seed,
        quota: Quota | None = None,
        glossaries: GlossarySource | None = None,
        detector: LanguageDetector | None = None,
    ) -> None:
        self._detector = detector or LanguageDetector()
        self._models = models
        self._glossaries = glossaries
        self._metrics = metrics
        self._limits = limits or TranslationLimits()
        self._defaults = defaults or TranslationDefaults()
        self._clock = clock
        self._sleep = sleep
        self._draw_seed = draw_seed
        self._quota = quota
        self._threads = TextThreads()

    async def translate(self, request: TranslationRequest, context: RequestContext) -> TranslationResult:
        """Translate all texts of a request, or none: the first sentence that fails drops the others.

        If the awaiting task is cancelled, so are the segments it waits for.

        Raises:
            RequestError: if the caller must change the request; names the field.
            RateLimitedError: if the caller has used up its source tokens for now.
            OverloadedError: if the queue has no room for all of it.
            DrainingError: if the server is about to stop.
            DeadlineExceededError: if the deadline passes first.
            EngineError: if a sentence could not be decoded.
        """
        context.access_record.add_texts(request.texts)
        detected = None
        if not request.source_language:
            request, detected = await self._with_source(request, context)
        route = routed(self._models, request) if request.pivot_languages else None
        result = await (self._translated_through(route, context) if route else self._translated(request, context))
        if detected:
            result = replace(result, detected_language=detected)
        context.access_record.add_result(result)
        return result

    async def _translated_through(self, route: PivotRoute, context: RequestContext) -> TranslationResult:
        """Translate twice; both have the deadline of the request."""
        check_request(route.request, self._limits, self._defaults, draw_seed=self._draw_seed)  # as early as others
        first = await self._translated(route.first, context)
        try:
            second = await self._translated(route.second(first), context)
        except InvalidFieldError as error:
            raise route.explained(error) from error
        return route.joined(first, second)

    async def _translated(self, request: TranslationRequest, context: RequestContext) -> TranslationResult:
        """Translate texts of a language directly."""
        budget = TextBudget(request.options, self._limits, deadline_s=context.deadline_s, clock=self._clock)
        model, pipeline = self._prepare(request, context, budget)
        num_characters = sum(map(len, request.texts))
        model.engine.reject_early(num_characters, pipeline.search, context)
        run = partial(self._threads.run, context.caller, cancel=budget.cancel)
        in_thread = run if pipeline.cost_characters > _INLINE_CHARACTERS else None
        advance = num_characters // _CHARACTERS_PER_TOKEN if in_thread else 0
        give_back = await self._take(context, advance)
        plans, began_s, split_s = await self._timed(pipeline.plan, in_thread)
        give_back()  # but not if the texts exceed a limit or the caller has left
        context.trace.add("text.split", began_s=began_s, ended_s=began_s + split_s)
        segments = [part.segment for plan in plans for part in plan.parts]
        submitted_s = self._clock()
        results = await _answers(await self._submit(model, segments, context, num_characters))
        results = await self._redecode(model, pipeline, plans, results, context, run=in_thread)
        trace_segments(context.trace, submitted_s=submitted_s, segments=segments, results=results)
        assemble = partial(pipeline.assemble, plans, results)
        translations, began_s, join_s = await self._timed(assemble, in_thread)
        context.trace.add("text.join", began_s=began_s, ended_s=began_s + join_s)
        self._metrics.text_seconds.observe(split_s + join_s, context.trace.exemplar)
        for translation in translations:
            self._count(translation.warnings)
        return TranslationResult(
            translations=translations,
            model_name=model.name,
            model_version=model.version,
            timings=_longest_timings(results, text_s=split_s + join_s),
            num_source_tokens=num_source_tokens(segments),
            num_target_tokens=sum(each.num_target_tokens for one in translations for each in one.sentences),
        )

    async def translate_document(
        self, request: TranslationRequest, context: RequestContext
    ) -> AsyncGenerator[TranslatedSentence, None]:
        """Yield the sentences of the only text in order; closing the generator cancels what is under way.

        Raises:
            DragomanError: as `translate`. A queue without room, or a caller's limit, rejects only the first segment;
                later on, the document waits.
        """
        began_s = self._clock()
        context.access_record.add_texts(request.texts)
        detected = None
        if not request.source_language:
            request, detected = await self._with_source(request, context, is_document=True)
        budget = TextBudget(
            request.options, self._limits, is_document=True, deadline_s=context.deadline_s, clock=self._clock
        )
        run = partial(self._threads.run, context.caller, cancel=budget.cancel)
        model, pipeline = self._prepare(request, context, budget, is_document=True)
        window = DocumentWindow(
            pipeline.pieces(),
            partial(self._submit, model, context=context),
            run,
            max_segments=self._limits.document_window_segments,
            max_cost=max_attention_tokens(request.options),
            deadline_s=context.deadline_s,
            clock=self._clock,
            sleep=self._sleep,
        )
        document = TranslatedDocument(model_name=model.name, model_version=model.version)
        try:
            while in_work := await window.next_finished():
                results = results_of(in_work.answers)
                cost = sum(map(segment_cost, in_work.segments)) + _PIECE_TOKENS * in_work.piece.num_block_pieces
                in_thread = run if cost > _INLINE_TOKENS else None
                if (plan := in_work.piece.plan) is not None:
                    results = await self._redecode(model, pipeline, [plan], results, context, run=in_thread)
                assemble = partial(pipeline.assemble_piece, in_work.piece, results)
                translation, _, assembly_s = await self._timed(assemble, in_thread)
                timings = _longest_timings(results, text_s=in_work.text_s + assembly_s)
                sentence = document.next_sentence(in_work.piece, translation, timings)
                if document.num_sentences == 1:
                    self._metrics.first_sentence_seconds.observe(self._clock() - began_s, context.trace.exemplar)
                self._count(sentence.warnings)
                context.access_record.add_sentence(sentence)
                trace_segments(
                    context.trace, submitted_s=in_work.submitted_s, segments=in_work.segments, results=results
                )
                yield replace(sentence, detected_language=detected) if detected else sentence
        finally:
            budget.cancel()
            window.cancel()
            self._metrics.text_seconds.observe(document.text_s, context.trace.exemplar)

    async def detect_languages(
        self, texts: Sequence[str], context: RequestContext, *, model: str = "", target_language: str = ""
    ) -> list[tuple[DetectedLanguage, ...]]:
        """Return the languages that each text may be in, the likeliest first; none for a text without letters.

        Args:
            texts: only the beginning of each is ranked.
            context: context of the call.
            model: as in a request; empty: any.
            target_language: languages that are translated into this language count as served; empty: into any.

        Raises:
            UnsupportedFieldError: if what detects languages is not installed.
            RequestError: if there is no such model, or nothing is translated into the target language.
        """
        if not self._detector.is_available:
            raise UnsupportedFieldError("DetectLanguage", f"is not implemented by this server: {_NOT_INSTALLED}")
        served = self._models.source_languages(model, target_language)
        return list(map(reported, await self._detect(texts, served, context)))

    async def source_languages(
        self, request: TranslationRequest, context: RequestContext, *, is_document: bool = False
    ) -> list[DetectedLanguage | None]:
        """Return the language of each text of a request without a source language; None for a text without letters.

        A text may be in the target language although that is not served.

        Raises:
            InvalidFieldError: if the request is invalid, or the language of a text is ambiguous or not served.
            RequestError: if there is no such model, or nothing is translated into the target language.
        """
        candidates, served = await self._candidates(request, context, is_document=is_document)
        return source_languages(candidates, served, target_language=request.target_language)

    async def _detect(
        self, texts: Sequence[str], served: Collection[str], context: RequestContext, *, is_markup: bool = False
    ) -> list[Candidates]:
        is_left = threading.Event()

        def detect() -> list[Candidates]:
            return [self._detector.detect(text, served, is_markup=is_markup) for text in texts if not is_left.is_set()]

        return await self._threads.run(context.caller, detect, cancel=is_left.set)

    async def _candidates(
        self, request: TranslationRequest, context: RequestContext, *, is_document: bool
    ) -> tuple[list[Candidates], Collection[str]]:
        """Return the languages that each text may be in, and those that are served."""
        check_request(request, self._limits, self._defaults, draw_seed=self._draw_seed, is_document=is_document)
        if not self._detector.is_available:
            raise InvalidFieldError("source_language", f"absent, and {_NOT_INSTALLED}", "given")
        served = sources(self._models, request)
        is_markup = request.options.format is not TextFormat.PLAIN
        began_s = self._clock()
        candidates = await self._detect(request.texts, served, context, is_markup=is_markup)
        context.trace.add("text.detect", began_s=began_s, ended_s=self._clock())
        return candidates, served

    async def _with_source(
        self, request: TranslationRequest, context: RequestContext, *, is_document: bool = False
    ) -> tuple[TranslationRequest, DetectedLanguage]:
        """Return a request with the language of its texts, which must be the same, and that language."""
        candidates, served = await self._candidates(request, context, is_document=is_document)
        languages = source_languages(candidates, served)
        detected = common_language(languages) or DetectedLanguage(language=min(served), confidence=0.0)
        unchanged = frozenset(index for index, language in enumerate(languages) if language is None)
        return replace(request, source_language=detected.language, unchanged_texts=unchanged), detected

    def _prepare(
        self, request: TranslationRequest, context: RequestContext, budget: TextBudget, *, is_document: bool = False
    ) -> tuple[ServingModel, TextPipeline]:
        """Check all that can be checked before any text is looked at; choose the model."""
        search = check_request(
            request, self._limits, self._defaults, draw_seed=self._draw_seed, is_document=is_document
        )
        model = self._models.resolve(request.model, request.source_language, request.target_language)
        name = context.access_record.model = f"{model.name}/{model.version}"
        search = fit_to_model(search, request.options, model, name=name, has_attention=model.has_attention)
        pipeline = TextPipeline(
            request,
            model=model,
            search=search,
            budget=budget,
            has_attention=model.has_attention,
            glossary=self._glossary(request) if request.options.glossary else None,
        )
        return model, pipeline

    def _glossary(self, request: TranslationRequest) -> TermMatcher:
        name = request.options.glossary
        if self._glossaries is None:
            raise GlossaryNotFoundError("options.glossary", name, ())
        return self._glossaries.matcher(name, request.source_language, request.target_language)

    async def _redecode(
        self,
        model: ServingModel,
        pipeline: TextPipeline,
        plans: Sequence[TextPlan],
        results: list[SegmentResult],
        context: RequestContext,
        *,
        run: Run | None,
    ) -> list[SegmentResult]:
        """Search once more for translations that lost a protected span; the first ones stay if there is no room."""
        if all(plan.is_plain for plan in plans):
            return results
        second, _, _ = await self._timed(partial(pipeline.redecode_requests, plans, results), run)
        if not second:
            return results
        try:
            answers = await _answers(await self._submit(model, list(second.values()), context))
        except RetryableError:
            return results
        found = dict(zip(second, answers, strict=True))
        chosen, _, _ = await self._timed(partial(pipeline.with_second_results, plans, results, found), run)
        return chosen

    async def _submit(
        self, model: ServingModel, segments: Sequence[Segment], context: RequestContext, num_characters: int = 0
    ) -> Futures:
        """Queue all segments or none, and charge their tokens and work to the caller."""
        if not segments:
            return ()
        work = partial(model.engine.expected_work, segments)
        give_back = await self._take(context, num_source_tokens(segments), work)
        try:
            return model.engine.submit(segments, context, num_characters=num_characters)
        except BaseException:
            give_back()
            raise

    async def _take(
        self, context: RequestContext, num_tokens: int, work: Callable[[], int] | None = None
    ) -> Callable[[], None]:
        if self._quota is None or not num_tokens:
            return _nothing
        return await self._quota.take_tokens(context.caller, num_tokens, work=work)

    async def _timed(self, step: Callable[[], _Result], run: Run | None) -> tuple[_Result, float, float]:
        """Take a step of text work, by `run` if it is long; return its result, begin and duration."""
        began_s = self._clock()
        result = await run(step) if run else step()
        return result, began_s, self._clock() - began_s

    def _count(self, warnings: Iterable[TranslationWarning]) -> None:
        for warning in warnings:
            self._metrics.warnings.labels(warning.kind.value).inc()


async def _answers(futures: Futures) -> list[SegmentResult]:
    """Wait for all results; if one fails, or the waiting task is cancelled, cancel the rest."""
    try:
        await ended(futures)
    finally:
        for future in futures:
            future.cancel()
    return results_of(futures)


def _nothing() -> None:
    """Give back what was never taken."""


def _longest_timings(results: Iterable[SegmentResult], *, text_s: float) -> StageTimings:
    """Return the longest stages of any of the results, and the text work of all."""
    timings = [result.timings for result in results]
    return StageTimings(
        queue_s=max((timing.queue_s for timing in timings), default=0.0),
        encode_s=max((timing.encode_s for timing in timings), default=0.0),
        decode_s=max((timing.decode_s for timing in timings), default=0.0),
        text_s=text_s,
    )
