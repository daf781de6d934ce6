"""The errors of a call, and how a gRPC status becomes one of them.

The reason that the server gives decides; without one, as when gRPC itself or a proxy made the status, its code does.

DragomanError                   a call did not end with OK
├── InvalidRequestError         the request must change: INVALID_ARGUMENT, OUT_OF_RANGE, FAILED_PRECONDITION
│   ├── InvalidFieldError       a field has a value that is never valid
│   └── ModelStateError         the model is not in a state that allows it
├── UnsupportedError            the server does not implement a field or method: UNIMPLEMENTED
├── ModelNotFoundError          no such model, version, language pair or glossary: NOT_FOUND
├── AccessError                 the credential is missing or not enough
│   ├── UnauthenticatedError    no API key, or none that the server knows: UNAUTHENTICATED
│   └── PermissionDeniedError   the API key does not allow the method: PERMISSION_DENIED
├── ExhaustedError              a message is too large, or a quota of a proxy used up: RESOURCE_EXHAUSTED
│   ├── OverloadedError         the queue is full, or too long for the deadline
│   └── RateLimitedError        the API key has used up what it may ask for in a time
├── UnavailableError            no replica can be reached or takes requests: UNAVAILABLE
│   ├── DrainingError           the replica is shutting down
│   └── StartingError           the replica is still loading its models
├── DeadlineExceededError       the deadline passed before the answer: DEADLINE_EXCEEDED
├── CallCancelledError          the call was cancelled: CANCELLED
└── ServerError                 the fault is the server's: every other status
    └── EngineError             decoding failed
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

_DOMAIN = "dragoman"
"""Who speaks in an ErrorInfo; proxies add their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldViolation:
    """What is wrong with one field of a request."""

    field: str
    """Path in the wire message, such as `options.beam_size` or `texts[3]`."""

    description: str
    """For people: the value found and the range it must lie in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetails:
    """What the server says about an error beyond code and message."""

    reason: str = ""
    """Which error of the server it is, such as `MODEL_NOT_FOUND`; empty if gRPC or a proxy made the status."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    """Further facts about `reason`."""

    field_violations: tuple[FieldViolation, ...] = ()
    """The fields to change; empty if the request is not to blame."""

    retry_after_s: float | None = None
    """When the same request may succeed; None: not known."""


class DragomanError(Exception):
    """A call did not end with OK. Root of the tree."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        request_id: str,
        details: ErrorDetails = ErrorDetails(),
    ) -> None:
        """Keep everything the server said about the call that `request_id` names."""
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
        """Paths of the fields to change, such as `options.beam_size`; empty if the request is not to blame."""
        return tuple(violation.field for violation in self.field_violations)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.code, self.message, self.request_id, self._details)


class InvalidRequestError(DragomanError):
    """The request must change."""


class InvalidFieldError(InvalidRequestError):
    """A field has a value that is never valid; `field_violations` says which and what it may be."""


class ModelStateError(InvalidRequestError):
    """The model is not in a state that allows what was asked for; the message says what is in the way."""


class UnsupportedError(DragomanError):
    """The server does not implement a field or method; `field_violations` names it."""


class ModelNotFoundError(DragomanError):
    """No such model, version, language pair or glossary; `field_violations` says what there is."""


class AccessError(DragomanError):
    """The credential is missing or not enough."""


class UnauthenticatedError(AccessError):
    """No API key, or none that the server knows."""


class PermissionDeniedError(AccessError):
    """The API key does not allow the method."""


class ExhaustedError(DragomanError):
    """A message is over a size limit, or a quota of a proxy is used up: the message says which."""


class OverloadedError(ExhaustedError):
    """The queue is full or too long for the deadline; the same request may succeed after `retry_after_s`."""


class RateLimitedError(ExhaustedError):
    """The API key has used up what it may ask for in a time; it may ask again after `retry_after_s`."""


class UnavailableError(DragomanError):
    """No replica can be reached, or the one reached takes no requests."""


class DrainingError(UnavailableError):
    """The replica is shutting down; another may answer at once."""


class StartingError(UnavailableError):
    """The replica is still loading its models."""


class DeadlineExceededError(DragomanError):
    """The deadline passed before the answer."""

    @property
    def stage(self) -> str | None:
        """Where the time ran out: `text`, `admission`, `queue`, `decode`; None if the server did not answer in time."""
        return self.metadata.get("stage")

    @property
    def needed_s(self) -> float | None:
        """How long the answer was expected to take when the request was rejected for it; None if it was not."""
        return self._seconds("needed_s")

    @property
    def allowed_s(self) -> float | None:
        """How much of the deadline was left then; None if the request was not rejected for it."""
        return self._seconds("allowed_s")

    def _seconds(self, name: str) -> float | None:
        try:
            return float(self.metadata[name])
        except (KeyError, ValueError):
            return None


class CallCancelledError(DragomanError):
    """The call was cancelled, for instance because the client was closed."""


class ServerError(DragomanError):
    """The fault is the server's."""


class EngineError(ServerError):
    """Decoding failed."""


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
"""The class for each status without a reason; `ServerError` for every other."""

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
"""The class for each reason; that of the status for one that is newer than this client."""

_UNREACHABLE_HINT = "check the address, that the server runs, and that both sides use TLS or neither"
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def error_from_rpc(error: grpc.RpcError, request_id: str, *, target: str) -> DragomanError:
    """Convert an error of gRPC. If no server answered, add the target and a hint."""
    status = _status(error)
    if status.code == grpc.StatusCode.UNAVAILABLE.value[0] and not status.details:
        status.message = f"cannot reach {target}: {status.message}; {_UNREACHABLE_HINT}"
    return error_from_status(status, request_id)


def error_from_status(status: status_pb2.Status, request_id: str) -> DragomanError:
    """Make the error that `status` describes; a status with an unknown code becomes a `ServerError`."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    details = _details(status)
    return _error_class(code, details.reason)(code, status.message, request_id=request_id, details=details)


def _error_class(code: grpc.StatusCode, reason: str) -> type[DragomanError]:
    """The class of the reason, unless it contradicts the status."""
    code_class = CODE_CLASSES.get(code, ServerError)
    reason_class = REASON_CLASSES.get(reason, code_class)
    return reason_class if issubclass(reason_class, code_class) else code_class


def _rebuilt(
    error_class: type[DragomanError], code: grpc.StatusCode, message: str, request_id: str, details: ErrorDetails
) -> DragomanError:
    return error_class(code, message, request_id=request_id, details=details)


def _status(error: Any) -> status_pb2.Status:
    """The status with details; without them if they contradict it or cannot be read."""
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


def _unpacked(status: status_pb2.Status, message: Any, is_wanted: Callable[[Any], bool] = lambda _: True) -> Any:
    """Return the first detail of the type of `message` that is wanted, else an empty one."""
    for detail in status.details:
        found = type(message)()
        if detail.Unpack(found) and is_wanted(found):
            return found
    return message
