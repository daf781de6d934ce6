"""What happens around every RPC of ours: admission, request id, error to status, metrics, one line of log.

Parsing is part of it, so that a message that is no protobuf, or holds text that is no UTF-8, is answered like any other
bad request. Health and reflection pass untouched: probes must not be refused, and would drown the figures.
"""

import asyncio
import contextlib
import dataclasses
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc
import structlog
from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import DecodeError, Message

from service.api import messages, status
from service.api.access import Access
from service.api.callers import current_caller, peer_name, set_caller
from service.api.rate_limits import Gate
from service.api.status import freed_when_aborted
from service.api.streams import RequestStream, Respond, ResponseStream, StreamedRequest, readable_id
from service.errors import InvalidFieldError, RateLimitedError, RequestError
from service.telemetry.access_record import AccessRecord, set_current_record
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import NoTracing, RequestTrace, Tracing, set_current_trace

log = structlog.get_logger(__name__)

REQUEST_ID_KEY = "x-request-id"
"""Metadata that names a request, both ways."""

_Response = TypeVar("_Response")

_DEADLINE_SLACK_S = 0.05  # the caller's clock may cancel this much before ours says that the deadline passed


@dataclass(slots=True, kw_only=True)
class _Call:
    """What is known of one RPC, for its log line and metrics; filled in as it goes."""

    path: str
    """`/package.Service/Method`."""
    method: str
    request_id: str
    peer: str
    trace: RequestTrace
    facts: AccessRecord
    started_s: float
    is_gated: bool
    """Whether it must pass the gate."""
    is_stream: bool = False
    """Whether it carries requests that are answered and counted one by one."""
    is_admitted: bool = False
    """Whether the gate let it in; the queue counts what it refuses itself."""
    status: str = grpc.StatusCode.UNKNOWN.name
    failure: dict[str, str] = dataclasses.field(default_factory=dict)
    """If it failed, the reason, and the field that the caller must change if that is why."""
    request_bytes: int = 0
    response_bytes: int = 0


class RequestInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Wraps each method of the given services; those of `gated_service` must pass the gate."""

    def __init__(
        self,
        service_names: tuple[str, ...],
        *,
        gated_service: str,
        gate: Gate,
        metrics: Metrics,
        access: Access | None = None,
        tracing: Tracing | None = None,
        logs_texts: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefixes = tuple(f"/{name}/" for name in service_names)
        self._gated_prefix = f"/{gated_service}/"
        self._gate = gate
        self._metrics = metrics
        self._access = access
        self._tracing = tracing or NoTracing()
        self._logs_texts = logs_texts
        self._clock = clock

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:  # a grpc.RpcMethodHandler, or None if there is no such method
        """Return the handler of the method with everything above around it."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(self._prefixes):
            return handler
        wrap = self._wrap_stream if handler.response_streaming else self._wrap_unary
        return wrap(method, handler)

    def _wrap_unary(self, method: str, handler: Any) -> Any:
        async def answer(raw_request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            call = self._start(method, context)

            async def respond() -> bytes:
                request = _parsed(raw_request, handler.request_deserializer)
                _name_request(request, call)
                raw_response: bytes = handler.response_serializer(await handler.unary_unary(request, context))
                call.response_bytes = len(raw_response)
                return raw_response

            call.request_bytes = len(raw_request)
            return await self._answer(call, context, respond)

        return grpc.unary_unary_rpc_method_handler(freed_when_aborted(answer))  # no codecs: bytes in, bytes out

    def _wrap_stream(self, method: str, handler: Any) -> Any:
        wrap = self._wrap_requests if handler.request_streaming else self._wrap_responses
        return wrap(method, handler)

    def _wrap_responses(self, method: str, handler: Any) -> Any:
        """One request, many responses."""

        async def answer(raw_request: bytes, context: grpc.aio.ServicerContext) -> None:
            call = self._start(method, context)
            stream = ResponseStream(context)

            async def respond() -> None:
                request = _parsed(raw_request, handler.request_deserializer)
                _name_request(request, call)
                try:
                    await handler.unary_stream(request, stream)
                finally:
                    call.response_bytes = stream.num_bytes

            call.request_bytes = len(raw_request)
            await self._answer(call, context, respond)

        return grpc.unary_stream_rpc_method_handler(freed_when_aborted(answer))  # no codecs: bytes in, bytes out

    def _wrap_requests(self, method: str, handler: Any) -> Any:
        """Many requests, each answered as if it were a call of its own."""

        async def answer(_requests: Any, context: grpc.aio.ServicerContext) -> None:
            call = self._start(method, context)
            call.is_stream = True

            def received(raw_request: bytes) -> StreamedRequest:
                call.request_bytes += len(raw_request)
                message, problem = _parsed_or_named(raw_request, handler.request_deserializer)
                answered = partial(self._answer_one, method, context, message, len(raw_request))
                return StreamedRequest(message=message, answered=answered, problem=problem)

            async def respond() -> None:
                try:
                    await handler.stream_stream(stream, context)
                finally:
                    call.response_bytes = stream.num_bytes

            stream = RequestStream(context, self._gate, received)
            await self._answer(call, context, respond, stream.before_refusal)

        return grpc.stream_stream_rpc_method_handler(freed_when_aborted(answer))  # no codecs: bytes in, bytes out

    async def _answer_one(
        self, method: str, context: grpc.aio.ServicerContext, request: Any, num_bytes: int, respond: Respond
    ) -> bytes:
        """Answer one request of a stream, in a task of its own; return the response, which tells the error if any."""
        call = self._start(method, context)
        call.request_bytes = num_bytes
        with self._observed(call):
            try:
                with self._admitted(call, context):
                    _adopt_id(request, call)
                    response = await respond()
            except asyncio.CancelledError:
                call.status = _why_cancelled(context).name
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer
                status_ = self._refused(call, error).status
                response = messages.to_error_response(status_, request_id=request.request_id)
            else:
                call.status = grpc.StatusCode.OK.name
            raw_response = response.SerializeToString()
            call.response_bytes = len(raw_response)
        return raw_response

    def _start(self, method: str, context: grpc.aio.ServicerContext) -> _Call:
        metadata = dict(context.invocation_metadata() or ())
        sent_id = metadata.get(REQUEST_ID_KEY, "")
        request_id = sent_id if _is_usable(sent_id) else uuid.uuid4().hex
        set_caller(peer_name(context.peer()))
        trace, facts = self._tracing.begin(method, metadata), AccessRecord(keeps_texts=self._logs_texts)
        set_current_trace(trace)
        set_current_record(facts)
        structlog.contextvars.bind_contextvars(request_id=request_id)  # a task of its own runs each RPC
        if trace.trace_id:
            structlog.contextvars.bind_contextvars(trace_id=trace.trace_id)
        return _Call(
            path=method,
            method=method.rpartition("/")[2],
            request_id=request_id,
            peer=context.peer(),
            trace=trace,
            facts=facts,
            started_s=self._clock(),
            is_gated=method.startswith(self._gated_prefix),
        )

    async def _answer(
        self,
        call: _Call,
        context: grpc.aio.ServicerContext,
        respond: Callable[[], Awaitable[_Response]],
        before_refusal: Callable[[], Awaitable[None]] | None = None,
    ) -> _Response:
        with self._observed(call):  # the figures are complete before the caller sees the status
            try:
                with self._admitted(call, context):
                    response = await respond()
            except asyncio.CancelledError:
                call.status = _why_cancelled(context).name
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer
                answer = self._refused(call, error)
            else:
                call.status = grpc.StatusCode.OK.name
                context.set_trailing_metadata(((REQUEST_ID_KEY, call.request_id),))
                return response
        if before_refusal is not None:
            await before_refusal()
        await context.abort(answer.code, answer.message, (*answer.trailing_metadata, (REQUEST_ID_KEY, call.request_id)))
        raise AssertionError("abort returned")

    @contextlib.contextmanager
    def _admitted(self, call: _Call, context: grpc.aio.ServicerContext) -> Iterator[None]:
        """Let a call in, or a request of a stream: who may not come in is told by the error raised."""
        if self._access:
            set_caller(self._access.admit(call.path, context))
        with self._gate.admitted() if call.is_gated else contextlib.nullcontext():
            call.is_admitted = True
            yield

    @contextlib.contextmanager
    def _observed(self, call: _Call) -> Iterator[None]:
        in_flight = (
            self._metrics.open_streams if call.is_stream else self._metrics.requests_in_flight.labels(call.method)
        )
        in_flight.inc()
        try:
            yield
        finally:
            in_flight.dec()
            self._record(call)

    def _refused(self, call: _Call, error: Exception) -> status.Answer:
        """Note why a call failed, and return what its caller is told."""
        answer = status.answer(error)
        call.status = answer.code.name
        call.failure = {"reason": answer.reason}
        if isinstance(error, RequestError):
            call.failure["field"] = error.field
        if isinstance(error, RequestError | RateLimitedError) or not call.is_admitted:
            self._metrics.rejected_requests.labels(answer.reason.lower()).inc()
        if answer.code is grpc.StatusCode.INTERNAL:
            log.error("request failed", method=call.method, exc_info=error)
        return answer

    def _record(self, call: _Call) -> None:
        duration_s = self._clock() - call.started_s
        if not call.is_stream or call.failure:  # the requests of a stream are counted one by one
            self._metrics.requests.labels(call.method, call.status).inc()
            self._metrics.request_seconds.labels(call.method).observe(duration_s, call.trace.exemplar)
        log.info(
            "stream" if call.is_stream else "request",
            method=call.method,
            status=call.status,
            duration_s=round(duration_s, 6),
            caller=current_caller(),
            peer=call.peer,
            request_bytes=call.request_bytes,
            response_bytes=call.response_bytes,
            **call.facts.log_fields(),
            **call.failure,
        )
        attributes = {"mt.request_id": call.request_id, **call.facts.span_attributes(), **_as_attributes(call.failure)}
        call.trace.end(status=call.status, attributes=attributes)


def _as_attributes(failure: Mapping[str, str]) -> dict[str, str]:
    return {f"mt.{name}": value for name, value in failure.items()}


def _parsed(raw_request: bytes, deserialize: Callable[[bytes], Message]) -> Message:
    try:
        return deserialize(raw_request)
    except DecodeError as error:
        raise InvalidFieldError("request", "no valid protobuf message", "one, with all texts in UTF-8") from error


def _parsed_or_named(
    raw_request: bytes, deserialize: Callable[[bytes], Message]
) -> tuple[Message, InvalidFieldError | None]:
    """Return a request, or its name alone and what is wrong with it."""
    try:
        return _parsed(raw_request, deserialize), None
    except InvalidFieldError as problem:
        return pb.TranslateRequest(request_id=readable_id(raw_request)), problem


def _name_request(request: Any, call: _Call) -> None:
    """Agree on one id: the message's own goes first, and the message gets the call's if it has none."""
    if not hasattr(request, "request_id"):
        return
    if request.request_id:
        messages.check_request_id(request.request_id)
        call.request_id = request.request_id
        structlog.contextvars.bind_contextvars(request_id=call.request_id)
    request.request_id = call.request_id


def _adopt_id(request: Any, call: _Call) -> None:
    """Take the id of a request of a stream, which its caller must give; without one, that of the stream names it."""
    if _is_usable(request.request_id):
        call.request_id = request.request_id
        structlog.contextvars.bind_contextvars(request_id=call.request_id)


def _is_usable(request_id: str | bytes) -> bool:
    try:
        messages.check_request_id(str(request_id))
    except InvalidFieldError:
        return False
    return bool(request_id)


def _why_cancelled(context: grpc.aio.ServicerContext) -> grpc.StatusCode:
    """Tell a caller who left from one whose time ran out: gRPC cancels both alike."""
    remaining_s = context.time_remaining()
    if remaining_s is not None and remaining_s <= _DEADLINE_SLACK_S:
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return grpc.StatusCode.CANCELLED
