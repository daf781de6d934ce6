"""The calls of the wire as values: what to send, with which deadline, and how to read what comes back.

Both clients make them here, so they differ in how they wait only.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from dragoman.credentials import Metadata, checked_metadata
from dragoman.feed import Feed
from dragoman.models import Model
from dragoman.requests import (
    RequestSettings,
    TranslationRequest,
    document_message,
    new_request_id,
    translation_message,
)
from dragoman.results import StreamAnswer, TranslatedSentence, TranslationResult
from dragoman.trace import opentelemetry_inject, trace_metadata
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

Answer = TypeVar("Answer")
"""What a call returns, or what its stream consists of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Answer]):
    """One call, ready to start."""

    request_id: str

    start: Callable[[], Any] = field(repr=False)
    """Starts it; returns what the stub returns, which depends on the channel: a response, a stream or an awaitable.

    Holds the metadata, credentials included, so it is never printed.
    """

    read: Callable[[Any], Answer]
    """Reads one response."""

    feed: Feed | None = None
    """What it sends, if that is a stream."""

    def stop_feed(self) -> None:
        """Send nothing more."""
        if self.feed is not None:
            self.feed.stop()

    def raise_feed_error(self) -> None:
        """Raise what the requests raised, if they did."""
        if self.feed is not None and self.feed.error is not None:
            raise self.feed.error


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """What holds for a call whatever it asks for."""

    timeout_s: float | None = None
    """Deadline in seconds from the start of the call; None: the default of the client."""

    metadata: Metadata = field(default=(), repr=False)
    """Sent beside those of the client."""


class Calls:
    """Makes the calls of one channel."""

    def __init__(
        self, channel: Any, *, timeout_s: float, metadata: Metadata, check: Callable[[Metadata], None]
    ) -> None:
        """Use `channel`, sync or async, with a default deadline and metadata, checked already, for each call.

        `check` raises a ValueError if the metadata of a call must not go over this channel.

        Raises:
            ValueError: if `timeout_s` is not finite and above 0.
        """
        self._translation = pb_grpc.TranslationServiceStub(channel)
        self._models = pb_grpc.ModelServiceStub(channel)
        self._admin = pb_grpc.ModelAdminServiceStub(channel)
        self._timeout_s = _checked_timeout(timeout_s)
        self._check = check
        self._metadata = tuple(metadata)
        self._inject = opentelemetry_inject()

    def translate(
        self, texts: Sequence[str], prefixes: Sequence[str], fields: RequestSettings, settings: CallSettings
    ) -> Call[TranslationResult]:
        """Translate texts."""
        request: TranslationRequest = {"texts": texts, "target_prefixes": prefixes, **fields}
        message = translation_message(request)
        start = self._start(self._translation.Translate, message, settings, message.request_id)
        return Call(request_id=message.request_id, start=start, read=TranslationResult.from_message)

    def translate_document(
        self, text: str, fields: RequestSettings, settings: CallSettings
    ) -> Call[TranslatedSentence]:
        """Translate a document; the stub returns a stream."""
        message = document_message(text, fields)
        start = self._start(self._translation.TranslateDocument, message, settings, message.request_id)
        return Call(request_id=message.request_id, start=start, read=TranslatedSentence.from_message)

    def translate_stream(self, feed: Feed, settings: CallSettings) -> Call[StreamAnswer]:
        """Translate what `feed` yields, sync or async as the channel is; the stub returns a stream."""
        request_id = new_request_id()
        start = self._start(self._translation.TranslateStream, feed, settings, request_id)
        return Call(request_id=request_id, start=start, read=StreamAnswer.from_message, feed=feed)

    def list_models(self, settings: CallSettings) -> Call[tuple[Model, ...]]:
        """List all models."""
        return self._unary(self._models.ListModels, pb.ListModelsRequest(), _models, settings)

    def get_model(self, model: str, settings: CallSettings) -> Call[Model]:
        """Get one model."""
        return self._unary(self._models.GetModel, pb.GetModelRequest(model=model), _model, settings)

    def load_model(self, model: str, settings: CallSettings) -> Call[Model]:
        """Load a version."""
        return self._unary(self._admin.LoadModel, pb.LoadModelRequest(model=model), _model, settings)

    def unload_model(self, model: str, settings: CallSettings) -> Call[None]:
        """Unload a version."""
        return self._unary(self._admin.UnloadModel, pb.UnloadModelRequest(model=model), _nothing, settings)

    def set_model_label(self, model: str, label: str, settings: CallSettings) -> Call[Model]:
        """Set or remove a label."""
        message = pb.SetModelLabelRequest(model=model, label=label)
        return self._unary(self._admin.SetModelLabel, message, _model, settings)

    def _unary(self, method: Any, message: Any, read: Callable[[Any], Answer], settings: CallSettings) -> Call[Answer]:
        request_id = new_request_id()
        return Call(request_id=request_id, start=self._start(method, message, settings, request_id), read=read)

    def _start(self, method: Any, message: Any, settings: CallSettings, request_id: str) -> Callable[[], Any]:
        timeout_s = self._timeout_s if settings.timeout_s is None else _checked_timeout(settings.timeout_s)
        metadata = (*self._metadata, *self._checked(settings.metadata), ("x-request-id", request_id))
        if not any(name == "traceparent" for name, _ in metadata):
            metadata += trace_metadata(self._inject)
        return partial(method, message, timeout=timeout_s, metadata=metadata)

    def _checked(self, metadata: Metadata) -> tuple[tuple[str, str | bytes], ...]:
        pairs = checked_metadata(metadata)
        self._check(pairs)
        return pairs


def _models(response: pb.ListModelsResponse) -> tuple[Model, ...]:
    return tuple(map(Model.from_message, response.models))


def _model(response: pb.GetModelResponse | pb.LoadModelResponse | pb.SetModelLabelResponse) -> Model:
    return Model.from_message(response.model)


def _nothing(response: pb.UnloadModelResponse) -> None:  # noqa: ARG001 - it says that the call ended with OK
    return None


def _checked_timeout(timeout_s: float) -> float:
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ValueError(f"timeout_s is {timeout_s}, must be finite and above 0")
    return timeout_s
