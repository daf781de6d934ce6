"""The errors of a call, and how a gRPC status becomes one of them.

DragomanError                   a call did not end with OK
├── InvalidRequestError         the request must change: INVALID_ARGUMENT, OUT_OF_RANGE, FAILED_PRECONDITION
├── UnsupportedError            the server does not implement a field or method: UNIMPLEMENTED
├── ModelNotFoundError          no such model, version or language pair: NOT_FOUND
├── AccessError                 the credential is missing or not enough: UNAUTHENTICATED, PERMISSION_DENIED
├── OverloadedError             a queue or quota is full, or a message too large: RESOURCE_EXHAUSTED
├── UnavailableError            no replica can be reached or takes requests: UNAVAILABLE
├── DeadlineExceededError       the deadline passed before the answer: DEADLINE_EXCEEDED
├── CallCancelledError          the call was cancelled: CANCELLED
└── ServerError                 the fault is the server's: every other status
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status


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

    metadata: Mapping[str, str]
    """Further facts about `reason`."""

    field_violations: tuple[FieldViolation, ...] = ()
    """The fields to change; empty if the request is not to blame."""

    retry_after_s: float | None = None
    """When the same request may succeed; None: not known."""


class DragomanError(Exception):
    """A call did not end with OK. Root of the tree."""

    def __init__(self, code: grpc.StatusCode, message: str, *, request_id: str, details: ErrorDetails) -> None:
        """Keep everything the server said about the call that `request_id` names."""
        super().__init__(f"{code.name}: {message} (request {request_id})")
        self.code = code
        self.message = message
        self.request_id = request_id
        self.reason = details.reason
        self.metadata = details.metadata
        self.field_violations = details.field_violations
        self.retry_after_s = details.retry_after_s


class InvalidRequestError(DragomanError):
    """The request must change; `field_violations` says where."""


class UnsupportedError(DragomanError):
    """The server does not implement a field or method; `field_violations` names it."""


class ModelNotFoundError(DragomanError):
    """No such model, version or language pair; `field_violations` says what there is."""


class AccessError(DragomanError):
    """The credential is missing or not enough."""


class OverloadedError(DragomanError):
    """A queue or quota is full; the same request may succeed after `retry_after_s`.

    gRPC uses this status for messages over the size limit as well: then `reason` is empty.
    """


class UnavailableError(DragomanError):
    """No replica can be reached, or the one reached takes no requests."""


class DeadlineExceededError(DragomanError):
    """The deadline passed before the answer."""


class CallCancelledError(DragomanError):
    """The call was cancelled, for instance because the client was closed."""


class ServerError(DragomanError):
    """The fault is the server's."""


ERROR_CLASSES: Mapping[grpc.StatusCode, type[DragomanError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequestError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
    grpc.StatusCode.NOT_FOUND: ModelNotFoundError,
    grpc.StatusCode.UNAUTHENTICATED: AccessError,
    grpc.StatusCode.PERMISSION_DENIED: AccessError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: CallCancelledError,
}
"""The class for each status; `ServerError` for every other."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


@contextmanager
def rpc_errors_raised(request_id: str) -> Iterator[None]:
    """Raise the errors of gRPC, sync and async, as those of this module."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_status(_status(error), request_id) from error


def error_from_status(status: status_pb2.Status, request_id: str) -> DragomanError:
    """Make the error that `status` describes; a status with an unknown code becomes a `ServerError`."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    error_class = ERROR_CLASSES.get(code, ServerError)
    return error_class(code, status.message, request_id=request_id, details=_details(status))


def _status(error: Any) -> status_pb2.Status:
    """The status with details; without them if they contradict it or cannot be read."""
    plain = status_pb2.Status(code=error.code().value[0], message=error.details() or "")
    try:
        return rpc_status.from_call(error) or plain
    except (ValueError, DecodeError):
        return plain


def _details(status: status_pb2.Status) -> ErrorDetails:
    info = _unpacked(status, error_details_pb2.ErrorInfo())
    retry = _unpacked(status, error_details_pb2.RetryInfo())
    violations = _unpacked(status, error_details_pb2.BadRequest()).field_violations
    return ErrorDetails(
        reason=info.reason,
        metadata=dict(info.metadata),
        field_violations=tuple(FieldViolation(field=v.field, description=v.description) for v in violations),
        retry_after_s=retry.retry_delay.ToTimedelta().total_seconds() if retry.HasField("retry_delay") else None,
    )


def _unpacked(status: status_pb2.Status, message: Any) -> Any:
    """Fill `message` from the first detail of its type; leave it empty if there is none."""
    any(detail.Unpack(message) for detail in status.details)
    return message
