"""The contract as a load test speaks it: requests as bytes, made beforehand, and what an answer means."""

import enum
import random
from collections.abc import Sequence
from typing import Any, Final

import grpc
from dragoman.v1 import translation_pb2 as pb
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from loadtests import sentences

TRANSLATE: Final = "/dragoman.v1.TranslationService/Translate"
TRANSLATE_DOCUMENT: Final = "/dragoman.v1.TranslationService/TranslateDocument"
TRANSLATE_STREAM: Final = "/dragoman.v1.TranslationService/TranslateStream"

_PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"


class Outcome(enum.Enum):
    """What became of a call."""

    ANSWERED = "answered"
    REJECTED = "rejected"
    """Refused before any work, with the reason and, if waiting helps, the time to come back."""

    LATE = "late"
    """Taken, and not answered before its deadline."""

    ERROR = "error"


def translate_requests(seed: int, *, count: int, texts: int) -> list[bytes]:
    """Return so many different requests from English to German, each with so many sentences."""
    generator = random.Random(seed)
    return [
        pb.TranslateRequest(
            texts=sentences.sample(generator, texts), source_language="en", target_language="de"
        ).SerializeToString()
        for _ in range(count)
    ]


class Requests:
    """Requests of every method, made beforehand; numbers choose among them."""

    def __init__(self, seed: int, *, count: int = 64) -> None:
        self._unary = translate_requests(seed, count=count, texts=2)
        generator = random.Random(seed)
        self._documents = [_document(generator) for _ in range(count)]
        self._streams = [[_named(generator, f"r-{index}") for index in range(3)] for _ in range(count)]

    def unary(self, number: int) -> bytes:
        """Return a request of two sentences."""
        return self._unary[number % len(self._unary)]

    def document(self, number: int) -> bytes:
        """Return a document of six sentences."""
        return self._documents[number % len(self._documents)]

    def stream(self, number: int) -> list[bytes]:
        """Return what is sent over one stream: three requests of a sentence each."""
        return self._streams[number % len(self._streams)]


def _document(generator: random.Random) -> bytes:
    text = " ".join(sentences.sample(generator, 6))
    return pb.TranslateDocumentRequest(text=text, source_language="en", target_language="de").SerializeToString()


def _named(generator: random.Random, request_id: str) -> bytes:
    return pb.TranslateRequest(
        texts=sentences.sample(generator, 1), source_language="en", target_language="de", request_id=request_id
    ).SerializeToString()


def outcome(call: Any) -> tuple[Outcome, str]:
    """Return what became of a finished call, and the status that says so.

    Args:
        call: a `grpc.Future` that is done.
    """
    code = call.code()
    if code is grpc.StatusCode.OK:
        return Outcome.ANSWERED, code.name
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return (Outcome.REJECTED, code.name) if _says_when(call) else (Outcome.ERROR, f"{code.name} without a time")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        stage = _stage(call)
        return Outcome.REJECTED if stage == "admission" else Outcome.LATE, f"{code.name} {stage or 'at the caller'}"
    return Outcome.ERROR, code.name


def _says_when(call: Any) -> bool:
    """Tell whether a refusal says when to come back, in both places that clients look at."""
    has_pushback = any(key == _PUSHBACK_KEY for key, _ in call.trailing_metadata() or ())
    return has_pushback and any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in _details(call))


def _stage(call: Any) -> str:
    """Return where the server says that time ran out; empty if the caller's own clock said so."""
    info = error_details_pb2.ErrorInfo()
    any(detail.Unpack(info) for detail in _details(call))
    stage: str = info.metadata.get("stage", "")
    return stage


def _details(call: Any) -> Sequence[Any]:
    status = rpc_status.from_call(call)
    return status.details if status else ()
