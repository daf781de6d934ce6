"""Errors of calls. The reason in a gRPC status selects the class; without a reason, its code does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

_DOMAIN = "dragoman"  # of an ErrorInfo of a Dragoman server; proxies add their own


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldViolation:
    """A problem with one field of a request."""

    field: str  # path such as `options.beam_size` or `texts[3]`
    description: str  # the value and the valid range, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetails:
    """Details of an error in addition to code and message."""

    reason: str = ""  # such as `MODEL_NOT_FOUND`; empty if gRPC or a proxy created the status
    metadata: Mapping[str, str] = field(default_factory=dict)  # further information about `reason`
    field_violations: tuple[FieldViolation, ...] = ()  # the fields to change
    retry_after_s: float | None = None  # delay after which the same request may succeed; None: unknown


class DragomanError(Exception):
    """A call did not end with OK. Base class of all errors."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        request_id: str,
        details: ErrorDetails = ErrorDetails(),
    ) -> None:
        """Store code, message and details of the call `request_id`."""
        super().__init__(f"{code.name}: {message} (request {request_id})")
        self.code = code
        self.message = message
        self.request_id = request_id
        self.reason = details.reason
        self.metadata = details.metadata
        self.field_violations = details.field_violations
        self.retry_after_s = details.retry_after_s
        self._details = details

    @property
    def fields(self) -> tuple[str, ...]:
        """Paths of the fields to change, such as `options.beam_size`; empty if the request did not cause the error."""
        return tuple(violation.field for violation in self.field_violations)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.code, self.message, self.request_id, self._details)


class InvalidRequestError(DragomanError):
    """The request must change."""


class InvalidFieldError(InvalidRequestError):
    """A field has a value that is never valid; see `field_violations`."""


class ModelStateError(InvalidRequestError):
    """The state of the model does not allow the call; the message has the reason."""


class UnsupportedError(DragomanError):
    """The server does not implement a field or method; see `field_violations`."""


class ModelNotFoundError(DragomanError):
    """The model, version, language pair or glossary does not exist; `field_violations` lists the existing ones."""


class AccessError(DragomanError):
    """The credential is missing or insufficient."""


class UnauthenticatedError(AccessError):
    """The API key is missing or unknown."""


class PermissionDeniedError(AccessError):
    """The API key does not allow the method."""


class ExhaustedError(DragomanError):
    """A message exceeds a size limit, or a quota of a proxy is exhausted."""


class OverloadedError(ExhaustedError):
    """The queue is full or too long for the deadline; the same request may succeed after `retry_after_s`."""


class RateLimitedError(ExhaustedError):
    """The API key has exhausted its quota; it may call again after `retry_after_s`."""


class UnavailableError(DragomanError):
    """No replica can be reached, or the replica accepts no requests."""


class DrainingError(UnavailableError):
    """The replica is shutting down; another may answer immediately."""


class StartingError(UnavailableError):
    """The replica is loading its models."""


class DeadlineExceededError(DragomanError):
    """The deadline passed before the answer."""

    @property
    def stage(self) -> str | None:
        """Stage of the deadline: `text`, `admission`, `queue`, `decode`; None if the server did not answer in time."""
        return self.metadata.get("stage")

    @property
    def needed_s(self) -> float | None:
        """Expected duration of a request that was rejected because of it; None for other requests."""
        return self._seconds("needed_s")

    @property
    def allowed_s(self) -> float | None:
        """Time that remained until the deadline of such a request; None for other requests."""
        return self._seconds("allowed_s")

    def _seconds(self, name: str) -> float | None:
        try:
            return float(self.metadata[name])
        except (KeyError, ValueError):
            return None


class CallCancelledError(DragomanError):
    """The call was cancelled, for example because the client was closed."""


class ServerError(DragomanError):
    """The server failed (every other status)."""


class EngineError(ServerError):
    """Encoding or decoding failed; the server's log has the details."""


CODE_CLASSES: Mapping[grpc.StatusCode, type[DragomanError]] = MappingProxyType(
    {
        grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
        grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
        grpc.StatusCode.FAILED_PRECONDITION: InvalidRequestError,
        grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
        grpc.StatusCode.NOT_FOUND: ModelNotFoundError,
        grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
        grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
        grpc.StatusCode.RESOURCE_EXHAUSTED: ExhaustedError,
        grpc.StatusCode.UNAVAILABLE: UnavailableError,
        grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
        grpc.StatusCode.CANCELLED: CallCancelledError,
    }
)
"""Class of each status without a reason; others are a `ServerError`."""

REASON_CLASSES: Mapping[str, type[DragomanError]] = MappingProxyType(
    {
        "INVALID_FIELD": InvalidFieldError,
        "MODEL_STATE": ModelStateError,
        "UNSUPPORTED_FIELD": UnsupportedError,
        "MODEL_NOT_FOUND": ModelNotFoundError,
        "GLOSSARY_NOT_FOUND": ModelNotFoundError,
        "UNAUTHENTICATED": UnauthenticatedError,
        "PERMISSION_DENIED": PermissionDeniedError,
        "OVERLOADED": OverloadedError,
        "RATE_LIMITED": RateLimitedError,
        "DRAINING": DrainingError,
        "STARTING": StartingError,
        "DEADLINE_EXCEEDED": DeadlineExceededError,
        "ENGINE_FAILED": EngineError,
    }
)
"""Class of each reason; the status decides for reasons that are newer than this client."""

UNREACHABLE_HINT = "check the address, that the server runs, and that both sides use TLS or neither"
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def error_from_rpc(error: grpc.RpcError, request_id: str, *, target: str) -> DragomanError:
    """Convert an error of gRPC. If no server answered, add the target and a hint."""
    status = _status(error)
    if status.code == grpc.StatusCode.UNAVAILABLE.value[0] and not status.details:
        status.message = f"cannot reach {target}: {status.message}; {UNREACHABLE_HINT}"
    return error_from_status(status, request_id)


def error_from_status(status: status_pb2.Status, request_id: str) -> DragomanError:
    """Convert a status; a status with an unknown code becomes a `ServerError`."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    details = _details(status)
    return _error_class(code, details.reason)(code, status.message, request_id=request_id, details=details)


def _error_class(code: grpc.StatusCode, reason: str) -> type[DragomanError]:
    """Return the class of the reason, unless it contradicts the status."""
    code_class = CODE_CLASSES.get(code, ServerError)
    reason_class = REASON_CLASSES.get(reason, code_class)
    return reason_class if issubclass(reason_class, code_class) else code_class


def _restore(
    error_class: type[DragomanError], code: grpc.StatusCode, message: str, request_id: str, details: ErrorDetails
) -> DragomanError:
    return error_class(code, message, request_id=request_id, details=details)


def _status(error: Any) -> status_pb2.Status:
    """Return the status with its details; without them if they contradict the status or cannot be parsed."""
    plain = status_pb2.Status(code=error.code().value[0], message=error.details() or "")
    try:
        return rpc_status.from_call(error) or plain
    except (ValueError, DecodeError):
        return plain


def _details(status: status_pb2.Status) -> ErrorDetails:
    info = _unpacked(status, error_details_pb2.ErrorInfo(), lambda info: info.domain == _DOMAIN)
    retry = _unpacked(status, error_details_pb2.RetryInfo())
    violations = _unpacked(status, error_details_pb2.BadRequest()).field_violations
    return ErrorDetails(
        reason=info.reason,
        metadata=dict(info.metadata),
        field_violations=tuple(FieldViolation(field=v.field, description=v.description) for v in violations),
        retry_after_s=retry.retry_delay.ToTimedelta().total_seconds() if retry.HasField("retry_delay") else None,
    )


def _unpacked(status: status_pb2.Status, message: Any, is_match: Callable[[Any], bool] = lambda _: True) -> Any:
    """Return the first matching detail of the type of `message`, else an empty message."""
    for detail in status.details:
        unpacked = type(message)()
        if detail.Unpack(unpacked) and is_match(unpacked):
            return unpacked
    return message
