"""The calls of the wire as values: what to send, with which deadline, and how to read what comes back.

Both clients make them here, so they differ in how they wait only.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dragoman.credentials import Metadata, checked_metadata
from dragoman.feed import Feed
from dragoman.models import Glossary, Model
from dragoman.reachability import Reachability
from dragoman.requests import (
    RequestSettings,
    TranslationRequest,
    detection_message,
    document_message,
    new_request_id,
    translation_message,
)
from dragoman.results import DetectedLanguage, StreamAnswer, TranslatedSentence, TranslationResult
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

Answer = TypeVar("Answer")
"""What a call returns, or what its stream consists of."""

Inject = Callable[[dict[str, str]], object]
"""Writes the current trace context into a carrier, as `opentelemetry.propagate.inject` does."""


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

    reachability: Reachability
    """Explains why there was no server."""

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
        self,
        channel: Any,
        *,
        timeout_s: float,
        metadata: Metadata,
        check_metadata: Callable[[Metadata], None],
        check_usable: Callable[[], None],
        reachability: Reachability,
    ) -> None:
        """Make calls over a channel.

        Args:
            channel: sync or async.
            timeout_s: deadline of a call that names none.
            metadata: of each call, checked already.
            check_metadata: raises a ValueError if the metadata of a call must not go over this channel.
            check_usable: raises a ValueError if no call may start, as after the end of the client.
            reachability: explains why there was no server.

        Raises:
            ValueError: if `timeout_s` is not finite and above 0.
        """
        self._translation = pb_grpc.TranslationServiceStub(channel)
        self._models = pb_grpc.ModelServiceStub(channel)
        self._admin = pb_grpc.ModelAdminServiceStub(channel)
        self._timeout_s = _checked_timeout(timeout_s)
        self._check_metadata = check_metadata
        self._check_usable = check_usable
        self._reachability = reachability
        self._metadata = tuple(metadata)
        self._inject = opentelemetry_inject()

    def translate(
        self,
        texts: Sequence[str],
        prefixes: Sequence[str],
        pivots: Sequence[str],
        fields: RequestSettings,
        settings: CallSettings,
    ) -> Call[TranslationResult]:
        """Translate texts."""
        request: TranslationRequest = {
            "texts": texts,
            "target_prefixes": prefixes,
            "pivot_languages": pivots,
            **fields,
        }
        message = translation_message(request)
        method, read = self._translation.Translate, TranslationResult.from_message
        return self._call(method, message, read, settings, message.request_id)

    def translate_document(
        self, text: str, fields: RequestSettings, settings: CallSettings
    ) -> Call[TranslatedSentence]:
        """Translate a document; the stub returns a stream."""
        message = document_message(text, fields)
        method, read = self._translation.TranslateDocument, TranslatedSentence.from_message
        return self._call(method, message, read, settings, message.request_id)

    def translate_stream(self, feed: Feed, settings: CallSettings) -> Call[StreamAnswer]:
        """Translate what `feed` yields, sync or async as the channel is; the stub returns a stream."""
        method, read = self._translation.TranslateStream, StreamAnswer.from_message
        return self._call(method, feed, read, settings, new_request_id(), feed=feed)

    def detect_languages(
        self, texts: Sequence[str], target_language: str, settings: CallSettings
    ) -> Call[tuple[tuple[DetectedLanguage, ...], ...]]:
        """Tell the languages of texts."""
        message = detection_message(texts, target_language)
        return self._unary(self._translation.DetectLanguage, message, _detections, settings)

    def list_models(self, settings: CallSettings) -> Call[tuple[Model, ...]]:
        """List all models."""
        return self._unary(self._models.ListModels, pb.ListModelsRequest(), _models, settings)

    def get_model(self, model: str, settings: CallSettings) -> Call[Model]:
        """Get one model."""
        return self._unary(self._models.GetModel, pb.GetModelRequest(model=model), _model, settings)

    def list_glossaries(self, settings: CallSettings) -> Call[tuple[Glossary, ...]]:
        """List all glossaries."""
        return self._unary(self._models.ListGlossaries, pb.ListGlossariesRequest(), _glossaries, settings)

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
        return self._call(method, message, read, settings, new_request_id())

    def _call(
        self,
        method: Any,
        sent: Any,
        read: Callable[[Any], Answer],
        settings: CallSettings,
        request_id: str,
        *,
        feed: Feed | None = None,
    ) -> Call[Answer]:
        timeout_s = self._timeout_s if settings.timeout_s is None else _checked_timeout(settings.timeout_s)
        metadata = (*self._metadata, *self._checked(settings.metadata), ("x-request-id", request_id))
        if not any(name == "traceparent" for name, _ in metadata):
            metadata += trace_metadata(self._inject)

        def start() -> Any:
            self._check_usable()
            return method(sent, timeout=timeout_s, metadata=metadata)

        return Call(request_id=request_id, start=start, read=read, reachability=self._reachability, feed=feed)

    def _checked(self, metadata: Metadata) -> tuple[tuple[str, str | bytes], ...]:
        pairs = checked_metadata(metadata)
        self._check_metadata(pairs)
        return pairs


def _models(response: pb.ListModelsResponse) -> tuple[Model, ...]:
    return tuple(map(Model.from_message, response.models))


def _detections(message: pb.DetectLanguageResponse) -> tuple[tuple[DetectedLanguage, ...], ...]:
    return tuple(tuple(map(DetectedLanguage.from_message, one.languages)) for one in message.detections)


def _glossaries(message: pb.ListGlossariesResponse) -> tuple[Glossary, ...]:
    return tuple(Glossary.from_message(glossary) for glossary in message.glossaries)


def _model(response: pb.GetModelResponse | pb.LoadModelResponse | pb.SetModelLabelResponse) -> Model:
    return Model.from_message(response.model)


def _nothing(response: pb.UnloadModelResponse) -> None:  # noqa: ARG001 - it says that the call ended with OK
    return None


def _checked_timeout(timeout_s: float) -> float:
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ValueError(f"timeout_s is {timeout_s}, must be finite and above 0")
    return timeout_s


def opentelemetry_inject() -> Inject | None:
    """Return OpenTelemetry's own injection; None where it is not installed."""
    try:
        module = importlib.import_module("opentelemetry.propagate")
    except ImportError:
        return None
    inject: Inject = module.inject
    return inject


def trace_metadata(inject: Inject | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata that make the call a part of the running trace; none outside of one."""
    if inject is None:
        return ()
    carrier: dict[str, str] = {}
    inject(carrier)
    return tuple((name.lower(), value) for name, value in carrier.items())
