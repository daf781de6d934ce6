"""Translates requests and documents: split, tokenize, queue, detokenize, join.

All sentences of a request are queued at once; those of a document pass through a window. Extensive text work runs in a
thread, so that it does not block the event loop.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from dragoman_service.datatypes import (
    DetectedLanguage,
    Segment,
    SegmentResult,
    StageTimings,
    TextHypothesis,
    TranslatedSentence,
    Translation,
    TranslationResult,
    TranslationWarning,
)
from dragoman_service.errors import (
    DeadlineExceededError,
    DrainingError,
    EngineError,
    InvalidFieldError,
    RetryableError,
)
from dragoman_service.language_tags import is_same_language
from dragoman_service.models.glossaries import GlossaryRepository
from dragoman_service.models.model import LoadedModel
from dragoman_service.models.repository import ModelRepository
from dragoman_service.observability.metrics import Metrics
from dragoman_service.observability.usage import UsageRecord, trace_segments
from dragoman_service.request import RequestContext, TextFormat, TranslationRequest
from dragoman_service.scheduling.scheduler import Futures, wait_for_results
from dragoman_service.text.documents import TranslatedDocument
from dragoman_service.text.pipeline import Outcome, Searches, Steps, TextPipeline, advance, translation_steps
from dragoman_service.text.placeholders.terms import TermMatcher
from dragoman_service.threads import TextThreads
from dragoman_service.translation.document_window import DocumentWindow, PendingSentence
from dragoman_service.translation.language_detection import (
    Candidates,
    LanguageDetector,
    common_language,
    is_word,
    listed_candidates,
    source_languages,
)
from dragoman_service.translation.options import (
    CheckedRequest,
    RequestBudget,
    check_request,
    fit_to_model,
    max_attention_tokens,
    new_seed,
    num_source_tokens,
    segment_cost,
)
from dragoman_service.translation.pivot import (
    PivotRoute,
    find_pivot_route,
    served_source_languages,
    unserved_pair,
)
from dragoman_service.translation.settings import TranslationDefaults, TranslationLimits

# Text work up to these costs runs in the event loop and takes a few milliseconds: characters of a request, and source
# tokens of a sentence of a document times its hypotheses. An inline code costs as much as some tokens.
_INLINE_CHARACTERS = 2000
_INLINE_TOKENS = 1000
_CODE_TOKENS = 4

# A long text is charged before it is split. Ordinary text has more tokens, so this is not more than the final charge.
_CHARACTERS_PER_TOKEN = 8

_Result = TypeVar("_Result")
_Assembled = tuple[Outcome, float]  # with the duration of the text work, in seconds
_Run = Callable[[Callable[[], Any]], Awaitable[Any]]  # runs a step of text work in another thread

TakeTokens = Callable[[str, int, Callable[[], int] | None], Awaitable[Callable[[], None]]]
"""Charges source tokens and decode cost to a caller, both or none; raises RateLimitedError if they are too many.

The decode cost is computed only if it is limited. The result refunds the charge, at most once."""


class Translator:
    """Translates requests and documents. Stateless between calls, so any number may run at once."""

    def __init__(
        self,
        models: ModelRepository,
        glossaries: GlossaryRepository,
        *,
        metrics: Metrics,
        limits: TranslationLimits | None = None,
        defaults: TranslationDefaults | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw_seed: Callable[[], int] = new_seed,
        take_tokens: TakeTokens | None = None,
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
        self._take_tokens = take_tokens
        self._threads = TextThreads()

    async def translate(
        self, request: TranslationRequest, context: RequestContext, usage: UsageRecord | None = None
    ) -> TranslationResult:
        """Translate all texts of a request, or none: the first failed sentence cancels the others.

        Cancelling the awaiting task cancels its segments.

        Raises:
            RequestError: if the request is invalid; names the field.
            RateLimitedError: if the caller has used up its quota.
            OverloadedError: if the queue is full.
            DrainingError: if the server is shutting down.
            DeadlineExceededError: if the deadline passes.
            EngineError: if decoding fails.
        """
        usage = usage or UsageRecord()
        usage.add_texts(request.texts)
        checked, detected, in_target = self._checked(request), None, frozenset[int]()
        if not request.source_language:
            checked, detected, in_target = await self._with_source(checked, context, usage)
        if self._is_same_language(checked.request):
            return replace(_unchanged(checked.request), detected_language=detected)
        route = find_pivot_route(self._models, checked.request) if request.pivot_languages else None
        if route:
            result = await self._translate_by_pivot(route, context, usage)
        else:
            result = await self._translate_directly(checked, context, usage)
        if detected:
            translations = tuple(
                replace(each, is_unchanged=index in in_target) for index, each in enumerate(result.translations)
            )
            result = replace(result, translations=translations, detected_language=detected)
        usage.add_result(result)
        return result

    async def _translate_by_pivot(
        self, route: PivotRoute, context: RequestContext, usage: UsageRecord
    ) -> TranslationResult:
        first = await self._translate_directly(self._checked(route.first), context, usage)
        try:
            second = await self._translate_directly(self._checked(route.second(first)), context, usage)
        except InvalidFieldError as error:
            raise route.explained(error) from error
        return route.joined(first, second)

    async def _translate_directly(
        self, checked: CheckedRequest, context: RequestContext, usage: UsageRecord
    ) -> TranslationResult:
        request = checked.request
        budget = RequestBudget(request.options, self._limits, deadline_s=context.deadline_s, clock=self._clock)
        model, pipeline = self._prepare(checked, usage, budget)
        num_characters = sum(map(len, request.texts))
        model.scheduler.reject_early(num_characters, pipeline.search, context)
        run = partial(self._threads.run, context.caller, cancel=budget.cancel)
        in_thread = run if pipeline.costs_more_than(_INLINE_CHARACTERS) else None
        num_advanced = num_characters // _CHARACTERS_PER_TOKEN if in_thread else 0
        refund = await self._charge(context, num_advanced)
        steps = translation_steps(pipeline)
        state, began_s, split_s = await self._timed(partial(advance, steps), in_thread)
        refund()  # not if the texts exceed a limit or the call is cancelled
        usage.trace.add("text.split", began_s=began_s, ended_s=began_s + split_s)
        segments = state.segments if isinstance(state, Searches) else []
        submitted_s = self._clock()
        outcome, join_s = await self._finish(
            model, steps, state, context, usage, run=in_thread, num_characters=num_characters
        )
        trace_segments(usage.trace, submitted_s=submitted_s, segments=segments, results=outcome.results)
        self._metrics.text_seconds.observe(split_s + join_s, context.exemplar)
        for translation in outcome.translations:
            self._count(translation.warnings)
        sentences = [sentence for translation in outcome.translations for sentence in translation.sentences]
        return TranslationResult(
            translations=outcome.translations,
            model_name=model.name,
            model_version=model.version,
            timings=_longest_timings(outcome.results, text_s=split_s + join_s),
            num_source_tokens=sum(sentence.num_source_tokens for sentence in sentences),
            num_target_tokens=sum(sentence.num_target_tokens for sentence in sentences),
        )

    async def translate_document(
        self, request: TranslationRequest, context: RequestContext, usage: UsageRecord | None = None
    ) -> AsyncGenerator[TranslatedSentence, None]:
        """Yield the sentences of the only text in order. Closing the generator cancels unfinished sentences.

        Raises:
            DragomanError: as `translate`. A full queue or an exceeded quota rejects only the first segment; later, the
                document waits.
        """
        began_s = self._clock()
        usage = usage or UsageRecord()
        usage.add_texts(request.texts)
        checked, detected = self._checked(request, is_document=True), None
        if not request.source_language:
            checked, detected, _ = await self._with_source(checked, context, usage)
        if self._is_same_language(checked.request):
            yield TranslatedSentence(
                text=request.texts[0],
                hypotheses=(),
                sentence=None,
                warnings=(),
                model_name="",
                model_version="",
                timings=StageTimings(),
                detected_language=detected,
                is_unchanged=True,
            )
            return
        budget = RequestBudget(
            request.options, self._limits, is_document=True, deadline_s=context.deadline_s, clock=self._clock
        )
        run = partial(self._threads.run, context.caller, cancel=budget.cancel)
        model, pipeline = self._prepare(checked, usage, budget)

        async def finish(pending: PendingSentence[_Assembled]) -> _Assembled:
            planned, results = pending.planned, await wait_for_results(pending.futures)
            steps = translation_steps(pipeline, [planned.plan] if planned.plan else [])
            state = advance(steps)
            cost = sum(map(segment_cost, pending.segments)) + _CODE_TOKENS * planned.num_codes
            in_thread = run if cost > _INLINE_TOKENS else None
            assembly_s = 0.0
            if isinstance(state, Searches):
                state, _, assembly_s = await self._timed(partial(advance, steps, results), in_thread)
            outcome, later_s = await self._finish(model, steps, state, context, usage, run=in_thread)
            return outcome, assembly_s + later_s

        window = DocumentWindow(
            pipeline.document_sentences(),
            partial(self._submit, model, context=context),
            finish,
            run,
            max_segments=self._limits.document_window_segments,
            max_cost=max_attention_tokens(request.options),
            deadline_s=context.deadline_s,
            clock=self._clock,
            sleep=self._sleep,
        )
        document = TranslatedDocument(model_name=model.name, model_version=model.version)
        targets: list[str] = []  # of Markdown, to compare its marks at the end
        try:
            while finished := await window.next_finished():
                pending, (outcome, assembly_s) = finished
                timings = _longest_timings(outcome.results, text_s=pending.text_s + assembly_s)
                translation = outcome.translations[0] if outcome.translations else None
                sentence = document.next_sentence(pending.planned, translation, timings)
                if pipeline.is_markdown:
                    targets.append(sentence.text)
                    if pending.planned.is_last:
                        added = await run(partial(pipeline.document_warnings, "".join(targets)))
                        sentence = replace(sentence, warnings=sentence.warnings + added)
                if document.num_sentences == 1:
                    self._metrics.first_sentence_seconds.observe(self._clock() - began_s, context.exemplar)
                self._count(sentence.warnings)
                usage.add_sentence(sentence)
                submitted_s, segments = pending.submitted_s, pending.segments
                trace_segments(usage.trace, submitted_s=submitted_s, segments=segments, results=outcome.results)
                yield replace(sentence, detected_language=detected) if detected else sentence
        finally:
            budget.cancel()
            window.cancel()
            self._metrics.text_seconds.observe(document.text_s, context.exemplar)

    async def detect_languages(
        self, texts: Sequence[str], context: RequestContext, *, model: str = "", target_language: str = ""
    ) -> list[tuple[DetectedLanguage, ...]]:
        """Return the candidate languages of each text, the likeliest first; none for a text without letters.

        Languages that the model (empty: any) translates into the target language (empty: any) count as served. Only the
        beginning of each text is ranked.

        Raises:
            RequestError: if the model or the target language is not served.
        """
        served = self._models.source_languages(model, target_language)
        return list(map(listed_candidates, await self._detect(texts, served, context)))

    async def source_languages(
        self, request: TranslationRequest, context: RequestContext, usage: UsageRecord
    ) -> list[DetectedLanguage | None]:
        """Return the language of each text of a request without a source language; None for a text without letters.

        A text may also be in the target language.

        Raises:
            InvalidFieldError: if the request is invalid, or the language of a text is ambiguous or not served.
            RequestError: if the model or the target language is not served.
        """
        return await self._source_languages(self._checked(request).request, context, usage)

    def _is_same_language(self, request: TranslationRequest) -> bool:
        # Whether source and target language are the same, and no model is served for this pair.
        is_same = is_same_language(request.source_language, request.target_language) and not request.pivot_languages
        pair = request.source_language, request.target_language
        return is_same and unserved_pair(self._models, request.model, *pair) is not None

    async def _detect(
        self, texts: Sequence[str], served: Collection[str], context: RequestContext, *, is_markup: bool = False
    ) -> list[Candidates]:
        stopped = threading.Event()

        def detect() -> list[Candidates]:
            return [self._detector.detect(text, served, is_markup=is_markup) for text in texts if not stopped.is_set()]

        return await self._threads.run(context.caller, detect, cancel=stopped.set)

    def _checked(self, request: TranslationRequest, *, is_document: bool = False) -> CheckedRequest:
        return check_request(request, self._limits, self._defaults, draw_seed=self._draw_seed, is_document=is_document)

    async def _source_languages(
        self, request: TranslationRequest, context: RequestContext, usage: UsageRecord
    ) -> list[DetectedLanguage | None]:
        served = served_source_languages(self._models, request)
        target = request.target_language
        is_markup = request.options.format is not TextFormat.PLAIN
        began_s = self._clock()
        candidates = await self._detect(request.texts, {*served, target}, context, is_markup=is_markup)
        usage.trace.add("text.detect", began_s=began_s, ended_s=self._clock())
        words = frozenset(index for index, text in enumerate(request.texts) if is_word(text))
        languages = source_languages(candidates, served, target_language=target, words=words)
        return [language and replace(language, is_served=language.language in served) for language in languages]

    async def _with_source(
        self, checked: CheckedRequest, context: RequestContext, usage: UsageRecord
    ) -> tuple[CheckedRequest, DetectedLanguage, frozenset[int]]:
        # All texts must be in the same language, or in the target language. Also returns the indices of the latter.
        languages = await self._source_languages(checked.request, context, usage)
        translated = [language if language and language.is_served else None for language in languages]
        in_target = frozenset(index for index, language in enumerate(languages) if language and not language.is_served)
        detected = common_language(translated) or common_language(languages)
        if detected is None:
            served = served_source_languages(self._models, checked.request)
            detected = DetectedLanguage(language=min(served), confidence=0.0)
        unchanged = frozenset(index for index, language in enumerate(translated) if language is None)
        return checked.with_languages(detected.language, unchanged_texts=unchanged), detected, in_target

    def _prepare(
        self, checked: CheckedRequest, usage: UsageRecord, budget: RequestBudget
    ) -> tuple[LoadedModel, TextPipeline]:
        # Does every check of the model that does not read the texts.
        request = checked.request
        model = self._models.resolve(request.model, request.source_language, request.target_language)
        name = usage.model = f"{model.name}/{model.version}"
        search = fit_to_model(checked.search, request.options, model, name=name, has_attention=model.has_attention)
        glossary: TermMatcher | None = None
        if request.options.glossary:
            glossary = self._glossaries.matcher(
                request.options.glossary, request.source_language, request.target_language
            )
        has_attention = model.has_attention
        return model, TextPipeline(
            request, model=model, search=search, budget=budget, has_attention=has_attention, glossary=glossary
        )

    async def _finish(
        self,
        model: LoadedModel,
        steps: Steps,
        state: Searches | Outcome,
        context: RequestContext,
        usage: UsageRecord,
        *,
        run: _Run | None,
        num_characters: int = 0,
    ) -> _Assembled:
        # Decodes until the outcome; returns it with the duration of the text work.
        text_s = 0.0
        while isinstance(state, Searches):
            results = await self._search(model, state, context, num_characters)
            state, began_s, duration_s = await self._timed(partial(advance, steps, results), run)
            text_s += duration_s
            usage.trace.add("text.join", began_s=began_s, ended_s=began_s + duration_s)
        if state.num_second:
            num_skipped = state.num_second * state.is_skipped
            num_kept = state.num_second - num_skipped - state.num_replaced
            for name, number in (("replaced", state.num_replaced), ("kept", num_kept), ("skipped", num_skipped)):
                if number:
                    self._metrics.second_searches.labels(name).inc(number)
        return state, text_s

    async def _search(
        self, model: LoadedModel, searches: Searches, context: RequestContext, num_characters: int
    ) -> list[SegmentResult] | None:
        # Second searches have no results if they are rejected, fail or exceed the deadline.
        try:
            return await wait_for_results(await self._submit(model, searches.segments, context, num_characters))
        except (RetryableError, DeadlineExceededError, DrainingError, EngineError):
            if not searches.is_second:
                raise
            return None

    async def _submit(
        self, model: LoadedModel, segments: Sequence[Segment], context: RequestContext, num_characters: int = 0
    ) -> Futures:
        # Queues all segments or none, and charges their tokens and decode cost to the caller.
        if not segments:
            return ()
        decode_cost = partial(model.scheduler.expected_decode_cost, segments)
        refund = await self._charge(context, num_source_tokens(segments), decode_cost)
        try:
            return model.scheduler.submit(segments, context, num_characters=num_characters)
        except BaseException:
            refund()
            raise

    async def _charge(
        self, context: RequestContext, num_tokens: int, decode_cost: Callable[[], int] | None = None
    ) -> Callable[[], None]:
        if self._take_tokens is None or not num_tokens:
            return lambda: None
        return await self._take_tokens(context.caller, num_tokens, decode_cost)

    async def _timed(self, step: Callable[[], _Result], run: _Run | None) -> tuple[_Result, float, float]:
        # Returns the result of a step, its start and duration.
        began_s = self._clock()
        result = await run(step) if run else step()
        return result, began_s, self._clock() - began_s

    def _count(self, warnings: Iterable[TranslationWarning]) -> None:
        for warning in warnings:
            self._metrics.warnings.labels(warning.kind.value).inc()


def _longest_timings(results: Sequence[SegmentResult], *, text_s: float) -> StageTimings:
    # The longest time of each stage over the segments of a request.
    timings = [result.timings for result in results]
    return StageTimings(
        queue_s=max((timing.queue_s for timing in timings), default=0.0),
        encode_s=max((timing.encode_s for timing in timings), default=0.0),
        decode_s=max((timing.decode_s for timing in timings), default=0.0),
        text_s=text_s,
    )


def _unchanged(request: TranslationRequest) -> TranslationResult:
    # The texts as they are, without a model.
    return TranslationResult(
        translations=tuple(
            Translation(hypotheses=(TextHypothesis(text=text, score=0.0),), sentences=(), is_unchanged=True)
            for text in request.texts
        ),
        model_name="",
        model_version="",
        timings=StageTimings(),
        num_source_tokens=0,
        num_target_tokens=0,
    )
