"""gRPC methods, planned calls, and their outcomes."""

import enum
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator import texts as sentences

WRONG_ANSWER: Final = "WRONG_ANSWER"  # in place of OK if a response has the wrong content
_PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
_DETAILS_KEY: Final = "grpc-status-details-bin"  # sent with every status that the server itself chose
_MAX_MESSAGE_CHARACTERS: Final = 160


class Outcome(enum.Enum):
    """Outcome of a call."""

    ANSWERED = "answered"
    REJECTED = "rejected"  # before any work, with the reason and, if a retry helps, a retry delay
    LATE = "late"  # accepted, but not answered before the deadline
    LEFT = "left"  # cancelled by the client as planned
    ERROR = "error"


class Method(enum.Enum):
    """gRPC methods, without their service."""

    TRANSLATE = "Translate"
    TRANSLATE_DOCUMENT = "TranslateDocument"
    TRANSLATE_STREAM = "TranslateStream"
    LIST_MODELS = "ListModels"
    GET_MODEL = "GetModel"
    LOAD_MODEL = "LoadModel"
    UNLOAD_MODEL = "UnloadModel"
    SET_MODEL_LABEL = "SetModelLabel"
    CHECK = "Check"

    @property
    def translates(self) -> bool:
        """Return whether requests contain text."""
        return self in {Method.TRANSLATE, Method.TRANSLATE_DOCUMENT, Method.TRANSLATE_STREAM}

    @property
    def needs_admin(self) -> bool:
        """Return whether the method belongs to ModelAdminService."""
        return self in {Method.LOAD_MODEL, Method.UNLOAD_MODEL, Method.SET_MODEL_LABEL}

    @property
    def streams_responses(self) -> bool:
        """Return whether the response is a stream."""
        return self in {Method.TRANSLATE_DOCUMENT, Method.TRANSLATE_STREAM}

    @property
    def path(self) -> str:
        """Path of the HTTP/2 request."""
        if self is Method.CHECK:
            return "/grpc.health.v1.Health/Check"
        service = "Translation" if self.translates else "ModelAdmin" if self.needs_admin else "Model"
        return f"/dragoman.v1.{service}Service/{self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A call, ready to be sent; times count from its scheduled time."""

    method: Method
    messages: tuple[bytes, ...]  # one request, except for a stream of requests
    timeout_s: float
    leave_after_s: float | None = None  # when the client cancels; None: it waits for the response
    profile: str = ""
    num_texts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A finished call as the client sees it; times in seconds on `time.monotonic()`."""

    status: str
    message: str = ""
    is_from_server: bool = True  # False: the gRPC library of the client chose the status
    messages: tuple[bytes, ...] = ()
    began_s: float = 0.0
    first_s: float | None = None  # first message
    ended_s: float = 0.0
    lag_s: float = 0.0  # delay of the client itself, if `began_s` is the scheduled time

    @property
    def latency_s(self) -> float:
        """Time that the client waited."""
        return self.ended_s - self.began_s

    def unless(self, is_right: bool, otherwise: str) -> "Reply":
        """Return this reply, or one with the status WRONG_ANSWER if the call succeeded with the wrong content."""
        return self if is_right or self.status != "OK" else replace(self, status=WRONG_ANSWER, message=otherwise)


def read_reply(
    call: Any, *, began_s: float, on_first: Callable[[], object] = lambda: None, is_stream: bool = True
) -> Reply:
    """Wait for the end of a call; `on_first` is called with the first message of a stream."""
    messages, first_s = list[bytes](), None
    if is_stream:
        with suppress(grpc.RpcError):  # the status is read below
            for message in call:
                messages.append(message)
                if first_s is None:
                    first_s = time.monotonic()
                    on_first()
    elif call.code() is grpc.StatusCode.OK:
        messages.append(call.result())
    status, ended_s = call.code().name, time.monotonic()
    has_details = any(key == _DETAILS_KEY for key, _ in call.trailing_metadata() or ())
    return Reply(
        status=status,
        message=(call.details() or "")[:_MAX_MESSAGE_CHARACTERS],
        is_from_server=status == "OK" or (has_details and status != "CANCELLED"),
        messages=tuple(messages),
        began_s=began_s,
        first_s=first_s,
        ended_s=ended_s,
    )


def translate_requests(seed: int, *, count: int, texts: int) -> list[bytes]:
    """Return distinct Translate requests from English to German with `texts` sentences each."""
    generator = random.Random(seed)
    return [
        pb.TranslateRequest(
            texts=sentences.sample(generator, texts), source_language="en", target_language="de"
        ).SerializeToString()
        for _ in range(count)
    ]


def outcome_of_call(call: Any) -> tuple[Outcome, str]:
    """Return the outcome of a finished gRPC call and its status in words."""
    if call.code() is grpc.StatusCode.OK:
        return Outcome.ANSWERED, call.code().name
    status = rpc_status.from_call(call)
    has_pushback = any(key == _PUSHBACK_KEY for key, _ in call.trailing_metadata() or ())
    return _outcome_of_error(call.code(), status.details if status else (), has_pushback=has_pushback)


def outcome_within_stream(error: Any) -> tuple[Outcome, str]:
    """Return the outcome of one request of a stream that was answered with a `google.rpc.Status`."""
    codes = {code.value[0]: code for code in grpc.StatusCode}
    return _outcome_of_error(codes.get(error.code, grpc.StatusCode.UNKNOWN), error.details, has_pushback=True)


def _outcome_of_error(code: grpc.StatusCode, details: Sequence[Any], *, has_pushback: bool) -> tuple[Outcome, str]:
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        has_delay = has_pushback and any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in details)
        return (Outcome.REJECTED, code.name) if has_delay else (Outcome.ERROR, f"{code.name} without retry delay")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        info = error_details_pb2.ErrorInfo()
        any(detail.Unpack(info) for detail in details)
        stage = info.metadata.get("stage", "")  # empty if the client's clock ended the call
        return Outcome.REJECTED if stage == "admission" else Outcome.LATE, f"{code.name} {stage or 'at the client'}"
    return Outcome.ERROR, code.name
