"""What happens around every RPC of ours: admission, request id, error to status, metrics, one line of log.

Parsing is part of it, so that a message that is no protobuf, or holds text that is no UTF-8, is answered like any other
bad request. Health and reflection pass untouched: probes must not be refused, and would drown the figures.
"""

import asyncio
import contextlib
import dataclasses
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from service.api import messages, status
from service.api.gate import Gate
from service.errors import InvalidFieldError, RequestError
from service.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

REQUEST_ID_KEY = "x-request-id"
"""Metadata that names a request, both ways."""

_Response = TypeVar("_Response")

_DEADLINE_SLACK_S = 0.05  # the caller's clock may cancel this much before ours says that the deadline passed


@dataclass(slots=True, kw_only=True)
class _Call:
    """What is known of one RPC, for its log line and metrics; filled in as it goes."""

    method: str
    request_id: str
    started_s: float
    is_gated: bool
    """Whether it must pass the gate."""
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefixes = tuple(f"/{name}/" for name in service_names)
        self._gated_prefix = f"/{gated_service}/"
        self._gate = gate
        self._metrics = metrics
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

        return grpc.unary_unary_rpc_method_handler(answer)  # no codecs: bytes in, bytes out

    def _wrap_stream(self, method: str, handler: Any) -> Any:
        behaviour = handler.stream_stream or handler.unary_stream
        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )

        async def answer(request: Any, context: grpc.aio.ServicerContext) -> None:
            await self._answer(self._start(method, context), context, lambda: behaviour(request, context))

        return make(answer, handler.request_deserializer, handler.response_serializer)

    def _start(self, method: str, context: grpc.aio.ServicerContext) -> _Call:
        sent_id = dict(context.invocation_metadata() or ()).get(REQUEST_ID_KEY, "")
        request_id = sent_id if _is_usable(sent_id) else uuid.uuid4().hex
        structlog.contextvars.bind_contextvars(request_id=request_id)  # a task of its own runs each RPC
        return _Call(
            method=method.rpartition("/")[2],
            request_id=request_id,
            started_s=self._clock(),
            is_gated=method.startswith(self._gated_prefix),
        )

    async def _answer(
        self, call: _Call, context: grpc.aio.ServicerContext, respond: Callable[[], Awaitable[_Response]]
    ) -> _Response:
        with self._observed(call):  # the figures are complete before the caller sees the status
            try:
                with self._gate.admitted() if call.is_gated else contextlib.nullcontext():
                    call.is_admitted = True
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
        await context.abort(answer.code, answer.message, (*answer.trailing_metadata, (REQUEST_ID_KEY, call.request_id)))
        raise AssertionError("abort returned")

    @contextlib.contextmanager
    def _observed(self, call: _Call) -> Iterator[None]:
        in_flight = self._metrics.requests_in_flight.labels(call.method)
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
        if isinstance(error, RequestError) or not call.is_admitted:
            self._metrics.rejected_requests.labels(answer.reason.lower()).inc()
        if answer.code is grpc.StatusCode.INTERNAL:
            log.error("request failed", method=call.method, exc_info=error)
        return answer

    def _record(self, call: _Call) -> None:
        duration_s = self._clock() - call.started_s
        self._metrics.requests.labels(call.method, call.status).inc()
        self._metrics.request_seconds.labels(call.method).observe(duration_s)
        log.info(
            "request",
            method=call.method,
            status=call.status,
            duration_s=round(duration_s, 6),
            request_bytes=call.request_bytes,
            response_bytes=call.response_bytes,
            **call.failure,
        )


def _parsed(raw_request: bytes, deserialize: Callable[[bytes], Message]) -> Message:
    try:
        return deserialize(raw_request)
    except DecodeError as error:
        raise InvalidFieldError("request", "no valid protobuf message", "one, with all texts in UTF-8") from error


def _name_request(request: Any, call: _Call) -> None:
    """Agree on one id: the message's own goes first, and the message gets the call's if it has none."""
    if not hasattr(request, "request_id"):
        return
    if request.request_id:
        messages.check_request_id(request.request_id)
        call.request_id = request.request_id
        structlog.contextvars.bind_contextvars(request_id=call.request_id)
    request.request_id = call.request_id


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
