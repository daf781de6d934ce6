"""The table of errors and gRPC statuses, with error details (google.rpc error model).

Every status has an ErrorInfo with a stable reason. An error in the request adds the field (BadRequest). A rejection
adds the retry delay (RetryInfo, and `grpc-retry-pushback-ms` for the retry policy of gRPC). Internal errors have a
neutral message; their details are in the log.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import grpc
from google.protobuf import any as proto_any
from google.protobuf import any_pb2, duration, message
from google.rpc import error_details_pb2, status_pb2

from dragoman_service import errors

DOMAIN = "dragoman"  # of every ErrorInfo

NEUTRAL_MESSAGE = "internal error; the server's log has the details"

# Clients accept 8 KiB of metadata by default, which contain the message up to three times, once percent-encoded.
_MAX_MESSAGE_BYTES = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Status of one class of errors."""

    code: grpc.StatusCode
    reason: str  # stable name in the ErrorInfo, listed at the head of translation.proto
    is_public: bool = True  # whether the caller gets the message of the error


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
    errors.QueueDelayError: Row(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="OVERLOADED"),
    errors.StartingError: Row(code=grpc.StatusCode.UNAVAILABLE, reason="STARTING"),
    errors.DrainingError: Row(code=grpc.StatusCode.UNAVAILABLE, reason="DRAINING"),
    errors.DeadlineExceededError: Row(code=grpc.StatusCode.DEADLINE_EXCEEDED, reason="DEADLINE_EXCEEDED"),
    errors.IdleError: Row(code=grpc.StatusCode.DEADLINE_EXCEEDED, reason="DEADLINE_EXCEEDED"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcError:
    """The status of a failed call."""

    code: grpc.StatusCode
    reason: str
    message: str
    status: status_pb2.Status  # with code, message and details

    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def to_rpc_error(error: BaseException) -> RpcError:
    """Return the status of an error; an error that is not a DragomanError is internal."""
    row = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), _INTERNAL)
    text = _shortened(str(error)) if row.is_public else NEUTRAL_MESSAGE
    status = status_pb2.Status(code=row.code.value[0], message=text, details=_details(error, row))
    trailing: tuple[tuple[str, str | bytes], ...] = (("grpc-status-details-bin", status.SerializeToString()),)
    if isinstance(error, errors.RetryableError):
        trailing += (("grpc-retry-pushback-ms", str(_milliseconds(error.retry_after_s))),)
    return RpcError(code=row.code, reason=row.reason, message=text, status=status, trailing_metadata=trailing)


def _details(error: BaseException, row: Row) -> list[any_pb2.Any]:
    details: list[message.Message] = [
        error_details_pb2.ErrorInfo(reason=row.reason, domain=DOMAIN, metadata=_metadata(error))
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


def _metadata(error: BaseException) -> dict[str, str]:
    if not isinstance(error, errors.DeadlineExceededError):
        return {}
    times = {"needed_s": error.needed_s, "allowed_s": error.allowed_s}
    return {"stage": error.stage, **{name: f"{time_s:.3f}" for name, time_s in times.items() if time_s is not None}}


def _milliseconds(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))  # after a pushback of 0 ms, gRPC 1.85 waits for the deadline


def _shortened(text: str) -> str:
    encoded = text.encode("utf-8", "replace")  # lone surrogates cannot be sent
    if len(encoded) <= _MAX_MESSAGE_BYTES:
        return encoded.decode("utf-8")
    return encoded[:_MAX_MESSAGE_BYTES].decode("utf-8", "ignore") + "…"
