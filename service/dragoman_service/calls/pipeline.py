"""The steps around every handler: authentication, limits, deadline, request id, errors, metrics, access log."""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import grpc
import structlog

from dragoman.option_ranges import option_range
from dragoman_service.calls import error_mapping
from dragoman_service.calls.flow_control import (
    ConcurrencyLimiter,
    MessageSource,
    ResourceLimits,
    run_to_completion,
    time_limit,
)
from dragoman_service.calls.policy import CallPolicy, Streaming, TimeLimit
from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.datatypes import Priority
from dragoman_service.errors import (
    IdleError,
    InvalidFieldError,
    PermissionDeniedError,
    RateLimitedError,
    RequestError,
)
from dragoman_service.observability.logs import LogSettings, RepeatLimit
from dragoman_service.observability.metrics import Metrics
from dragoman_service.observability.usage import Tracing, UsageRecord
from dragoman_service.request import RequestContext
from dragoman_service.security.authentication import Access, ConnectionInfo, peer_name, unmapped_peer

log = logging.getLogger(__name__)

_Response = TypeVar("_Response")

REQUEST_ID_KEY = "x-request-id"
"""Metadata key of the request id, in requests and responses."""

_OK = grpc.StatusCode.OK.name
_DEADLINE_SLACK_S = 0.05  # the caller's clock may cancel this much before the deadline on the server's clock
_NO_SLOT = nullcontext()
_MAX_ID_CHARACTERS: Any = option_range("request_id").max_characters


class Transport(MessageSource, ConnectionInfo, Protocol):
    """The transport side of a call; `grpc.aio.ServicerContext` satisfies it."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None: unlimited."""

    async def send_initial_metadata(self, metadata: tuple[()], /) -> None:
        """Begin the response of a stream."""

    async def write(self, raw_response: bytes, /) -> None:
        """Send a message of a stream; return once the transport has accepted it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One call, or one request of a stream, from its headers to its line in the access log."""

    policy: CallPolicy
    transport: Transport
    request_id: str
    peer: str  # address of the client, as gRPC writes it: `ipv4:10.0.0.7:54321`
    caller: str  # for fairness and limits; the host until the caller is authenticated
    started_s: float
    deadline_s: float = math.inf  # on the service's clock
    is_admitted: bool = False  # authenticated and within the limit of concurrent requests
    holds_stream: bool = False  # counts against `max_streams`
    status: str = "UNKNOWN"  # name of the gRPC status
    failure: dict[str, str] = field(default_factory=dict)  # `reason`, and the `field` that the caller must change
    request_bytes: int = 0
    response_bytes: int = 0
    usage: UsageRecord = field(default_factory=UsageRecord)

    def context(self, priority: Priority = Priority.INTERACTIVE) -> RequestContext:
        """Return the values that the translator and the queue need."""
        return RequestContext(
            caller=self.caller, deadline_s=self.deadline_s, priority=priority, exemplar=self.usage.trace.exemplar
        )

    @property
    def is_request_stream(self) -> bool:
        """True if the requests of the call are counted one by one."""
        return self.policy.streaming is Streaming.REQUESTS


class RequestPipeline:
    """Admits, answers, counts and logs calls as their policies require."""

    def __init__(
        self,
        *,
        limiter: ConcurrencyLimiter,
        bounds: ResourceLimits,
        metrics: Metrics,
        access: Access,
        tracing: Tracing,
        logs: LogSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limiter = limiter
        self.bounds = bounds
        self._metrics = metrics
        self.access = access
        self._tracing = tracing
        self._logs = logs or LogSettings()
        self._clock = clock
        self._failure_lines = RepeatLimit(
            self._logs.max_failures_per_s,
            clock=clock,
            call_later=lambda delay_s, report: asyncio.get_running_loop().call_later(delay_s, report),
        )

    @contextmanager
    def call(self, policy: CallPolicy, transport: Transport, *, deadline_s: float = math.inf) -> Iterator[Call]:
        """Begin a call, or a request of a stream with the deadline of the stream.

        Within the block, the call is answered and the response is sent. A stream holds its slot until the end.
        Each call and each request of a stream runs in a task of its own, because its id is bound to the log context.
        """
        metadata: dict[str, Any] = dict(transport.invocation_metadata() or ())
        sent_id = metadata.get(REQUEST_ID_KEY, "")
        peer = unmapped_peer(transport.peer())
        call = Call(
            policy=policy,
            transport=transport,
            request_id=sent_id if _is_usable(sent_id) else uuid.uuid4().hex,
            peer=peer,
            caller=peer_name(peer),
            started_s=self._clock(),
            deadline_s=deadline_s,
            usage=UsageRecord(
                trace=self._tracing.begin(policy.path, metadata, getattr(transport, "span_attributes", None)),
                keeps_texts=self._logs.include_texts,
            ),
        )
        structlog.contextvars.bind_contextvars(request_id=call.request_id)
        if call.usage.trace.trace_id:
            structlog.contextvars.bind_contextvars(trace_id=call.usage.trace.trace_id)
        try:
            yield call
        finally:
            if call.holds_stream:
                self.bounds.streams.release(call.caller)
            _end_trace(call)

    async def answer(
        self,
        call: Call,
        respond: Callable[[bytes], Awaitable[_Response]],
        *,
        raw_request: bytes | None = None,
    ) -> _Response | error_mapping.RpcError:
        """Admit, answer, count and log a call or a request of a stream; return the response, or the status of an error.

        Ends translations at their deadline. Metrics are complete when this returns. The log line follows as soon as the
        event loop is free: writing it takes as long as a step of the decoder.

        Args:
            call: begun by `call`; this sets the caller.
            respond: receives the serialized request and returns the response.
            raw_request: the serialized request; None: it is read from the transport, if the policy says so.
        """
        policy, metrics = call.policy, self._metrics
        in_flight = metrics.open_streams if call.is_request_stream else metrics.requests_in_flight.labels(policy.method)
        response: _Response | error_mapping.RpcError | None = None
        try:
            if policy.authenticates:
                call.caller = await self.access.admit(policy.path, call.transport, policy.key_header)
            if policy.streaming is not Streaming.NONE:
                self.bounds.streams.acquire(call.caller)
                call.holds_stream = True
            if raw_request is None:
                raw_request = (
                    await self.bounds.receiver.receive(call.transport, call.caller) if policy.reads_message else b""
                )
            call.request_bytes = len(raw_request)
            with (
                in_flight.track_inprogress(),
                self.bounds.bytes.held(call.caller, len(raw_request)),
                self._slot(policy, len(raw_request)),
            ):
                call.is_admitted = True
                response = await self._respond_in_time(call, respond, raw_request)
            call.status = _OK
        except asyncio.CancelledError:
            # By gRPC: the caller disconnected, or its deadline passed.
            remaining_s = call.transport.time_remaining()
            is_late = remaining_s is not None and remaining_s <= _DEADLINE_SLACK_S
            call.status = (grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED).name
            raise
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            response = self._record_failure(call, error)
        finally:
            if isinstance(response, bytes):
                call.response_bytes = len(response)
            self._finish(call)
        return response

    def identify(self, call: Call, request: Any) -> None:
        """Give call and message the same id: that of the message if it has one, else that of the call.

        Raises:
            InvalidFieldError: if the id of the message cannot be returned in metadata.
        """
        if not hasattr(request, "request_id"):
            return
        if request.request_id:
            if not _is_usable(request.request_id):
                limit = f"at most {_MAX_ID_CHARACTERS} printable ASCII characters"
                raise InvalidFieldError("request_id", repr(request.request_id[:_MAX_ID_CHARACTERS]), limit)
            _bind_id(call, request.request_id)
        request.request_id = call.request_id

    def adopt_id(self, call: Call, request_id: str) -> None:
        """Use the id of a message for its call if it can be returned in metadata."""
        if _is_usable(request_id):
            _bind_id(call, request_id)

    def time_limit(self, call: Call, limit: TimeLimit) -> AbstractAsyncContextManager[None]:
        """Set the deadline of a call. The result raises DeadlineExceededError in work that takes longer."""
        allowed_s = time_allowed(self.bounds.settings, limit, call.transport.time_remaining())
        call.deadline_s = self._clock() + allowed_s
        return time_limit(allowed_s)

    def _slot(self, policy: CallPolicy, num_bytes: int) -> AbstractContextManager[None]:
        if policy.is_translation:
            return self.limiter.admitted()
        self.bounds.check_control_message(num_bytes)
        return _NO_SLOT

    async def _respond_in_time(
        self, call: Call, respond: Callable[[bytes], Awaitable[_Response]], raw_request: bytes
    ) -> _Response:
        if call.policy.time_limit is TimeLimit.NONE:
            return await respond(raw_request)
        async with self.time_limit(call, call.policy.time_limit):
            return await respond(raw_request)

    def _record_failure(self, call: Call, error: Exception) -> error_mapping.RpcError:
        if isinstance(error, IdleError):
            self.bounds.on_idle_stream()
        rpc_error = error_mapping.to_rpc_error(error)
        call.status = rpc_error.code.name
        call.failure = {"reason": rpc_error.reason}
        if isinstance(error, RequestError):
            call.failure["field"] = error.field
        if isinstance(error, PermissionDeniedError | RateLimitedError):  # identified, but not admitted
            call.caller = error.caller
        if isinstance(error, RequestError | RateLimitedError) or not call.is_admitted:
            self._metrics.rejected_requests.labels(rpc_error.reason.lower()).inc()
        if rpc_error.code is grpc.StatusCode.INTERNAL:
            log.error("request failed", extra={"method": call.policy.method}, exc_info=error)
        return rpc_error

    def _finish(self, call: Call) -> None:
        duration_s = self._clock() - call.started_s
        method, usage = call.policy.method, call.usage
        if not call.is_request_stream or call.failure:
            self._metrics.requests.labels(method, call.status).inc()
            self._metrics.request_seconds.labels(method).observe(duration_s, usage.trace.exemplar)
        if call.status == _OK or self._failure_lines.allows(call.failure.get("reason", call.status)):
            # Deferred, because the response goes first.
            asyncio.get_running_loop().call_soon(_log, call, duration_s)


class ResponseStream:
    """Sends the messages of a call to its caller."""

    def __init__(self, call: Call, idle_timeout_s: float) -> None:
        """The call ends if the transport does not accept a message within the timeout."""
        self.call = call
        self._idle_timeout_s = idle_timeout_s
        self._has_sent = False

    async def write(self, raw_response: bytes) -> None:
        """Send a serialized message; return once the transport has accepted it, so that a slow reader slows the work.

        Raises:
            IdleError: if the transport does not accept it in time.
            asyncio.CancelledError: if the caller has disconnected.
        """
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                if not self._has_sent:  # in an operation of its own, so that a status can follow a pending message
                    self._has_sent = True
                    await run_to_completion(self.call.transport.send_initial_metadata(()))
                await run_to_completion(self.call.transport.write(raw_response))
        except TimeoutError:
            raise IdleError from None
        except grpc.aio.BaseError as error:  # gRPC is about to cancel the handler
            raise asyncio.CancelledError from error
        self.call.response_bytes += len(raw_response)


def time_allowed(settings: GrpcSettings, limit: TimeLimit, remaining_s: float | None) -> float:
    """Return the time limit of a call with this time until its deadline; None: no deadline."""
    if limit is TimeLimit.STREAM:
        default_s, max_s = settings.default_stream_timeout_s, settings.max_stream_timeout_s
    else:
        default_s, max_s = settings.default_timeout_s, settings.max_timeout_s
    return min(default_s if remaining_s is None else remaining_s, max_s)


def _log(call: Call, duration_s: float) -> None:
    fields = {
        "method": call.policy.method,
        "status": call.status,
        "duration_s": round(duration_s, 6),
        "caller": call.caller,
        "peer": call.peer,
        "request_bytes": call.request_bytes,
        "response_bytes": call.response_bytes,
    }
    event = "stream" if call.is_request_stream else "request"
    log.info(event, extra={**fields, **call.usage.log_fields(), **call.failure})


def _end_trace(call: Call) -> None:
    if not call.usage.trace.is_recorded:
        return
    failure = {f"mt.{name}": value for name, value in call.failure.items()}
    call.usage.trace.end(
        status=call.status,
        code=grpc.StatusCode[call.status].value[0],
        http_status=getattr(call.transport, "sent_status", None),
        attributes={"mt.request_id": call.request_id, **call.usage.span_attributes(), **failure},
    )


def _bind_id(call: Call, request_id: str) -> None:
    call.request_id = request_id
    structlog.contextvars.bind_contextvars(request_id=request_id)


def _is_usable(request_id: str | bytes) -> bool:
    # Whether an id can be returned in metadata. Binary metadata cannot.
    text = str(request_id)
    return 0 < len(text) <= _MAX_ID_CHARACTERS and text.isascii() and text.isprintable()
