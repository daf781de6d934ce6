"""The calls of the wire as values: what to send, with which deadline, and how to read what comes back.

Both clients make them here, so they differ in how they wait only.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from dragoman.models import Model
from dragoman.requests import (
    RequestSettings,
    TranslationRequest,
    document_message,
    new_request_id,
    translation_message,
)
from dragoman.results import StreamAnswer, TranslatedSentence, TranslationResult
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

Answer = TypeVar("Answer")
"""What a call returns, or what its stream consists of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Answer]):
    """One call, ready to start."""

    request_id: str

    start: Callable[[], Any]
    """Starts it; returns what the stub returns, which depends on the channel: a response, a stream or an awaitable."""

    read: Callable[[Any], Answer]
    """Reads one response."""


class Calls:
    """Makes the calls of one channel.

    Every method takes `timeout_s`, the deadline in seconds from the start of the call; None: the default.
    """

    def __init__(self, channel: Any, *, timeout_s: float, metadata: Iterable[tuple[str, str]]) -> None:
        """Use `channel`, sync or async, with a default deadline and metadata for each call.

        Raises:
            ValueError: if `timeout_s` is not finite and above 0.
        """
        self._translation = pb_grpc.TranslationServiceStub(channel)
        self._models = pb_grpc.ModelServiceStub(channel)
        self._timeout_s = _checked_timeout(timeout_s)
        self._metadata = tuple(metadata)

    def translate(
        self, texts: Sequence[str], prefixes: Sequence[str], settings: RequestSettings, timeout_s: float | None
    ) -> Call[TranslationResult]:
        """Translate texts."""
        request: TranslationRequest = {"texts": texts, "target_prefixes": prefixes, **settings}
        message = translation_message(request)
        method = self._translation.Translate
        return self._call(method, message, TranslationResult.from_message, timeout_s, message.request_id)

    def translate_document(
        self, text: str, settings: RequestSettings, timeout_s: float | None
    ) -> Call[TranslatedSentence]:
        """Translate a document; the stub returns a stream."""
        message = document_message(text, settings)
        method = self._translation.TranslateDocument
        return self._call(method, message, TranslatedSentence.from_message, timeout_s, message.request_id)

    def translate_stream(self, messages: Any, timeout_s: float | None) -> Call[StreamAnswer]:
        """Translate a stream of messages, an iterable or an async iterable; the stub returns a stream."""
        method = self._translation.TranslateStream
        return self._call(method, messages, StreamAnswer.from_message, timeout_s, new_request_id())

    def list_models(self, timeout_s: float | None) -> Call[tuple[Model, ...]]:
        """List all models."""
        return self._call(self._models.ListModels, pb.ListModelsRequest(), _models, timeout_s, new_request_id())

    def get_model(self, model: str, timeout_s: float | None) -> Call[Model]:
        """Get one model."""
        message = pb.GetModelRequest(model=model)
        return self._call(self._models.GetModel, message, _model, timeout_s, new_request_id())

    def _call(
        self, method: Any, message: Any, read: Callable[[Any], Answer], timeout_s: float | None, request_id: str
    ) -> Call[Answer]:
        timeout_s = self._timeout_s if timeout_s is None else _checked_timeout(timeout_s)
        metadata = (*self._metadata, ("x-request-id", request_id))
        start = partial(method, message, timeout=timeout_s, metadata=metadata)
        return Call(request_id=request_id, start=start, read=read)


def _models(response: pb.ListModelsResponse) -> tuple[Model, ...]:
    return tuple(map(Model.from_message, response.models))


def _model(response: pb.GetModelResponse) -> Model:
    return Model.from_message(response.model)


def _checked_timeout(timeout_s: float) -> float:
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ValueError(f"timeout_s is {timeout_s}, must be finite and above 0")
    return timeout_s
