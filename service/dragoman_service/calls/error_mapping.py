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
from google.protobuf import duration, message
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
    metadata: Mapping[str, str]  # of the ErrorInfo
    violation: tuple[str, str] | None  # field of the request that is invalid, and why
    retry_delay_ms: int | None
    status: status_pb2.Status  # with all of the above as details

    @property
    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Metadata that sends the details to clients."""
        metadata: dict[str, str | bytes] = {"grpc-status-details-bin": self.status.SerializeToString()}
        if self.retry_delay_ms is not None:
            metadata["grpc-retry-pushback-ms"] = str(self.retry_delay_ms)
        return tuple(metadata.items())


def to_rpc_error(error: BaseException) -> RpcError:
    """Return the status of an error; an error that is not a DragomanError is internal."""
    row = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), _INTERNAL)
    text = _shortened(str(error)) if row.is_public else NEUTRAL_MESSAGE
    metadata: dict[str, str] = {}
    violation = retry_delay_ms = None
    if isinstance(error, errors.DeadlineExceededError):
        times = {"needed_s": error.needed_s, "allowed_s": error.allowed_s}
        metadata = {name: f"{time_s:.3f}" for name, time_s in times.items() if time_s is not None}
        metadata["stage"] = error.stage
    details: list[message.Message] = [error_details_pb2.ErrorInfo(reason=row.reason, domain=DOMAIN, metadata=metadata)]
    if isinstance(error, errors.RequestError):
        violation = (error.field, _shortened(error.description))
        details.append(
            error_details_pb2.BadRequest(
                field_violations=[{"field": violation[0], "description": violation[1], "reason": row.reason}]
            )
        )
    if isinstance(error, errors.RetryableError):
        retry_delay_ms = max(1, math.ceil(error.retry_after_s * 1000))  # with 0 ms, gRPC 1.85 waits for the deadline
        details.append(error_details_pb2.RetryInfo(retry_delay=duration.from_milliseconds(retry_delay_ms)))
    return RpcError(
        code=row.code,
        reason=row.reason,
        message=text,
        metadata=metadata,
        violation=violation,
        retry_delay_ms=retry_delay_ms,
        status=status_pb2.Status(code=row.code.value[0], message=text, details=map(proto_any.pack, details)),
    )


def _shortened(text: str) -> str:
    encoded = text.encode("utf-8", "replace")  # lone surrogates cannot be sent
    if len(encoded) <= _MAX_MESSAGE_BYTES:
        return encoded.decode("utf-8")
    return encoded[:_MAX_MESSAGE_BYTES].decode("utf-8", "ignore") + "…"
