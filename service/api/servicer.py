"""The RPC methods: convert, delegate, convert."""

import time
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

import grpc
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

from service.api import messages
from service.api.settings import GrpcSettings
from service.datatypes import TranslationRequest, TranslationResult
from service.errors import UnsupportedFieldError
from service.models import ModelStatus
from service.text.limits import TranslationLimits


class Translates(Protocol):
    """One request, from text to text."""

    async def translate(self, request: TranslationRequest, *, deadline_s: float) -> TranslationResult:
        """Translate all texts of a request, or raise an error of the tree; `deadline_s` is on the monotonic clock."""


class KnowsModels(Protocol):
    """The models of the server."""

    def list_models(self) -> Sequence[ModelStatus]:
        """Return all, the versions of each side by side."""

    def get_model(self, model: str) -> Sequence[ModelStatus]:
        """Return the versions of `name`, or the one of `name/version`; an error of the tree if there is none."""


class TranslationServicer(pb_grpc.TranslationServiceServicer):
    """dragoman.v1.TranslationService."""

    def __init__(
        self, translator: Translates, settings: GrpcSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._translator = translator
        self._settings = settings
        self._clock = clock

    async def Translate(  # noqa: N802
        self, request: pb.TranslateRequest, context: grpc.aio.ServicerContext
    ) -> pb.TranslateResponse:
        """Translate all texts of the request."""
        deadline_s = self._clock() + allowed_time_s(context.time_remaining(), self._settings)
        result = await self._translator.translate(messages.from_translate_request(request), deadline_s=deadline_s)
        return messages.to_translate_response(result, request_id=request.request_id)

    async def TranslateDocument(self, request: object, context: object) -> NoReturn:  # noqa: ARG002, N802
        """Refuse: not implemented yet."""
        raise UnsupportedFieldError("TranslateDocument")

    async def TranslateStream(self, requests: object, context: object) -> NoReturn:  # noqa: ARG002, N802
        """Refuse: not implemented yet."""
        raise UnsupportedFieldError("TranslateStream")


class ModelServicer(pb_grpc.ModelServiceServicer):
    """dragoman.v1.ModelService."""

    def __init__(self, models: KnowsModels, limits: TranslationLimits) -> None:
        self._models = models
        self._limits = limits

    async def ListModels(  # noqa: N802
        self,
        request: pb.ListModelsRequest,  # noqa: ARG002
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> pb.ListModelsResponse:
        """List all models."""
        return messages.to_list_models_response(self._models.list_models(), self._limits)

    async def GetModel(  # noqa: N802
        self,
        request: pb.GetModelRequest,
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> pb.GetModelResponse:
        """Describe one model."""
        statuses = self._models.get_model(messages.from_get_model_request(request))
        return messages.to_get_model_response(statuses, self._limits)


def allowed_time_s(remaining_s: float | None, settings: GrpcSettings) -> float:
    """Return how long a call may take: what its caller left it, or the default, within the maximum."""
    return min(settings.default_timeout_s if remaining_s is None else remaining_s, settings.max_timeout_s)
