"""The contract as a load test speaks it: requests as bytes, made beforehand, and what an answer means."""

import enum
import random
from collections.abc import Sequence
from typing import Any, Final

import grpc
from dragoman.v1 import translation_pb2 as pb
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from loadtests import texts as sentences

_PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"


class Outcome(enum.Enum):
    """What became of a call."""

    ANSWERED = "answered"
    REJECTED = "rejected"  # before any work, with the reason and, if waiting helps, the time after which to retry
    LATE = "late"  # taken, and not answered before its deadline
    LEFT = "left"  # by its caller before the answer, as the caller had meant to
    ERROR = "error"


class Method(enum.Enum):
    """What can be called, by the name of the method without its service."""

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
        """Whether it carries text."""
        return self in {Method.TRANSLATE, Method.TRANSLATE_DOCUMENT, Method.TRANSLATE_STREAM}

    @property
    def needs_admin(self) -> bool:
        """Whether it changes what the server translates with."""
        return self in {Method.LOAD_MODEL, Method.UNLOAD_MODEL, Method.SET_MODEL_LABEL}

    @property
    def path(self) -> str:
        """How gRPC names it."""
        if self is Method.CHECK:
            return "/grpc.health.v1.Health/Check"
        service = "Translation" if self.translates else "ModelAdmin" if self.needs_admin else "Model"
        return f"/dragoman.v1.{service}Service/{self.value}"


def translate_requests(seed: int, *, count: int, texts: int) -> list[bytes]:
    """Return so many different requests from English to German, each with so many sentences."""
    generator = random.Random(seed)
    return [
        pb.TranslateRequest(
            texts=sentences.sample(generator, texts), source_language="en", target_language="de"
        ).SerializeToString()
        for _ in range(count)
    ]


def outcome(call: Any) -> tuple[Outcome, str]:
    """Return what became of a finished call, a `grpc.Future` that is done, and the status that says so."""
    if call.code() is grpc.StatusCode.OK:
        return Outcome.ANSWERED, call.code().name
    status = rpc_status.from_call(call)
    has_pushback = any(key == _PUSHBACK_KEY for key, _ in call.trailing_metadata() or ())
    return _refusal(call.code(), status.details if status else (), has_pushback=has_pushback)


def outcome_within_stream(error: Any) -> tuple[Outcome, str]:
    """Return what became of a request of a stream whose call went on, by the `google.rpc.Status` in its answer."""
    codes = {code.value[0]: code for code in grpc.StatusCode}
    return _refusal(codes.get(error.code, grpc.StatusCode.UNKNOWN), error.details, has_pushback=True)


def _refusal(code: grpc.StatusCode, details: Sequence[Any], *, has_pushback: bool) -> tuple[Outcome, str]:
    """Tell a refusal in time, one that came too late, and a fault apart."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        says_when = has_pushback and any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in details)
        return (Outcome.REJECTED, code.name) if says_when else (Outcome.ERROR, f"{code.name} without a time")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        info = error_details_pb2.ErrorInfo()
        any(detail.Unpack(info) for detail in details)
        stage = info.metadata.get("stage", "")  # empty if the caller's own clock said so
        return Outcome.REJECTED if stage == "admission" else Outcome.LATE, f"{code.name} {stage or 'at the caller'}"
    return Outcome.ERROR, code.name
