"""One call, or one request of a stream of them; the methods get it in place of the context of gRPC or HTTP."""

import uuid
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import structlog

from dragoman_service.datatypes import Priority
from dragoman_service.errors import InvalidFieldError
from dragoman_service.observability.tracing import RequestTrace
from dragoman_service.request import MAX_NAME_CHARACTERS, AccessRecord, RequestContext
from dragoman_service.security.authentication import ConnectionInfo

REQUEST_ID_KEY = "x-request-id"
"""Metadata that names a request, both ways."""

_DEADLINE_SLACK_S = 0.05  # the caller's clock may cancel this much before ours says that the deadline passed


class MessageSource(Protocol):
    """Where the messages of a call come from."""

    async def read(self) -> Any:
        """Return the next message, raw."""


class CallContext(MessageSource, ConnectionInfo, Protocol):
    """The transport side of a call; the context of a gRPC call satisfies it."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None if there is none."""

    async def send_initial_metadata(self, metadata: tuple[()], /) -> None:
        """Begin the response of a stream."""

    async def write(self, raw_response: bytes, /) -> None:
        """Send a message of a stream; returns once the transport has taken it."""


@dataclass(slots=True, kw_only=True)
class Call:
    """What is known of a call, for the methods, its log line and metrics; filled in as it goes."""

    context: CallContext
    path: str
    """`/package.Service/Method`."""
    request_id: str
    caller: str
    """Name of who calls; the host it comes from until that is known."""
    trace: RequestTrace
    access_record: AccessRecord
    started_s: float
    is_limited: bool
    """Whether it counts against the limit of concurrent requests."""
    is_stream: bool = False
    """Whether it carries requests that are answered and counted one by one."""
    is_admitted: bool = False
    """Whether caller and concurrency limit let it in; the queue counts what it rejects itself."""
    status: str = grpc.StatusCode.UNKNOWN.name
    failure: dict[str, str] = field(default_factory=dict)
    """If it failed, the reason, and the field that the caller must change if that is why."""
    request_bytes: int = 0
    response_bytes: int = 0

    @property
    def method(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None if there is none."""
        remaining_s: float | None = self.context.time_remaining()
        return remaining_s

    def request_context(self, *, deadline_s: float, priority: Priority) -> RequestContext:
        """Return what goes along with the request of this call."""
        return RequestContext(
            caller=self.caller,
            deadline_s=deadline_s,
            priority=priority,
            trace=self.trace,
            access_record=self.access_record,
        )

    def resolve_request_id(self, request: Any) -> None:
        """Let call and request have one id: the request's own goes first; without one it gets that of the call.

        Raises:
            InvalidFieldError: if the id of the request cannot be sent back in metadata.
        """
        if not hasattr(request, "request_id"):
            return
        if request.request_id:
            check_request_id(request.request_id)
            self._take_id(request.request_id)
        request.request_id = self.request_id

    def take_id(self, request: Any) -> None:
        """Take the id of a request of a stream if it is usable; the request itself stays as it is."""
        if _is_usable(request.request_id):
            self._take_id(request.request_id)

    def cancellation_status(self) -> grpc.StatusCode:
        """Tell a caller who left from one whose time ran out: gRPC cancels both alike."""
        remaining_s = self.time_remaining()
        if remaining_s is not None and remaining_s <= _DEADLINE_SLACK_S:
            return grpc.StatusCode.DEADLINE_EXCEEDED
        return grpc.StatusCode.CANCELLED

    def _take_id(self, request_id: str) -> None:
        self.request_id = request_id
        structlog.contextvars.bind_contextvars(request_id=request_id)


def sent_or_new_id(sent_id: str | bytes) -> str:
    """Return the id that a caller sent in metadata, or a new one if that cannot be used."""
    return str(sent_id) if _is_usable(sent_id) else uuid.uuid4().hex


def _is_usable(request_id: str | bytes) -> bool:
    try:
        check_request_id(str(request_id))
    except InvalidFieldError:
        return False
    return bool(request_id)


def check_request_id(request_id: str) -> None:
    """Reject an id that cannot be sent back in metadata."""
    if len(request_id) > MAX_NAME_CHARACTERS or not (request_id.isascii() and request_id.isprintable()):
        limit = f"at most {MAX_NAME_CHARACTERS} printable ASCII characters"
        raise InvalidFieldError("request_id", repr(request_id[:MAX_NAME_CHARACTERS]), limit)
