"""Error to gRPC status: one table, and the details that let a client act on it (google.rpc error model).

Every status carries an ErrorInfo with a reason that programs may rely on. An error of the caller adds the field
(BadRequest), a rejection for load says when to retry (RetryInfo, and `grpc-retry-pushback-ms`, which gRPC's own retry
policy obeys). Errors that are the server's fault show a neutral message; their details are for the log.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import grpc
from google.protobuf import any as proto_any
from google.protobuf import any_pb2, duration, message
from google.rpc import error_details_pb2, status_pb2

from dragoman_service import errors

DOMAIN = "dragoman"
"""Domain of every ErrorInfo."""

NEUTRAL_MESSAGE = "internal error; the server's log has the details"

_MAX_MESSAGE_BYTES = 800
"""Clients take 8 KiB of metadata by default; the message is in it up to three times, percent-encoded once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How one class of errors is answered."""

    code: grpc.StatusCode
    reason: str
    """Stable name for programs, in the ErrorInfo; listed at the head of translation.proto."""

    is_public: bool = True
    """True if the caller may see the error's own message."""


_INTERNAL = Row(code=grpc.StatusCode.INTERNAL, reason="ENGINE_FAILED", is_public=False)

TABLE: Mapping[type[errors.DragomanError], Row] = {
    errors.DragomanError: _INTERNAL,
    errors.ConfigError: _INTERNAL,
    errors.BundleError: _INTERNAL,
    errors.EngineError: _INTERNAL,
    errors.RequestError: Row(code=grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_FIELD"),
    errors.InvalidFieldError: Row(code=grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_FIELD"),
    errors.UnsupportedFieldError: Row(code=grpc.StatusCode.UNIMPLEMENTED, reason="UNSUPPORTED_FIELD"),
    errors.ModelNotFoundError: Row(code=grpc.StatusCode.NOT_FOUND, reason="MODEL_NOT_FOUND"),
    errors.GlossaryNotFoundError: Row(code=grpc.StatusCode.NOT_FOUND, reason="GLOSSARY_NOT_FOUND"),
    errors.ModelStateError: Row(code=grpc.StatusCode.FAILED_PRECONDITION, reason="MODEL_STATE"),
    errors.UnauthenticatedError: Row(code=grpc.StatusCode.UNAUTHENTICATED, reason="UNAUTHENTICATED"),
    errors.PermissionDeniedError: Row(code=grpc.StatusCode.PERMISSION_DENIED, reason="PERMISSION_DENIED"),
    errors.RetryableError: Row(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="OVERLOADED"),
    errors.RateLimitedError: Row(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="RATE_LIMITED"),
    errors.OverloadedError: Row(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="OVERLOADED"),
    errors.StartingError: Row(code=grpc.StatusCode.UNAVAILABLE, reason="STARTING"),
    errors.DrainingError: Row(code=grpc.StatusCode.UNAVAILABLE, reason="DRAINING"),
    errors.DeadlineExceededError: Row(code=grpc.StatusCode.DEADLINE_EXCEEDED, reason="DEADLINE_EXCEEDED"),
    errors.IdleError: Row(code=grpc.StatusCode.DEADLINE_EXCEEDED, reason="DEADLINE_EXCEEDED"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A failed call as gRPC sends it."""

    code: grpc.StatusCode
    reason: str
    message: str
    status: status_pb2.Status
    """The whole answer, with its details."""

    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def answer(error: BaseException) -> Answer:
    """Return the status of an error; what is not of the tree is the server's fault."""
    row = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), _INTERNAL)
    text = _shortened(str(error)) if row.is_public else NEUTRAL_MESSAGE
    status = status_pb2.Status(code=row.code.value[0], message=text, details=_details(error, row))
    trailing: tuple[tuple[str, str | bytes], ...] = (("grpc-status-details-bin", status.SerializeToString()),)
    if isinstance(error, errors.RetryableError):
        trailing += (("grpc-retry-pushback-ms", str(_milliseconds(error.retry_after_s))),)
    return Answer(code=row.code, reason=row.reason, message=text, status=status, trailing_metadata=trailing)


def _details(error: BaseException, row: Row) -> list[any_pb2.Any]:
    details: list[message.Message] = [
        error_details_pb2.ErrorInfo(reason=row.reason, domain=DOMAIN, metadata=_facts(error))
    ]
    if isinstance(error, errors.RequestError):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=_shortened(error.description), reason=row.reason
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, errors.RetryableError):
        delay = duration.from_milliseconds(_milliseconds(error.retry_after_s))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return [proto_any.pack(detail) for detail in details]


def _facts(error: BaseException) -> dict[str, str]:
    """Return what the `metadata` of ErrorInfo says beyond the reason."""
    if not isinstance(error, errors.DeadlineExceededError):
        return {}
    times = {"needed_s": error.needed_s, "allowed_s": error.allowed_s}
    return {"stage": error.stage, **{name: f"{time_s:.3f}" for name, time_s in times.items() if time_s is not None}}


def _milliseconds(seconds: float) -> int:
    """At least 1: after a pushback of 0 ms a client of gRPC (seen in 1.85) waits for its deadline instead."""
    return max(1, math.ceil(seconds * 1000))


def _shortened(text: str) -> str:
    """Values of the caller may be megabytes, and a lone surrogate cannot be sent."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= _MAX_MESSAGE_BYTES:
        return encoded.decode("utf-8")
    return encoded[:_MAX_MESSAGE_BYTES].decode("utf-8", "ignore") + "…"
