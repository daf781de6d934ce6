"""The steps around every request of all transports: admission, deadline, request id, errors, metrics, access log."""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import structlog

from dragoman_service.errors import (
    DragomanError,
    IdleError,
    InvalidFieldError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitedError,
    RequestError,
    StartingError,
)
from dragoman_service.middleware import error_mapping
from dragoman_service.middleware.conversion import check_request_id
from dragoman_service.middleware.flow_control import (
    CallContext,
    ResourceLimits,
    call_timeout_s,
    stream_timeout_s,
    time_limit,
)
from dragoman_service.models.glossaries import GlossaryRepository
from dragoman_service.models.repository import ModelRepository
from dragoman_service.observability.logs import LogSettings, RepeatLimit
from dragoman_service.observability.metrics import Metrics
from dragoman_service.observability.tracing import Tracing
from dragoman_service.request import RequestRecord
from dragoman_service.security.authentication import Access, peer_name
from dragoman_service.translation.options import TranslationLimits
from dragoman_service.translation.translator import Translator

log = logging.getLogger(__name__)

_Response = TypeVar("_Response")
_Failed = TypeVar("_Failed")

REQUEST_ID_KEY = "x-request-id"
"""Metadata key of the request id, in requests and responses."""

_OK = grpc.StatusCode.OK.name
_TIMEOUTS = {
    "Translate": call_timeout_s,
    "DetectLanguage": call_timeout_s,
    "TranslateDocument": stream_timeout_s,
    "TranslateStream": stream_timeout_s,
}
_DEFAULT_DURATION_S = 1.0  # of a call, before the first call has ended
_NUM_AVERAGED = 32  # calls in the moving average of durations
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 10.0
_DEADLINE_SLACK_S = 0.05  # the caller's clock may cancel this much before the deadline on the server's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Components that all transports call to answer requests."""

    translator: Translator
    models: ModelRepository
    glossaries: GlossaryRepository
    limits: TranslationLimits


class ConcurrencyLimiter:
    """Counts calls in progress and rejects calls while closed or full.

    `maximum_concurrent_rpcs` of `grpc.aio` would queue calls instead of rejecting them.
    """

    def __init__(self, *, max_concurrent: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed, until the models are loaded."""
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._mean_duration_s: float | None = None
        self._rejection: DragomanError | None = StartingError()
        self._num_calls = 0
        self._is_closed = asyncio.Event()
        self._is_closed.set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def open(self) -> None:
        """Admit calls."""
        self._rejection = None
        self._is_closed.clear()

    def close(self, rejection: DragomanError) -> None:
        """Reject new calls with this error; calls in progress continue."""
        self._rejection = rejection
        self._is_closed.set()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a call in progress.

        Raises:
            OverloadedError: if the limit is reached; the retry delay is the mean duration of recent calls.
            DragomanError: the rejection, if closed.
        """
        if self._rejection is not None:
            raise self._rejection.with_traceback(None)  # the error must not keep the frames of earlier calls
        if self._num_calls >= self._max_concurrent:
            duration_s = _DEFAULT_DURATION_S if self._mean_duration_s is None else self._mean_duration_s
            retry_after_s = min(max(duration_s, _MIN_RETRY_S), _MAX_RETRY_S)
            raise OverloadedError(
                queued=self._num_calls,
                limit=self._max_concurrent,
                unit="concurrent requests",
                retry_after_s=retry_after_s,
            )
        began_s = self._clock()
        self._num_calls += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_calls -= 1
            duration_s = self._clock() - began_s
            mean_s = duration_s if self._mean_duration_s is None else self._mean_duration_s
            self._mean_duration_s = mean_s + (duration_s - mean_s) / _NUM_AVERAGED
            if self._num_calls == 0:
                self._is_idle.set()

    async def wait_until_idle(self) -> None:
        """Return when no call is in progress."""
        await self._is_idle.wait()

    async def wait_until_closed(self) -> DragomanError:
        """Wait until new calls are rejected, and return the rejection."""
        while self._rejection is None:
            await self._is_closed.wait()
        return self._rejection


class RequestPipeline:
    """Admits, answers, counts and logs calls; calls of `limited_service` count against the concurrency limit."""

    def __init__(
        self,
        *,
        limited_service: str,
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
        self._limited_prefix = f"/{limited_service}/"
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

    def start(self, path: str, context: CallContext, *, deadline_s: float = math.inf) -> RequestRecord:
        """Begin a call of `/package.Service/Method`, or a request of a stream with the deadline of the stream.

        Each call and each request of a stream runs in a task of its own, because its id is bound to the log context.
        """
        metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
        sent_id = metadata.get(REQUEST_ID_KEY, "")
        peer = context.peer()
        record = RequestRecord(
            path=path,
            request_id=sent_id if _is_usable(sent_id) else uuid.uuid4().hex,
            peer=peer,
            caller=peer_name(peer),
            deadline_s=deadline_s,
            trace=self._tracing.begin(path, metadata),
            started_s=self._clock(),
            is_limited=path.startswith(self._limited_prefix),
            keeps_texts=self._logs.include_texts,
        )
        structlog.contextvars.bind_contextvars(request_id=record.request_id)
        if record.trace.trace_id:
            structlog.contextvars.bind_contextvars(trace_id=record.trace.trace_id)
        return record

    async def answer(
        self,
        record: RequestRecord,
        context: CallContext,
        respond: Callable[[bytes], Awaitable[_Response]],
        on_failure: Callable[[error_mapping.RpcError], _Failed],
        *,
        raw_request: bytes | None = None,
        streams: ExitStack | None = None,
        is_open: bool = False,
        key_header: str | None = None,
    ) -> _Response | _Failed:
        """Admit, answer, count and log a call or a request of a stream.

        Ends translations at their deadline. Metrics are complete when this returns. The log line follows as soon as the
        event loop is free: writing it takes as long as a step of the decoder.

        Args:
            record: returned by `start`; this sets the caller.
            context: of the transport.
            respond: receives the serialized request and returns the response.
            on_failure: returns the response for an error of `respond` or of the admission.
            raw_request: the serialized request; None: it is read from the context.
            streams: keeps the slot of a stream until it is closed; None for unary calls.
            is_open: skip authentication; the host counts as the caller.
            key_header: header with the API key, in the absence of `authorization`.
        """
        response: _Response | _Failed | None = None
        metrics = self._metrics
        in_flight = metrics.open_streams if record.is_stream else metrics.requests_in_flight.labels(record.method)
        try:
            if not is_open:
                record.caller = await self.access.admit(record.path, context, key_header)
            if streams is not None:
                streams.enter_context(self.bounds.streams.held(record.caller))
            if raw_request is None:
                raw_request = await self.bounds.receiver.receive(context, record.caller)
            record.request_bytes = len(raw_request)
            with ExitStack() as slots:
                slots.enter_context(in_flight.track_inprogress())
                slots.enter_context(self.bounds.bytes.held(record.caller, len(raw_request)))
                if record.is_limited:
                    slots.enter_context(self.limiter.admitted())
                else:
                    self.bounds.check_control_message(len(raw_request))
                record.is_admitted = True
                response = await self._respond_in_time(record, context, respond, raw_request)
            record.status = _OK
        except asyncio.CancelledError:
            # By gRPC: the caller disconnected, or its deadline passed.
            remaining_s = context.time_remaining()
            is_late = remaining_s is not None and remaining_s <= _DEADLINE_SLACK_S
            record.status = (grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED).name
            raise
        except Exception as error:  # noqa: BLE001 - every error becomes a status
            response = on_failure(self._record_failure(record, error))
        finally:
            if isinstance(response, bytes):
                record.response_bytes = len(response)
            self._finish(record)
        return response

    async def _respond_in_time(
        self,
        record: RequestRecord,
        context: CallContext,
        respond: Callable[[bytes], Awaitable[_Response]],
        raw_request: bytes,
    ) -> _Response:
        timeout_s = _TIMEOUTS.get(record.method)
        if timeout_s is None or record.deadline_s < math.inf:
            return await respond(raw_request)
        allowed_s = timeout_s(self.bounds.settings, context.time_remaining())
        record.deadline_s = self._clock() + allowed_s
        async with time_limit(allowed_s):
            return await respond(raw_request)

    def _record_failure(self, record: RequestRecord, error: Exception) -> error_mapping.RpcError:
        if isinstance(error, IdleError):
            self.bounds.on_idle_stream()
        rpc_error = error_mapping.to_rpc_error(error)
        record.status = rpc_error.code.name
        record.failure = {"reason": rpc_error.reason}
        if isinstance(error, RequestError):
            record.failure["field"] = error.field
        if isinstance(error, PermissionDeniedError | RateLimitedError):  # identified, but not admitted
            record.caller = error.caller
        if isinstance(error, RequestError | RateLimitedError) or not record.is_admitted:
            self._metrics.rejected_requests.labels(rpc_error.reason.lower()).inc()
        if rpc_error.code is grpc.StatusCode.INTERNAL:
            log.error("request failed", extra={"method": record.method}, exc_info=error)
        return rpc_error

    def _finish(self, record: RequestRecord) -> None:
        duration_s = self._clock() - record.started_s
        if not record.is_stream or record.failure:  # the requests of a stream are counted one by one
            self._metrics.requests.labels(record.method, record.status).inc()
            self._metrics.request_seconds.labels(record.method).observe(duration_s, record.trace.exemplar)
        if record.status == _OK or self._failure_lines.allows(record.failure.get("reason", record.status)):
            # Deferred, because the response goes first.
            asyncio.get_running_loop().call_soon(_log, record, duration_s)
        failure = {f"mt.{name}": value for name, value in record.failure.items()}
        attributes = {"mt.request_id": record.request_id, **record.span_attributes(), **failure}
        record.trace.end(status=record.status, attributes=attributes)


def _log(record: RequestRecord, duration_s: float) -> None:
    fields = {
        "method": record.method,
        "status": record.status,
        "duration_s": round(duration_s, 6),
        "caller": record.caller,
        "peer": record.peer,
        "request_bytes": record.request_bytes,
        "response_bytes": record.response_bytes,
    }
    event = "stream" if record.is_stream else "request"
    log.info(event, extra={**fields, **record.log_fields(), **record.failure})


def as_status(error: error_mapping.RpcError) -> error_mapping.RpcError:
    """Return the error, which becomes the status of the call."""
    return error


def resolve_request_id(record: RequestRecord, request: Any) -> None:
    """Give record and message the same id: that of the message if it has one, else that of the record.

    Raises:
        InvalidFieldError: if the id of the message cannot be returned in metadata.
    """
    if not hasattr(request, "request_id"):
        return
    if request.request_id:
        check_request_id(request.request_id)
        _bind_id(record, request.request_id)
    request.request_id = record.request_id


def adopt_request_id(record: RequestRecord, request_id: str) -> None:
    """Use the id of a request of a stream for its record if it can be returned in metadata."""
    if _is_usable(request_id):
        _bind_id(record, request_id)


def _bind_id(record: RequestRecord, request_id: str) -> None:
    record.request_id = request_id
    structlog.contextvars.bind_contextvars(request_id=request_id)


def _is_usable(request_id: str | bytes) -> bool:
    try:
        check_request_id(str(request_id))
    except InvalidFieldError:
        return False
    return bool(request_id)
