"""The handlers of the API, one for each method. They take and return messages; all transports call them."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.calls import conversion, policy
from dragoman_service.calls.pipeline import Call
from dragoman_service.calls.policy import CallPolicy
from dragoman_service.datatypes import DetectedLanguage, Priority, Translation, TranslationResult
from dragoman_service.models.glossaries import GlossaryRepository
from dragoman_service.models.repository import ModelRepository
from dragoman_service.request import TranslationRequest
from dragoman_service.threads import started_pool
from dragoman_service.translation.settings import TranslationLimits
from dragoman_service.translation.translator import Translator

_Result = TypeVar("_Result")

Handler = Callable[[Any, Call], Awaitable[Any]]
"""Returns the response to a request."""

_NUM_ADMIN_THREADS = 4  # models that are loaded or unloaded at the same time


@dataclass(frozen=True, slots=True)
class TranslatedText:
    """Translation of one text."""

    translation: Translation
    model: str  # `name/version`; empty if the text was returned unchanged because it is in the target language
    detected: DetectedLanguage | None  # None if the request named the source language

    @property
    def best(self) -> str:
        """Return the best hypothesis."""
        return self.translation.hypotheses[0].text


class Handlers:
    """Answers the methods of the API, and translates for the APIs of other vendors."""

    def __init__(
        self,
        *,
        translator: Translator,
        models: ModelRepository,
        glossaries: GlossaryRepository,
        limits: TranslationLimits,
    ) -> None:
        self._translator = translator
        self.models = models
        self.glossaries = glossaries
        self.limits = limits
        # Not the event loop's pool: a call may take minutes, and text work must not wait for it.
        self._admin_threads = started_pool(_NUM_ADMIN_THREADS, name="model-admin")

    @property
    def unary(self) -> Mapping[CallPolicy, Handler]:
        """Handlers of the methods with one request and one response."""
        return {
            policy.TRANSLATE: self.translate,
            policy.DETECT_LANGUAGE: self.detect_language,
            policy.LIST_MODELS: self.list_models,
            policy.GET_MODEL: self.get_model,
            policy.LIST_GLOSSARIES: self.list_glossaries,
            policy.LOAD_MODEL: self.load_model,
            policy.UNLOAD_MODEL: self.unload_model,
            policy.SET_MODEL_LABEL: self.set_model_label,
        }

    async def translate(self, request: pb.TranslateRequest, call: Call) -> pb.TranslateResponse:
        """Translate all texts of the request."""
        priority = conversion.from_priority(request.priority)
        result = await self.translate_texts(conversion.from_translate_request(request), call, priority)
        return conversion.to_translate_response(result, request_id=call.request_id)

    async def translate_texts(
        self, request: TranslationRequest, call: Call, priority: Priority = Priority.INTERACTIVE
    ) -> TranslationResult:
        """Translate all texts of a request as values."""
        return await self._translator.translate(request, call.context(priority), call.usage)

    async def translate_each(self, request: TranslationRequest, call: Call) -> list[TranslatedText]:
        """Translate the texts of a request, each from its own language if the request names none.

        Texts without letters and texts in the target language are returned unchanged.
        """
        if request.source_language:
            return _texts_of(await self.translate_texts(request, call))
        languages = await self._translator.source_languages(request, call.context(), call.usage)
        counts = Counter(language.language for language in languages if language)
        most_common = DetectedLanguage(language=counts.most_common(1)[0][0], confidence=0.0) if counts else None
        indices_of: dict[str, list[int]] = {}  # texts without letters are under ""
        for index, language in enumerate(languages):
            indices_of.setdefault(language.language if language else "", []).append(index)
        translated: dict[int, TranslatedText] = {}
        for source, indices in indices_of.items():
            part = request.part(indices, source_language=source)
            parts = _texts_of(await self.translate_texts(part, call))
            for index, text in zip(indices, parts, strict=True):
                translated[index] = replace(text, detected=languages[index] or most_common or text.detected)
        return [translated[index] for index in range(len(languages))]

    async def translate_document(
        self, request: pb.TranslateDocumentRequest, call: Call
    ) -> AsyncGenerator[pb.TranslatedSentence, None]:
        """Translate a document and yield its sentences; closing the generator cancels the rest."""
        context = call.context(conversion.from_priority(request.priority))
        document = conversion.from_translate_document_request(request)
        index = 0
        async with contextlib.aclosing(self._translator.translate_document(document, context, call.usage)) as sentences:
            async for sentence in sentences:
                yield conversion.to_translated_sentence(sentence, index=index, request_id=call.request_id)
                index += 1

    async def detect_language(self, request: pb.DetectLanguageRequest, call: Call) -> pb.DetectLanguageResponse:
        """Return the likely languages of each text."""
        texts, target_language = conversion.from_detect_language_request(request)
        detected = await self.detect_languages(texts, call, target_language=target_language)
        return conversion.to_detect_language_response(detected)

    async def detect_languages(
        self, texts: Sequence[str], call: Call, *, target_language: str = ""
    ) -> list[tuple[DetectedLanguage, ...]]:
        """Return the likely languages of each text as values."""
        return await self._translator.detect_languages(texts, call.context(), target_language=target_language)

    async def list_models(self, _request: pb.ListModelsRequest, _call: Call) -> pb.ListModelsResponse:
        """List all models."""
        return conversion.to_list_models_response(self.models.list_models(), self.limits)

    async def get_model(self, request: pb.GetModelRequest, _call: Call) -> pb.GetModelResponse:
        """Describe one model."""
        statuses = self.models.get_model(conversion.from_model_name(request.model))
        return pb.GetModelResponse(model=conversion.to_model(statuses, self.limits))

    async def list_glossaries(self, _request: pb.ListGlossariesRequest, _call: Call) -> pb.ListGlossariesResponse:
        """List all glossaries."""
        return conversion.to_list_glossaries_response(self.glossaries.all())

    async def load_model(self, request: pb.LoadModelRequest, _call: Call) -> pb.LoadModelResponse:
        """Load one version; completes even if the caller disconnects, as the next two."""
        statuses = await self._administer(partial(self.models.load, conversion.from_model_name(request.model)))
        return pb.LoadModelResponse(model=conversion.to_model(statuses, self.limits))

    async def unload_model(self, request: pb.UnloadModelRequest, _call: Call) -> pb.UnloadModelResponse:
        """Unload one version."""
        await self._administer(partial(self.models.unload, conversion.from_model_name(request.model)))
        return pb.UnloadModelResponse()

    async def set_model_label(self, request: pb.SetModelLabelRequest, _call: Call) -> pb.SetModelLabelResponse:
        """Set or remove a label."""
        model = conversion.from_model_name(request.model)
        statuses = await self._administer(partial(self.models.set_label, model, request.label))
        return pb.SetModelLabelResponse(model=conversion.to_model(statuses, self.limits))

    async def _administer(self, change: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._admin_threads, change)


def _texts_of(result: TranslationResult) -> list[TranslatedText]:
    model = f"{result.model_name}/{result.model_version}" if result.model_name else ""
    return [TranslatedText(translation, model, result.detected_language) for translation in result.translations]
