"""The RPC methods: convert, delegate, convert. The interceptor gives them a `Call` in place of gRPC's context."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.datatypes import Priority
from dragoman_service.errors import DeadlineExceededError
from dragoman_service.grpc_api import conversion
from dragoman_service.grpc_api.streaming import RequestStream, ResponseStream
from dragoman_service.middleware.call import Call
from dragoman_service.models.glossaries import GlossaryRepository
from dragoman_service.models.repository import ModelRepository
from dragoman_service.request import RequestContext
from dragoman_service.security.settings import GrpcSettings
from dragoman_service.threads import started_pool
from dragoman_service.translation.options import TranslationLimits
from dragoman_service.translation.translator import Translator

_Result = TypeVar("_Result")

_GRACE_S = 0.5  # for what the deadline ends in the queue or between two steps, whose error says more

_NUM_ADMIN_THREADS = 4
"""Calls that load or unload at the same time; further ones wait."""


class TranslationServicer(pb_grpc.TranslationServiceServicer):
    """dragoman.v1.TranslationService."""

    def __init__(
        self, translator: Translator, settings: GrpcSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._translator = translator
        self._settings = settings
        self._clock = clock

    async def Translate(self, request: pb.TranslateRequest, call: Call) -> pb.TranslateResponse:
        """Translate all texts of the request."""
        deadline_s = self._clock() + self._settings.allowed_s(call.time_remaining())
        return await self._translated(request, call, deadline_s=deadline_s)

    async def TranslateDocument(self, request: pb.TranslateDocumentRequest, stream: ResponseStream) -> None:
        """Translate a document and send its sentences."""
        document = conversion.from_translate_document_request(request)
        allowed_s = self._settings.allowed_stream_s(stream.call.time_remaining())
        context = _context(request, stream.call, deadline_s=self._clock() + allowed_s)
        sentences = self._translator.translate_document(document, context)
        async with ended_after(allowed_s), contextlib.aclosing(sentences):
            index = 0
            async for sentence in sentences:
                response = conversion.to_translated_sentence(sentence, index=index, request_id=request.request_id)
                await stream.write(response)
                index += 1

    async def TranslateStream(self, requests: RequestStream, call: Call) -> None:
        """Answer requests as they come."""
        allowed_s = self._settings.allowed_stream_s(call.time_remaining())
        translate = partial(self._translated, deadline_s=self._clock() + allowed_s)
        async with ended_after(allowed_s):
            await requests.answer_all(translate, max_unanswered=self._settings.max_stream_requests)

    async def DetectLanguage(self, request: pb.DetectLanguageRequest, call: Call) -> pb.DetectLanguageResponse:
        """Tell the languages of texts."""
        texts, target_language = conversion.from_detect_language_request(request)
        deadline_s = self._clock() + self._settings.allowed_s(call.time_remaining())
        context = call.request_context(deadline_s=deadline_s, priority=Priority.INTERACTIVE)
        detected = await self._translator.detect_languages(texts, context, target_language=target_language)
        return conversion.to_detect_language_response(detected)

    async def source_languages(self, request: pb.TranslateRequest, call: Call) -> list[pb.DetectedLanguage | None]:
        """Return the language of each text of a request without a source language; None for a text without letters.

        Not a method of the service; for the APIs of other services. A language that is not served is the target's.
        """
        deadline_s = self._clock() + self._settings.allowed_s(call.time_remaining())
        wanted = conversion.from_translate_request(request)
        found = await self._translator.source_languages(wanted, _context(request, call, deadline_s=deadline_s))
        return [conversion.to_detected_language(one) if one else None for one in found]

    async def _translated(self, request: pb.TranslateRequest, call: Call, *, deadline_s: float) -> pb.TranslateResponse:
        wanted = conversion.from_translate_request(request)
        result = await self._translator.translate(wanted, _context(request, call, deadline_s=deadline_s))
        return conversion.to_translate_response(result, request_id=request.request_id)


class ModelServicer(pb_grpc.ModelServiceServicer):
    """dragoman.v1.ModelService."""

    def __init__(
        self, models: ModelRepository, limits: TranslationLimits, glossaries: GlossaryRepository | None = None
    ) -> None:
        self.glossaries = glossaries or GlossaryRepository()
        self.limits = limits
        self._models = models

    async def ListModels(self, request: pb.ListModelsRequest, call: Call) -> pb.ListModelsResponse:
        """List all models."""
        return conversion.to_list_models_response(self._models.list_models(), self.limits)

    async def GetModel(self, request: pb.GetModelRequest, call: Call) -> pb.GetModelResponse:
        """Describe one model."""
        statuses = self._models.get_model(conversion.from_model_name(request.model))
        return pb.GetModelResponse(model=conversion.to_model(statuses, self.limits))

    async def ListGlossaries(self, request: pb.ListGlossariesRequest, call: Call) -> pb.ListGlossariesResponse:
        """List all glossaries."""
        return conversion.to_list_glossaries_response(self.glossaries.all())


class ModelAdminServicer(pb_grpc.ModelAdminServiceServicer):
    """dragoman.v1.ModelAdminService; what a call has begun is completed even if its caller leaves."""

    def __init__(self, models: ModelRepository, limits: TranslationLimits) -> None:
        self._models = models
        self._limits = limits
        # Of its own: a call may take minutes, and text work must not wait for it in the event loop's pool.
        self._threads = started_pool(_NUM_ADMIN_THREADS, name="model-admin")

    async def LoadModel(self, request: pb.LoadModelRequest, call: Call) -> pb.LoadModelResponse:
        """Load one version."""
        statuses = await self._run(partial(self._models.load, conversion.from_model_name(request.model)))
        return pb.LoadModelResponse(model=conversion.to_model(statuses, self._limits))

    async def UnloadModel(self, request: pb.UnloadModelRequest, call: Call) -> pb.UnloadModelResponse:
        """Unload one version."""
        await self._run(partial(self._models.unload, conversion.from_model_name(request.model)))
        return pb.UnloadModelResponse()

    async def SetModelLabel(self, request: pb.SetModelLabelRequest, call: Call) -> pb.SetModelLabelResponse:
        """Set or remove a label."""
        model = conversion.from_model_name(request.model)
        statuses = await self._run(partial(self._models.set_label, model, request.label))
        return pb.SetModelLabelResponse(model=conversion.to_model(statuses, self._limits))

    async def _run(self, change: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, change)


def _context(
    request: pb.TranslateRequest | pb.TranslateDocumentRequest, call: Call, *, deadline_s: float
) -> RequestContext:
    return call.request_context(deadline_s=deadline_s, priority=conversion.from_priority(request.priority))


@contextlib.asynccontextmanager
async def ended_after(allowed_s: float) -> AsyncIterator[None]:
    """End a call in its time even if its caller neither reads nor sends; what is in the queue ends by its deadline."""
    try:
        async with asyncio.timeout(allowed_s + _GRACE_S):
            yield
    except TimeoutError as error:
        raise DeadlineExceededError("stream") from error
