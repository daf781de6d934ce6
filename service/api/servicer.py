"""The RPC methods: convert, delegate, convert."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

from service.api import messages
from service.api.calls import Call
from service.api.settings import GrpcSettings
from service.api.streams import RequestStream, ResponseStream, answer_all
from service.datatypes import TranslatedSentence, TranslationRequest, TranslationResult
from service.errors import DeadlineExceededError
from service.models.model import ModelStatus
from service.request_context import RequestContext
from service.threads import started_pool
from service.translate.options import TranslationLimits

_Result = TypeVar("_Result")

_NUM_THREADS = 4
"""Calls that load or unload at the same time; further ones wait."""


class ChangesModels(Protocol):
    """The models of the server; every method blocks until it is done and may raise an error of the tree."""

    def load(self, model: str) -> Sequence[ModelStatus]:
        """Load `name/version`; return it once it takes requests."""

    def unload(self, model: str) -> None:
        """Unload `name/version`; return once its memory is free."""

    def set_label(self, model: str, label: str) -> Sequence[ModelStatus]:
        """Let a label point to `name/version`, or to nothing if `model` is a name; return the versions of the name."""


class ModelAdminServicer(pb_grpc.ModelAdminServiceServicer):
    """dragoman.v1.ModelAdminService.

    What a call has begun is brought to its end even if its caller leaves.
    """

    def __init__(self, models: ChangesModels, limits: TranslationLimits) -> None:
        self._models = models
        self._limits = limits
        # Of its own: a call may take minutes, and whoever waits in the event loop's pool waits for text work.
        self._threads = started_pool(_NUM_THREADS, name="model-admin")

    async def LoadModel(  # noqa: N802
        self,
        request: pb.LoadModelRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.LoadModelResponse:
        """Load one version."""
        model = messages.from_model_name(request.model)
        statuses = await self._run(lambda: self._models.load(model))
        return pb.LoadModelResponse(model=messages.to_model(statuses, self._limits))

    async def UnloadModel(  # noqa: N802
        self,
        request: pb.UnloadModelRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.UnloadModelResponse:
        """Unload one version."""
        model = messages.from_model_name(request.model)
        await self._run(lambda: self._models.unload(model))
        return pb.UnloadModelResponse()

    async def SetModelLabel(  # noqa: N802
        self,
        request: pb.SetModelLabelRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.SetModelLabelResponse:
        """Set or remove a label."""
        model = messages.from_model_name(request.model)
        statuses = await self._run(lambda: self._models.set_label(model, request.label))
        return pb.SetModelLabelResponse(model=messages.to_model(statuses, self._limits))

    async def _run(self, change: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, change)


_GRACE_S = 0.5  # for what the deadline ends in the queue or between two steps, whose error says more


class Translates(Protocol):
    """Requests and documents, from text to text."""

    async def translate(self, request: TranslationRequest, context: RequestContext) -> TranslationResult:
        """Translate all texts of a request, or raise an error of the tree."""

    def translate_document(
        self, request: TranslationRequest, context: RequestContext
    ) -> AsyncGenerator[TranslatedSentence, None]:
        """Yield the sentences of the only text in order, or raise an error of the tree; closing it ends the work."""


class KnowsModels(Protocol):
    """The models of the server."""

    def list_models(self) -> Sequence[ModelStatus]:
        """Return all, the versions of each side by side."""

    def get_model(self, model: str) -> Sequence[ModelStatus]:
        """Return the versions of `name`, or the one that is meant by `name/version` or `name@label`."""


class TranslationServicer(pb_grpc.TranslationServiceServicer):
    """dragoman.v1.TranslationService."""

    def __init__(
        self,
        translator: Translates,
        settings: GrpcSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._translator = translator
        self._settings = settings
        self._clock = clock

    async def Translate(  # noqa: N802
        self, request: pb.TranslateRequest, call: Call
    ) -> pb.TranslateResponse:
        """Translate all texts of the request."""
        deadline_s = self._clock() + allowed_time_s(call.time_remaining(), self._settings)
        return await self._translated(request, call, deadline_s=deadline_s)

    async def TranslateDocument(  # noqa: N802
        self, request: pb.TranslateDocumentRequest, stream: ResponseStream
    ) -> None:
        """Translate a document and send its sentences; the interceptor gives the stream."""
        document = messages.from_translate_document_request(request)
        allowed_s = allowed_stream_time_s(stream.call.time_remaining(), self._settings)
        context = stream.call.request_context(
            deadline_s=self._clock() + allowed_s, priority=messages.from_priority(request.priority)
        )
        sentences = self._translator.translate_document(document, context)
        async with _ended_after(allowed_s), contextlib.aclosing(sentences):
            index = 0
            async for sentence in sentences:
                await stream.write(
                    messages.to_translated_sentence(sentence, index=index, request_id=request.request_id)
                )
                index += 1

    async def TranslateStream(self, requests: RequestStream, call: Call) -> None:  # noqa: N802
        """Answer requests as they come; the interceptor gives the stream."""
        allowed_s = allowed_stream_time_s(call.time_remaining(), self._settings)
        translate = partial(self._translated, deadline_s=self._clock() + allowed_s)
        async with _ended_after(allowed_s):
            await answer_all(requests, translate, max_unanswered=self._settings.max_stream_requests)

    async def _translated(self, request: pb.TranslateRequest, call: Call, *, deadline_s: float) -> pb.TranslateResponse:
        wanted = messages.from_translate_request(request)
        context = call.request_context(deadline_s=deadline_s, priority=messages.from_priority(request.priority))
        result = await self._translator.translate(wanted, context)
        return messages.to_translate_response(result, request_id=request.request_id)


class ModelServicer(pb_grpc.ModelServiceServicer):
    """dragoman.v1.ModelService."""

    def __init__(self, models: KnowsModels, limits: TranslationLimits) -> None:
        self._models = models
        self._limits = limits

    async def ListModels(  # noqa: N802
        self,
        request: pb.ListModelsRequest,  # noqa: ARG002
        call: Call,  # noqa: ARG002
    ) -> pb.ListModelsResponse:
        """List all models."""
        return messages.to_list_models_response(self._models.list_models(), self._limits)

    async def GetModel(  # noqa: N802
        self,
        request: pb.GetModelRequest,
        call: Call,  # noqa: ARG002
    ) -> pb.GetModelResponse:
        """Describe one model."""
        statuses = self._models.get_model(messages.from_get_model_request(request))
        return messages.to_get_model_response(statuses, self._limits)


def allowed_time_s(remaining_s: float | None, settings: GrpcSettings) -> float:
    """Return how long a call may take: what its caller left it, or the default, within the maximum."""
    return min(settings.default_timeout_s if remaining_s is None else remaining_s, settings.max_timeout_s)


def allowed_stream_time_s(remaining_s: float | None, settings: GrpcSettings) -> float:
    """Return how long a document or a stream of requests may take; as `allowed_time_s`."""
    allowed_s = settings.default_stream_timeout_s if remaining_s is None else remaining_s
    return min(allowed_s, settings.max_stream_timeout_s)


@contextlib.asynccontextmanager
async def _ended_after(allowed_s: float) -> AsyncIterator[None]:
    """End a call in its time even if its caller neither reads nor sends; what is in the queue ends by its deadline."""
    try:
        async with asyncio.timeout(allowed_s + _GRACE_S):
            yield
    except TimeoutError as error:
        raise DeadlineExceededError("stream") from error
