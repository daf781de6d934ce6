"""What happens around every RPC of ours: admission, request id, error to status, metrics, one line of log.

Receiving and parsing are part of it: gRPC is asked for the message of a call once its caller is known, and a message
that is no protobuf, or holds text that is no UTF-8, is answered like any other bad request. Health and reflection pass
untouched: probes must not be rejected, and would dominate the figures.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import grpc
import structlog
from dragoman.v1 import translation_pb2 as pb

from service.api import status
from service.api.access import Access
from service.api.callers import peer_name
from service.api.calls import REQUEST_ID_KEY, Call, sent_or_new_id
from service.api.rate_limits import ConcurrencyLimiter
from service.api.receiving import Bounds
from service.api.streams import IdleError, RequestStream, Respond, ResponseStream, parsed
from service.errors import PermissionDeniedError, RateLimitedError, RequestError
from service.requests import AccessRecord
from service.telemetry.logs import LogSettings, RepeatLimit
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

_Response = TypeVar("_Response")
_Failed = TypeVar("_Failed")

RawResponse = bytes | None
"""Serialized; None if a stream has sent all there is to send."""

Handler = Callable[[Any, grpc.aio.ServicerContext], Awaitable[RawResponse]]
"""Answers a call of `grpc.aio` without codecs."""


_OK = grpc.StatusCode.OK.name


class RequestInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Wraps each method of the given services; those of `limited_service` count against the concurrency limit."""

    def __init__(
        self,
        service_names: tuple[str, ...],
        *,
        limited_service: str,
        limiter: ConcurrencyLimiter,
        bounds: Bounds,
        metrics: Metrics,
        access: Access,
        tracing: Tracing,
        logs: LogSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefixes = tuple(f"/{name}/" for name in service_names)
        self._limited_prefix = f"/{limited_service}/"
        self._limiter = limiter
        self._bounds = bounds
        self._metrics = metrics
        self._access = access
        self._tracing = tracing
        self._logs = logs or LogSettings()
        self._clock = clock
        self._failure_lines = RepeatLimit(
            self._logs.max_failures_per_s,
            clock=clock,
            call_later=lambda delay_s, tell: asyncio.get_running_loop().call_later(delay_s, tell),
        )
        self.num_calls = 0
        """Calls so far, of all services."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:  # a grpc.RpcMethodHandler, or None if there is no such method
        """Return the handler of the method with everything above around it."""
        self.num_calls += 1
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        if handler is None or not path.startswith(self._prefixes):
            return handler
        wrapped = self._many_requests(path, handler) if handler.request_streaming else self._one_request(path, handler)
        has_many = handler.request_streaming or handler.response_streaming
        make_handler = grpc.stream_stream_rpc_method_handler if has_many else grpc.stream_unary_rpc_method_handler
        return make_handler(freed_when_aborted(wrapped))  # no codecs, and nothing is read yet

    def _one_request(self, path: str, handler: Any) -> Handler:
        async def answer(_requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
            call = self._start(path, context)

            async def respond(raw_request: bytes) -> RawResponse:
                request = parsed(raw_request, handler.request_deserializer)
                call.agree_on_id(request)
                if handler.response_streaming:
                    stream = ResponseStream(call, self._bounds.settings.stream_idle_timeout_s)
                    await handler.unary_stream(request, stream)
                    return None
                raw_response: bytes = handler.response_serializer(await handler.unary_unary(request, call))
                return raw_response

            with ExitStack() as places:
                stream_places = places if handler.response_streaming else None
                return await _sent(call, await self._answer(call, respond, _as_status, streams=stream_places))

        return answer

    def _many_requests(self, path: str, handler: Any) -> Handler:
        """Each is answered as if it were a call of its own, in a task of its own; an error is sent in the response."""

        async def answer(_requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
            call = self._start(path, context)
            call.is_stream = True

            async def answer_raw(raw_request: bytes, request: Any, respond: Respond) -> bytes:
                own_call = self._start(path, context)

                async def responded(_raw_request: bytes) -> bytes:
                    own_call.take_id(request)
                    return (await respond(own_call)).SerializeToString()

                def to_response(failure: status.Answer) -> bytes:
                    return pb.TranslateResponse(request_id=request.request_id, error=failure.status).SerializeToString()

                return await self._answer(own_call, responded, to_response, raw_request=raw_request)

            idle_timeout_s = self._bounds.settings.stream_idle_timeout_s
            stream = RequestStream(call, idle_timeout_s, self._limiter, handler.request_deserializer, answer_raw)
            with ExitStack() as places:
                outcome = await self._answer(
                    call, lambda _: handler.stream_stream(stream, call), _as_status, raw_request=b"", streams=places
                )
                if isinstance(outcome, status.Answer) and not stream.has_begun:
                    await self._bounds.open_receiver.before_rejection(context)
                return await _sent(call, outcome)

        return answer

    def _start(self, path: str, context: grpc.aio.ServicerContext) -> Call:
        metadata = dict(context.invocation_metadata() or ())
        call = Call(
            grpc_context=context,
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

    async def _answer(
        self,
        call: Call,
        respond: Callable[[bytes], Awaitable[_Response]],
        on_failure: Callable[[status.Answer], _Failed],
        *,
        raw_request: bytes | None = None,
        streams: ExitStack | None = None,
    ) -> _Response | _Failed:
        """Admit, answer, count and log a call or a request of a stream; the figures are complete afterwards.

        Whatever `respond` raises, and whatever keeps it from being called, `on_failure` makes the response of.

        Args:
            call: whose caller is to be found out.
            respond: gets the request.
            on_failure: makes a response of an error.
            raw_request: None to receive it.
            streams: of a stream, keeps its place among all.
        """
        response: _Response | _Failed | None = None
        in_flight = (
            self._metrics.open_streams if call.is_stream else self._metrics.requests_in_flight.labels(call.method)
        )
        try:
            call.caller = await self._access.admit(call.path, call.grpc_context)
            if streams is not None:
                streams.enter_context(self._bounds.streams.taken(call.caller))
            if raw_request is None:
                raw_request = await self._bounds.receiver.receive(call.grpc_context, call.caller)
            call.request_bytes = len(raw_request)
            with ExitStack() as places:
                places.enter_context(in_flight.track_inprogress())
                places.enter_context(self._bounds.bytes.taken(call.caller, len(raw_request)))
                if call.is_limited:
                    places.enter_context(self._limiter.admitted())
                else:
                    self._bounds.check_control_message(len(raw_request))
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

    def _failed(self, call: Call, error: Exception) -> status.Answer:
        """Note why a call failed, and return the status for its caller."""
        if isinstance(error, IdleError):
            self._bounds.count_idle()
        answer = status.answer(error)
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
        facts = {
            "method": call.method,
            "status": call.status,
            "duration_s": round(duration_s, 6),
            "caller": call.caller,
            "peer": call.grpc_context.peer(),
            "request_bytes": call.request_bytes,
            "response_bytes": call.response_bytes,
        }
        if call.status == _OK or self._failure_lines.allows(call.failure.get("reason", call.status)):
            log.info(
                "stream" if call.is_stream else "request",
                extra={**facts, **call.access_record.log_fields(), **call.failure},
            )
        failure = {f"mt.{name}": value for name, value in call.failure.items()}
        attributes = {"mt.request_id": call.request_id, **call.access_record.span_attributes(), **failure}
        call.trace.end(status=call.status, attributes=attributes)


async def _sent(call: Call, outcome: RawResponse | status.Answer) -> RawResponse:
    """Return the response of an RPC, or abort it; either way the caller learns the id of its request."""
    request_id = (REQUEST_ID_KEY, call.request_id)
    if not isinstance(outcome, status.Answer):
        call.grpc_context.set_trailing_metadata((request_id,))
        return outcome
    await call.grpc_context.abort(outcome.code, outcome.message, (*outcome.trailing_metadata, request_id))
    raise AssertionError("abort returned")


def _as_status(answer: status.Answer) -> status.Answer:
    """Let an error become the status of the RPC."""
    return answer


def freed_when_aborted(answer: Handler) -> Handler:
    """Let a call that is aborted be freed once it has ended.

    gRPC keeps the error that `abort` raised with the call, and the error keeps every frame that it passed, one of
    which keeps the call: a circle that only the garbage collector finds. A server that rejects thousands of calls
    would stop for it, for tens of milliseconds, in the middle of rejecting.
    """

    async def answered(requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
        answering = answer(requests, context)
        del requests, context  # this frame stays with the error
        try:
            return await answering
        except grpc.aio.AbortError as error:
            raise error.with_traceback(None) from None

    return answered
