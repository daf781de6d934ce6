"""What happens around every request, by gRPC or HTTP: admission, request id, error to status, metrics, log line."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import grpc
import structlog

from dragoman_service.errors import IdleError, PermissionDeniedError, RateLimitedError, RequestError
from dragoman_service.middleware import error_mapping
from dragoman_service.middleware.call import REQUEST_ID_KEY, Call, CallContext, sent_or_new_id
from dragoman_service.middleware.flow_control import ResourceLimits
from dragoman_service.observability.logs import LogSettings, RepeatLimit
from dragoman_service.observability.metrics import Metrics
from dragoman_service.observability.tracing import Tracing
from dragoman_service.request import AccessRecord
from dragoman_service.security.api_keys import peer_name
from dragoman_service.security.authentication import Access
from dragoman_service.security.rate_limits import ConcurrencyLimiter

log = logging.getLogger(__name__)

_Response = TypeVar("_Response")
_Failed = TypeVar("_Failed")

_OK = grpc.StatusCode.OK.name


class RequestPipeline:
    """Admits, answers, counts and logs calls; those of `limited_service` count against the concurrency limit."""

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
            call_later=lambda delay_s, tell: asyncio.get_running_loop().call_later(delay_s, tell),
        )

    def start(self, path: str, context: CallContext) -> Call:
        """Begin a call of `/package.Service/Method`, in a task of its own."""
        metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
        call = Call(
            context=context,
            path=path,
            request_id=sent_or_new_id(metadata.get(REQUEST_ID_KEY, "")),
            caller=peer_name(context.peer()),
            trace=self._tracing.begin(path, metadata),
            access_record=AccessRecord(keeps_texts=self._logs.include_texts),
            started_s=self._clock(),
            is_limited=path.startswith(self._limited_prefix),
        )
        structlog.contextvars.bind_contextvars(request_id=call.request_id)  # a task of its own runs each RPC
        if call.trace.trace_id:
            structlog.contextvars.bind_contextvars(trace_id=call.trace.trace_id)
        return call

    async def answer(
        self,
        call: Call,
        respond: Callable[[bytes], Awaitable[_Response]],
        on_failure: Callable[[error_mapping.Answer], _Failed],
        *,
        raw_request: bytes | None = None,
        streams: ExitStack | None = None,
        is_open: bool = False,
    ) -> _Response | _Failed:
        """Admit, answer, count and log a call or a request of a stream; the figures are complete afterwards.

        The log line follows as soon as the event loop is free: writing it takes as long as a step of the decoder.

        Whatever `respond` raises, and whatever keeps it from being called, `on_failure` makes the response of.

        Args:
            call: whose caller is to be found out.
            respond: gets the request.
            on_failure: makes a response of an error.
            raw_request: None to receive it.
            streams: of a stream, keeps its place among all.
            is_open: answers any caller, who goes by its host.
        """
        response: _Response | _Failed | None = None
        in_flight = (
            self._metrics.open_streams if call.is_stream else self._metrics.requests_in_flight.labels(call.method)
        )
        try:
            if not is_open:
                call.caller = await self.access.admit(call.path, call.context)
            if streams is not None:
                streams.enter_context(self.bounds.streams.taken(call.caller))
            if raw_request is None:
                raw_request = await self.bounds.receiver.receive(call.context, call.caller)
            call.request_bytes = len(raw_request)
            with ExitStack() as places:
                places.enter_context(in_flight.track_inprogress())
                places.enter_context(self.bounds.bytes.taken(call.caller, len(raw_request)))
                if call.is_limited:
                    places.enter_context(self.limiter.admitted())
                else:
                    self.bounds.check_control_message(len(raw_request))
                call.is_admitted = True
                response = await respond(raw_request)
            call.status = _OK
        except asyncio.CancelledError:
            call.status = call.cancellation_status().name
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer
            response = on_failure(self._failed(call, error))
        finally:
            if isinstance(response, bytes):
                call.response_bytes = len(response)
            self._record(call)
        return response

    def _failed(self, call: Call, error: Exception) -> error_mapping.Answer:
        """Note why a call failed, and return the status for its caller."""
        if isinstance(error, IdleError):
            self.bounds.count_idle()
        answer = error_mapping.answer(error)
        call.status = answer.code.name
        call.failure = {"reason": answer.reason}
        if isinstance(error, RequestError):
            call.failure["field"] = error.field
        if isinstance(error, PermissionDeniedError | RateLimitedError):  # known, though not admitted
            call.caller = error.caller
        if isinstance(error, RequestError | RateLimitedError) or not call.is_admitted:
            self._metrics.rejected_requests.labels(answer.reason.lower()).inc()
        if answer.code is grpc.StatusCode.INTERNAL:
            log.error("request failed", extra={"method": call.method}, exc_info=error)
        return answer

    def _record(self, call: Call) -> None:
        duration_s = self._clock() - call.started_s
        if not call.is_stream or call.failure:  # the requests of a stream are counted one by one
            self._metrics.requests.labels(call.method, call.status).inc()
            self._metrics.request_seconds.labels(call.method).observe(duration_s, call.trace.exemplar)
        if call.status == _OK or self._failure_lines.allows(call.failure.get("reason", call.status)):
            # Soon, as the answer goes first.
            asyncio.get_running_loop().call_soon(_write_line, call, call.context.peer(), duration_s)
        failure = {f"mt.{name}": value for name, value in call.failure.items()}
        attributes = {"mt.request_id": call.request_id, **call.access_record.span_attributes(), **failure}
        call.trace.end(status=call.status, attributes=attributes)


def _write_line(call: Call, peer: str, duration_s: float) -> None:
    """Write the line of a call in the access log."""
    facts = {
        "method": call.method,
        "status": call.status,
        "duration_s": round(duration_s, 6),
        "caller": call.caller,
        "peer": peer,
        "request_bytes": call.request_bytes,
        "response_bytes": call.response_bytes,
    }
    event = "stream" if call.is_stream else "request"
    log.info(event, extra={**facts, **call.access_record.log_fields(), **call.failure})


def as_status(answer: error_mapping.Answer) -> error_mapping.Answer:
    """Let an error become the status of the call."""
    return answer
