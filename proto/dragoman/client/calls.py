"""Calls as values: request message, deadline, metadata, and the conversion of responses.

The synchronous and the asynchronous clients build their calls here and differ only in how they wait for responses.
"""

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar, Unpack

from dragoman.client.credentials import Metadata, checked_metadata
from dragoman.client.errors import error_from_status
from dragoman.client.message_mapping import check_items, from_message
from dragoman.client.models import Glossary, Model
from dragoman.client.request import (
    RequestSettings,
    TranslationRequest,
    document_message,
    new_request_id,
    translation_message,
)
from dragoman.client.request_stream import RequestStream
from dragoman.client.results import DetectedLanguage, StreamAnswer, TranslatedSentence, TranslationResult
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

Response = TypeVar("Response")  # result of a call, or each item of its stream
Inject = Callable[[dict[str, str]], object]  # writes the trace context into a carrier, as OpenTelemetry's `inject` does


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Response]):
    """One call, ready to start."""

    request_id: str
    target: str

    start: Callable[[], Any] = field(repr=False)
    """Starts the call and returns the result of the stub: a response, a stream or an awaitable, by channel and method.

    Holds the metadata, including credentials, and is therefore never printed.
    """

    read: Callable[[Any], Response]  # converts one response
    stream: RequestStream | None = None  # requests of the call, if it sends a stream

    def stop_stream(self) -> None:
        """Stop sending requests."""
        if self.stream is not None:
            self.stream.stop()

    def raise_stream_error(self) -> None:
        """Raise the exception that the caller's requests raised, if any."""
        if self.stream is not None and self.stream.error is not None:
            raise self.stream.error


class Calls:
    """Builds the calls of one channel. Each method raises TypeError or ValueError for arguments that cannot be sent."""

    def __init__(
        self,
        channel: Any,
        *,
        target: str,
        timeout_s: float,
        stream_timeout_s: float | None,
        metadata: Metadata,
        check_metadata: Callable[[Metadata], None],
        check_usable: Callable[[], None],
    ) -> None:
        """Build calls over a channel.

        Args:
            channel: synchronous or asynchronous.
            target: address of the channel, for error messages.
            timeout_s: default deadline.
            stream_timeout_s: default deadline of documents and streams; None: none, the server limits their time.
            metadata: checked metadata of each call.
            check_metadata: raises a ValueError if the metadata of a call must not be sent over this channel.
            check_usable: raises a ValueError if no call may start, for example after the client was closed.

        Raises:
            ValueError: if `timeout_s` is not finite and above 0.
        """
        self._translation = pb_grpc.TranslationServiceStub(channel)
        self._models = pb_grpc.ModelServiceStub(channel)
        self._admin = pb_grpc.ModelAdminServiceStub(channel)
        self._target = target
        self._timeout_s = _checked_timeout(timeout_s)
        self._stream_timeout_s = stream_timeout_s
        self._check_metadata = check_metadata
        self._check_usable = check_usable
        self._metadata = tuple(metadata)
        self._inject = opentelemetry_inject()

    def translate(
        self,
        texts: Sequence[str],
        *,
        target_prefixes: Sequence[str] = (),
        pivot_languages: Sequence[str] = (),
        timeout_s: float | None = None,
        metadata: Metadata = (),
        **settings: Unpack[RequestSettings],
    ) -> Call[TranslationResult]:
        """Translate 1 to 128 texts. Either all of them are translated or the call fails.

        Args:
            texts: by default up to 10,000 characters each; use `translate_document` for longer texts.
            target_prefixes: start of each translation; empty, or one for each text.
            pivot_languages: intermediate languages to try, in this order, if no model translates directly.
            timeout_s: see the class.
            metadata: see the class.
            **settings: see `RequestSettings`; `target_language` is required.

        Raises:
            DragomanError: if the call does not end with OK.
            TypeError: if `texts` is one string or holds other types, or a setting has the wrong type.
            ValueError: if `timeout_s` is out of range, a setting is unknown or does not fit its wire type, or the
                client is closed.
        """
        request: TranslationRequest = {
            "texts": texts,
            "target_prefixes": target_prefixes,
            "pivot_languages": pivot_languages,
            **settings,
        }
        message = translation_message(request)
        method, read = self._translation.Translate, partial(from_message, TranslationResult)
        return self._call(method, message, read, timeout_s, metadata, request_id=message.request_id)

    def translate_document(
        self,
        text: str,
        *,
        timeout_s: float | None = None,
        metadata: Metadata = (),
        **settings: Unpack[RequestSettings],
    ) -> Call[TranslatedSentence]:
        """Translate one long text and yield its sentences in order, each as soon as it is finished.

        The `text` of all sentences joins to the translation. The call starts when the first sentence is requested;
        closing the generator cancels it. Sentences that have arrived remain valid if a later one fails.
        """
        message = document_message(text, settings)
        method, read = self._translation.TranslateDocument, partial(from_message, TranslatedSentence)
        return self._call(method, message, read, timeout_s, metadata, request_id=message.request_id, is_stream=True)

    def translate_stream(
        self, requests: RequestStream, timeout_s: float | None, metadata: Metadata
    ) -> Call[StreamAnswer]:
        """Translate a stream of requests, synchronous or asynchronous like the channel."""
        method = self._translation.TranslateStream
        return self._call(method, requests, read_stream_answer, timeout_s, metadata, stream=requests, is_stream=True)

    def detect_languages(
        self,
        texts: Sequence[str],
        *,
        target_language: str = "",
        timeout_s: float | None = None,
        metadata: Metadata = (),
    ) -> Call[tuple[tuple[DetectedLanguage, ...], ...]]:
        """Return the possible languages of each of 1 to 128 texts, most likely first; none for texts without letters.

        With `target_language`, languages that are translated into it count as served.
        """
        check_items("texts", texts, str)
        message = pb.DetectLanguageRequest(texts=texts, target_language=target_language)
        return self._call(self._translation.DetectLanguage, message, _detections, timeout_s, metadata)

    def list_models(self, *, timeout_s: float | None = None, metadata: Metadata = ()) -> Call[tuple[Model, ...]]:
        """Return all models of the server, sorted by name."""
        return self._call(self._models.ListModels, pb.ListModelsRequest(), _models, timeout_s, metadata)

    def list_glossaries(self, *, timeout_s: float | None = None, metadata: Metadata = ()) -> Call[tuple[Glossary, ...]]:
        """Return the glossaries that `DecodingOptions.glossary` can name, sorted by name."""
        return self._call(self._models.ListGlossaries, pb.ListGlossariesRequest(), _glossaries, timeout_s, metadata)

    def get_model(self, model: str, *, timeout_s: float | None = None, metadata: Metadata = ()) -> Call[Model]:
        """Return one model by `name`, or with one version by `name/version` or `name@label`."""
        return self._call(self._models.GetModel, pb.GetModelRequest(model=model), _model, timeout_s, metadata)

    def load_model(self, model: str, *, timeout_s: float | None = None, metadata: Metadata = ()) -> Call[Model]:
        """Load `name/version` from the model directory of the server. A version that is loaded stays as it is.

        Returns:
            The model with this version, which accepts requests.

        Raises:
            ModelNotFoundError: if the directory has no such version.
            ModelStateError: if the version is broken; the versions that were served before remain.
            DragomanError: if the call does not end with OK for another reason.
        """
        return self._call(self._admin.LoadModel, pb.LoadModelRequest(model=model), _model, timeout_s, metadata)

    def unload_model(self, model: str, *, timeout_s: float | None = None, metadata: Metadata = ()) -> Call[None]:
        """Unload `name/version`: it finishes its requests, accepts no new ones and releases its memory.

        Raises:
            ModelNotFoundError: if the version is not loaded.
            DragomanError: if the call does not end with OK for another reason.
        """
        return self._call(self._admin.UnloadModel, pb.UnloadModelRequest(model=model), _nothing, timeout_s, metadata)

    def set_model_label(
        self, model: str, label: str, *, timeout_s: float | None = None, metadata: Metadata = ()
    ) -> Call[Model]:
        """Let `name@label` select `name/version` until the server ends.

        Returns:
            The model with all its versions.

        Raises:
            ModelNotFoundError: if the version is not loaded.
            ValueError: if `model` has no version; `remove_model_label` takes a name alone.
            DragomanError: if the call does not end with OK for another reason.
        """
        if "/" not in model:
            raise ValueError(f"model is {model!r}, must be name/version")
        message = pb.SetModelLabelRequest(model=model, label=label)
        return self._call(self._admin.SetModelLabel, message, _model, timeout_s, metadata)

    def remove_model_label(
        self, name: str, label: str, *, timeout_s: float | None = None, metadata: Metadata = ()
    ) -> Call[Model]:
        """Remove a label of the model `name`, whichever version it points to.

        Returns:
            The model with all its versions.

        Raises:
            ModelNotFoundError: if the model does not exist.
            ValueError: if `name` has a version.
            DragomanError: if the call does not end with OK for another reason.
        """
        if "/" in name:
            raise ValueError(f"name is {name!r}, must be the name of a model without a version")
        message = pb.SetModelLabelRequest(model=name, label=label)
        return self._call(self._admin.SetModelLabel, message, _model, timeout_s, metadata)

    def _call(
        self,
        method: Any,
        message: Any,
        read: Callable[[Any], Response],
        timeout_s: float | None,
        metadata: Metadata,
        *,
        request_id: str = "",
        stream: RequestStream | None = None,
        is_stream: bool = False,
    ) -> Call[Response]:
        request_id = request_id or new_request_id()
        default_s = self._stream_timeout_s if is_stream else self._timeout_s
        timeout_s = default_s if timeout_s is None else _checked_timeout(timeout_s)
        own_metadata = checked_metadata(metadata)
        self._check_metadata(own_metadata)
        sent_metadata = (*self._metadata, *own_metadata, ("x-request-id", request_id))
        if not any(name == "traceparent" for name, _ in sent_metadata):
            sent_metadata += trace_metadata(self._inject)

        def start() -> Any:
            self._check_usable()
            return method(message, timeout=timeout_s, metadata=sent_metadata)

        return Call(request_id=request_id, target=self._target, start=start, read=read, stream=stream)


def opentelemetry_inject() -> Inject | None:
    """Return OpenTelemetry's function to inject trace contexts; None if it is not installed."""
    try:
        module = importlib.import_module("opentelemetry.propagate")
    except ImportError:
        return None
    inject: Inject = module.inject
    return inject


def trace_metadata(inject: Inject | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata that make a call part of the current trace; empty without one."""
    if inject is None:
        return ()
    carrier: dict[str, str] = {}
    inject(carrier)
    return tuple((name.lower(), value) for name, value in carrier.items())


def read_stream_answer(response: pb.TranslateResponse) -> StreamAnswer:
    """Convert a response of TranslateStream: a result or the error of one request."""
    if response.HasField("error"):
        error = error_from_status(response.error, response.request_id)
        return StreamAnswer(request_id=response.request_id, outcome=error)
    return StreamAnswer(request_id=response.request_id, outcome=from_message(TranslationResult, response))


def _detections(response: pb.DetectLanguageResponse) -> tuple[tuple[DetectedLanguage, ...], ...]:
    return tuple(
        tuple(from_message(DetectedLanguage, language) for language in detection.languages)
        for detection in response.detections
    )


def _models(response: pb.ListModelsResponse) -> tuple[Model, ...]:
    return tuple(from_message(Model, model) for model in response.models)


def _glossaries(response: pb.ListGlossariesResponse) -> tuple[Glossary, ...]:
    return tuple(from_message(Glossary, glossary) for glossary in response.glossaries)


def _model(response: pb.GetModelResponse | pb.LoadModelResponse | pb.SetModelLabelResponse) -> Model:
    return from_message(Model, response.model)


def _nothing(response: pb.UnloadModelResponse) -> None:  # noqa: ARG001 - the response is empty
    return None


def _checked_timeout(timeout_s: float) -> float:
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ValueError(f"timeout_s is {timeout_s}, must be finite and above 0")
    return timeout_s
