"""The RPC methods: convert the message, call the backend, convert the result."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.grpc_api.streaming import RequestStream
from dragoman_service.middleware import conversion
from dragoman_service.middleware.flow_control import ResponseStream
from dragoman_service.middleware.pipeline import Backend
from dragoman_service.request import RequestRecord
from dragoman_service.threads import started_pool

_Result = TypeVar("_Result")

_NUM_ADMIN_THREADS = 4  # models that are loaded or unloaded at the same time


class TranslationServicer(pb_grpc.TranslationServiceServicer):
    """dragoman.v1.TranslationService; the interceptor passes a `RequestRecord` or a stream as gRPC's context."""

    def __init__(self, backend: Backend, *, max_stream_requests: int) -> None:
        self._translator = backend.translator
        self._max_stream_requests = max_stream_requests

    async def Translate(self, request: pb.TranslateRequest, record: RequestRecord) -> pb.TranslateResponse:
        """Translate all texts of the request."""
        record.priority = conversion.from_priority(request.priority)
        result = await self._translator.translate(conversion.from_translate_request(request), record)
        return conversion.to_translate_response(result, request_id=record.request_id)

    async def TranslateDocument(self, request: pb.TranslateDocumentRequest, stream: ResponseStream) -> None:
        """Translate a document and send its sentences."""
        record, index = stream.record, 0
        record.priority = conversion.from_priority(request.priority)
        document = conversion.from_translate_document_request(request)
        async with contextlib.aclosing(self._translator.translate_document(document, record)) as sentences:
            async for sentence in sentences:
                message = conversion.to_translated_sentence(sentence, index=index, request_id=record.request_id)
                await stream.write(message.SerializeToString())
                index += 1

    async def TranslateStream(self, requests: RequestStream, record: RequestRecord) -> None:
        """Answer requests as they arrive."""
        await requests.answer_all(self.Translate, max_unanswered=self._max_stream_requests)

    async def DetectLanguage(
        self, request: pb.DetectLanguageRequest, record: RequestRecord
    ) -> pb.DetectLanguageResponse:
        """Return the likely languages of each text."""
        texts, target_language = conversion.from_detect_language_request(request)
        detected = await self._translator.detect_languages(texts, record, target_language=target_language)
        return conversion.to_detect_language_response(detected)


class ModelServicer(pb_grpc.ModelServiceServicer):
    """dragoman.v1.ModelService."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def ListModels(self, request: pb.ListModelsRequest, record: RequestRecord) -> pb.ListModelsResponse:
        """List all models."""
        return conversion.to_list_models_response(self._backend.models.list_models(), self._backend.limits)

    async def GetModel(self, request: pb.GetModelRequest, record: RequestRecord) -> pb.GetModelResponse:
        """Describe one model."""
        statuses = self._backend.models.get_model(conversion.from_model_name(request.model))
        return pb.GetModelResponse(model=conversion.to_model(statuses, self._backend.limits))

    async def ListGlossaries(
        self, request: pb.ListGlossariesRequest, record: RequestRecord
    ) -> pb.ListGlossariesResponse:
        """List all glossaries."""
        return conversion.to_list_glossaries_response(self._backend.glossaries.all())


class ModelAdminServicer(pb_grpc.ModelAdminServiceServicer):
    """dragoman.v1.ModelAdminService; an operation completes even if its caller disconnects."""

    def __init__(self, backend: Backend) -> None:
        self._models = backend.models
        self._limits = backend.limits
        # Not the event loop's pool: a call may take minutes, and text work must not wait for it.
        self._threads = started_pool(_NUM_ADMIN_THREADS, name="model-admin")

    async def LoadModel(self, request: pb.LoadModelRequest, record: RequestRecord) -> pb.LoadModelResponse:
        """Load one version."""
        statuses = await self._run(partial(self._models.load, conversion.from_model_name(request.model)))
        return pb.LoadModelResponse(model=conversion.to_model(statuses, self._limits))

    async def UnloadModel(self, request: pb.UnloadModelRequest, record: RequestRecord) -> pb.UnloadModelResponse:
        """Unload one version."""
        await self._run(partial(self._models.unload, conversion.from_model_name(request.model)))
        return pb.UnloadModelResponse()

    async def SetModelLabel(self, request: pb.SetModelLabelRequest, record: RequestRecord) -> pb.SetModelLabelResponse:
        """Set or remove a label."""
        model = conversion.from_model_name(request.model)
        statuses = await self._run(partial(self._models.set_label, model, request.label))
        return pb.SetModelLabelResponse(model=conversion.to_model(statuses, self._limits))

    async def _run(self, change: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, change)
