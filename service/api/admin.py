"""The RPC methods that change what the server translates with: convert, delegate, convert."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import grpc
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

from service.api import messages
from service.models.model import ModelStatus
from service.text.limits import TranslationLimits
from service.thread_pools import started_pool

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
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> pb.LoadModelResponse:
        """Load one version."""
        model = messages.from_model_name(request.model)
        statuses = await self._run(lambda: self._models.load(model))
        return pb.LoadModelResponse(model=messages.to_model(statuses, self._limits))

    async def UnloadModel(  # noqa: N802
        self,
        request: pb.UnloadModelRequest,
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> pb.UnloadModelResponse:
        """Unload one version."""
        model = messages.from_model_name(request.model)
        await self._run(lambda: self._models.unload(model))
        return pb.UnloadModelResponse()

    async def SetModelLabel(  # noqa: N802
        self,
        request: pb.SetModelLabelRequest,
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> pb.SetModelLabelResponse:
        """Set or remove a label."""
        model = messages.from_model_name(request.model)
        statuses = await self._run(lambda: self._models.set_label(model, request.label))
        return pb.SetModelLabelResponse(model=messages.to_model(statuses, self._limits))

    async def _run(self, change: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, change)
