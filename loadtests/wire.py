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
    REJECTED = "rejected"
    """Rejected before any work, with the reason and, if waiting helps, the time after which to retry."""

    LATE = "late"
    """Taken, and not answered before its deadline."""

    LEFT = "left"
    """Left by its caller before the answer, as the caller had meant to."""

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
    """Of grpc.health.v1."""

    @property
    def path(self) -> str:
        """How gRPC names it."""
        return f"/{_SERVICES.get(self, _TRANSLATION_SERVICE)}/{self.value}"

    @property
    def translates(self) -> bool:
        """Whether it carries text."""
        return self not in _SERVICES

    @property
    def needs_admin(self) -> bool:
        """Whether it changes what the server translates with."""
        return self in {Method.LOAD_MODEL, Method.UNLOAD_MODEL, Method.SET_MODEL_LABEL}


_TRANSLATION_SERVICE: Final = "dragoman.v1.TranslationService"
_SERVICES: Final = {
    Method.LIST_MODELS: "dragoman.v1.ModelService",
    Method.GET_MODEL: "dragoman.v1.ModelService",
    Method.LOAD_MODEL: "dragoman.v1.ModelAdminService",
    Method.UNLOAD_MODEL: "dragoman.v1.ModelAdminService",
    Method.SET_MODEL_LABEL: "dragoman.v1.ModelAdminService",
    Method.CHECK: "grpc.health.v1.Health",
}
TRANSLATE: Final = Method.TRANSLATE.path
TRANSLATE_DOCUMENT: Final = Method.TRANSLATE_DOCUMENT.path
TRANSLATE_STREAM: Final = Method.TRANSLATE_STREAM.path


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
    """Return what became of a finished call, and the status that says so.

    Args:
        call: a `grpc.Future` that is done.
    """
    code = call.code()
    if code is grpc.StatusCode.OK:
        return Outcome.ANSWERED, code.name
    status = rpc_status.from_call(call)
    has_pushback = any(key == _PUSHBACK_KEY for key, _ in call.trailing_metadata() or ())
    return _refusal(code, status.details if status else (), has_pushback=has_pushback)


def outcome_within_stream(error: Any) -> tuple[Outcome, str]:
    """Return what became of a request of a stream whose call went on.

    Args:
        error: `TranslateResponse.error`, a `google.rpc.Status`.
    """
    codes = {code.value[0]: code for code in grpc.StatusCode}
    return _refusal(codes.get(error.code, grpc.StatusCode.UNKNOWN), error.details, has_pushback=True)


def _refusal(code: grpc.StatusCode, details: Sequence[Any], *, has_pushback: bool) -> tuple[Outcome, str]:
    """Tell a refusal in time, one that came too late, and a fault apart."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        says_when = has_pushback and any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in details)
        return (Outcome.REJECTED, code.name) if says_when else (Outcome.ERROR, f"{code.name} without a time")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        stage = _stage(details)
        return Outcome.REJECTED if stage == "admission" else Outcome.LATE, f"{code.name} {stage or 'at the caller'}"
    return Outcome.ERROR, code.name


def _stage(details: Sequence[Any]) -> str:
    """Return where the server says that time ran out; empty if the caller's own clock said so."""
    info = error_details_pb2.ErrorInfo()
    any(detail.Unpack(info) for detail in details)
    stage: str = info.metadata.get("stage", "")
    return stage
