"""What came back for an input: plain values, read from a finished call."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What the details of a status say."""

    reason: str = ""
    domain: str = ""
    fields: tuple[str, ...] = ()
    message: str = ""
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one input."""

    status: str
    """Name; `LEFT` if the caller left as planned."""

    seconds: float
    responses: Sequence[Message] = ()
    refusal: Refusal = Refusal()
    neighbours: Sequence[Message] = ()
    """In a stream, the answers to the ordinary requests before and after it."""

    call_status: str = ""
    """Of the whole call, if it is not that of the input."""

    num_repeats: int = 0
    """How often the server was too busy and asked to come back."""


def refusal_of_call(call: Any) -> Refusal:
    """Return what a finished call was refused for; empty if gRPC itself refused it."""
    status = rpc_status.from_call(call)
    return Refusal(message=call.details() or "") if status is None else refusal_of_status(status)


def refusal_of_status(status: status_pb2.Status) -> Refusal:
    """Return what a status says in its details."""
    info, bad_request, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    _unpack(status.details, (info, bad_request, retry))
    return Refusal(
        reason=info.reason,
        domain=info.domain,
        fields=tuple(violation.field for violation in bad_request.field_violations),
        message=status.message,
        retry_after_s=retry.retry_delay.ToMilliseconds() / 1000,
    )


def serialized_translations(raw_response: bytes) -> list[bytes]:
    """Return the translations of an answer, to be compared bit for bit."""
    response = pb.TranslateResponse.FromString(raw_response)
    return [translation.SerializeToString(deterministic=True) for translation in response.translations]


def _unpack(details: Iterable[Any], messages: Sequence[Message]) -> None:
    for detail in details:
        for message in messages:
            detail.Unpack(message)
