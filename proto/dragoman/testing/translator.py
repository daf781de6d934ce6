"""The fake translator: answers each request at once, records it, and fails as the test demands."""

import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from dragoman.option_ranges import option_range
from dragoman.testing.failures import MODEL_NAME, Failure, SentenceFailures, fake_translation
from dragoman.v1 import translation_pb2 as pb

_VERSION = "1"
_SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s+\S)")
_SCORE = -0.5

_STATUSES: Mapping[str, tuple[grpc.StatusCode, str]] = {
    "overloaded": (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
    "rate-limited": (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED"),
    "unavailable": (grpc.StatusCode.UNAVAILABLE, "DRAINING"),
    "deadline": (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    "internal": (grpc.StatusCode.INTERNAL, "ENGINE_FAILED"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCall:
    """A request that a fake has received; a request of a stream is a call of its own."""

    method: str  # such as `Translate`
    request: Any  # message of `dragoman.v1.translation_pb2`
    timeout_s: float | None  # remaining time until the deadline
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Responses of a call after a delay, or an error."""

    responses: Sequence[Message] = ()
    status: status_pb2.Status | None = None  # None: no error
    retry_after_s: float | None = None
    delay_s: float = 0.0

    def in_stream(self, request: pb.TranslateRequest) -> Sequence[Message]:
        """Return the responses of a request of `TranslateStream`, whose error does not end the call."""
        if self.status is None:
            return self.responses
        return (pb.TranslateResponse(request_id=request.request_id, error=self.status),)

    @property
    def code(self) -> grpc.StatusCode:
        """Code of the status."""
        number = self.status.code if self.status else 0
        return next(code for code in grpc.StatusCode if code.value[0] == number)

    @property
    def message(self) -> str:
        """Message of the status."""
        return self.status.message if self.status else ""

    @property
    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Metadata with the details of the error, and the retry delay for gRPC."""
        if self.status is None:
            return ()
        pushback = (
            () if self.retry_after_s is None else (("grpc-retry-pushback-ms", f"{self.retry_after_s * 1000:.0f}"),)
        )
        return ("grpc-status-details-bin", self.status.SerializeToString()), *pushback


class _RejectedError(Exception):
    """The request is invalid."""

    def __init__(self, field: str, description: str, code: grpc.StatusCode, reason: str) -> None:
        super().__init__()
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=description, reason=reason)
        details = error_details_pb2.BadRequest(field_violations=[violation])
        self.status = _status(code, f"{field}: {description}", reason, details)


class FakeTranslator:
    """Behaviour of fake clients and fake servers, which can share one. Thread-safe."""

    def __init__(self, translate: Callable[[str, str], str] = fake_translation) -> None:
        """Translate sentences with a function of the sentence and the target language.

        The default returns `[de] Hello.` for `Hello.`.
        """
        self.calls: list[FakeCall] = []  # in the order of arrival
        self.detected_language = "en"  # of texts without a source language
        self._translate = translate
        self._planned: deque[Failure] = deque()
        self._of_sentences = SentenceFailures()
        self._lock = threading.Lock()

    def fail_next(self, failure: str) -> None:
        """Let a coming call fail, after the failures that are already planned.

        Args:
            failure: `overloaded`, `rate-limited`, `unavailable`, `deadline`, `internal` or `slow`, optionally with
                seconds (retry delay of the first two, delay of the answer of `slow`) and a number of calls:
                `overloaded 0.5 x2`.

        Raises:
            ValueError: if the failure has another form.
        """
        parsed = Failure.parse(failure)
        with self._lock:
            self._planned.extend([parsed] * (parsed.times or 1))

    def outcome(self, method: str, request: Any, *, timeout_s: float | None, metadata: Mapping[str, str]) -> Outcome:
        """Record a request and return its outcome. A delay ends at the deadline at the latest."""
        with self._lock:
            self.calls.append(FakeCall(method=method, request=request, timeout_s=timeout_s, metadata=metadata))
            failure = self._planned.popleft() if self._planned else None
        try:
            failure = failure or self._failure_of(request)
            if failure and failure.kind != "slow":
                return _failed(failure)
            responses = self._responses(method, request)
        except _RejectedError as error:
            return Outcome(status=error.status)
        delay_s = failure.seconds if failure else 0.0
        if timeout_s is not None and delay_s >= timeout_s:
            late = _failed(Failure(kind="deadline", seconds=0.0, times=None))
            return Outcome(status=late.status, delay_s=timeout_s)
        return Outcome(responses=responses, delay_s=delay_s)

    def _failure_of(self, request: Any) -> Failure | None:
        texts = getattr(request, "texts", None) or [getattr(request, "text", "")]
        try:
            failures = [self._of_sentences.next_failure(sentence) for text in texts for sentence in _sentences(text)]
        except ValueError as error:
            raise _invalid("texts", str(error)) from error
        return next((failure for failure in failures if failure), None)

    def _responses(self, method: str, request: Any) -> Sequence[Message]:
        match method:
            case "Translate" | "TranslateStream":
                return (self._translated(request),)
            case "TranslateDocument":
                return self._document(request)
            case "DetectLanguage":
                detection = pb.LanguageDetection(languages=[self._detected()])
                return (pb.DetectLanguageResponse(detections=[detection] * len(request.texts)),)
            case "ListModels":
                return (pb.ListModelsResponse(models=[self._model()]),)
            case "GetModel":
                if request.model.partition("/")[0].partition("@")[0] != MODEL_NAME:
                    fault = f"{request.model} is not served here; available: {MODEL_NAME}/{_VERSION}"
                    raise _RejectedError("model", fault, grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
                return (pb.GetModelResponse(model=self._model()),)
            case "ListGlossaries":
                return (pb.ListGlossariesResponse(),)
        raise _RejectedError(
            method, "is not implemented by the fake", grpc.StatusCode.UNIMPLEMENTED, "UNSUPPORTED_FIELD"
        )

    def _translated(self, request: pb.TranslateRequest) -> pb.TranslateResponse:
        texts = option_range("texts")
        if not texts.min_items <= len(request.texts) <= (texts.max_items or len(request.texts)):
            raise _invalid("texts", f"is a list of {len(request.texts)}, must be {texts.description}")
        _check_target(request)
        return pb.TranslateResponse(
            translations=[self._translation(text, request.target_language) for text in request.texts],
            model_name=MODEL_NAME,
            model_version=_VERSION,
            num_source_tokens=sum(map(_num_words, request.texts)),
            num_target_tokens=sum(map(_num_words, request.texts)),
            request_id=request.request_id,
            detected_language=None if request.source_language else self._detected(),
        )

    def _document(self, request: pb.TranslateDocumentRequest) -> Sequence[Message]:
        _check_target(request)
        return [
            pb.TranslatedSentence(
                index=index,
                text=self._marked(sentence, request.target_language),
                hypotheses=self._translation(sentence.strip(), request.target_language).hypotheses,
                model_name=MODEL_NAME,
                model_version=_VERSION,
                request_id=request.request_id,
                detected_language=None if request.source_language else self._detected(),
            )
            for index, sentence in enumerate(_sentences(request.text))
        ]

    def _translation(self, text: str, target_language: str) -> pb.Translation:
        translated = "".join(self._marked(sentence, target_language) for sentence in _sentences(text))
        num_tokens = _num_words(text)
        sentence = pb.Sentence(
            source=pb.Span(end=len(text)),
            target=pb.Span(end=len(translated)),
            num_source_tokens=num_tokens,
            num_target_tokens=num_tokens,
        )
        return pb.Translation(hypotheses=[pb.Hypothesis(text=translated, score=_SCORE)], sentences=[sentence])

    def _marked(self, sentence: str, target_language: str) -> str:
        # White space around a sentence is preserved.
        core = sentence.strip()
        return sentence.replace(core, self._translate(core, target_language), 1) if core else sentence

    def _detected(self) -> pb.DetectedLanguage:
        return pb.DetectedLanguage(language=self.detected_language, confidence=1.0, is_served=True)

    def _model(self) -> pb.Model:
        version = pb.ModelVersion(version=_VERSION, state=pb.MODEL_STATE_READY, is_default=True)
        return pb.Model(name=MODEL_NAME, versions=[version])


def _sentences(text: str) -> list[str]:
    return _SENTENCE_END.split(text)


def _num_words(text: str) -> int:
    return len(text.split()) + 1  # and the end of the sentence


def _check_target(request: Any) -> None:
    if not request.target_language:
        raise _invalid("target_language", "is '', must be a BCP-47 tag, such as `en` or `pt-BR`")


def _invalid(field: str, description: str) -> _RejectedError:
    return _RejectedError(field, description, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")


def _failed(failure: Failure) -> Outcome:
    code, reason = _STATUSES[failure.kind]
    message = f"failure {failure.kind!r} injected by a test"
    if code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Outcome(status=_status(code, message, reason))
    delay = duration_pb2.Duration()
    delay.FromMilliseconds(max(1, round(failure.seconds * 1000)))  # with 0 ms, gRPC waits for the deadline
    details = error_details_pb2.RetryInfo(retry_delay=delay)
    return Outcome(status=_status(code, message, reason, details), retry_after_s=delay.ToMilliseconds() / 1000)


def _status(code: grpc.StatusCode, message: str, reason: str, *details: Message) -> status_pb2.Status:
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in (error_details_pb2.ErrorInfo(reason=reason, domain="dragoman"), *details):
        status.details.add().Pack(detail)
    return status
