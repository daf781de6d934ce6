"""The interceptor that runs the request pipeline around every method.

It also receives and parses the messages: a message is read after its caller is authenticated, and an invalid message is
answered like any other invalid request.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

import grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.grpc_api.streaming import RequestStream, Respond
from dragoman_service.middleware import error_mapping
from dragoman_service.middleware.conversion import parse_message
from dragoman_service.middleware.flow_control import ResponseStream
from dragoman_service.middleware.pipeline import (
    REQUEST_ID_KEY,
    RequestPipeline,
    adopt_request_id,
    as_status,
    resolve_request_id,
)
from dragoman_service.request import RequestRecord

RawResponse = bytes | None
"""Serialized response; None if a stream has sent all its messages."""

Handler = Callable[[Any, grpc.aio.ServicerContext], Awaitable[RawResponse]]
"""Answers a call of `grpc.aio` that is neither deserialized nor serialized."""


class MethodWrapper(Protocol):
    """Wraps methods of other services."""

    def wrap(self, service: str, handler: Any) -> Any:
        """Return the handler of a method, wrapped or unchanged."""


class RequestInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Wraps the methods of the given services, and those of health and reflection."""

    def __init__(
        self,
        service_names: tuple[str, ...],
        pipeline: RequestPipeline,
        *,
        control: MethodWrapper | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """`aliases` maps paths of other methods to the methods of these services that they count as."""
        self._service_names = frozenset(service_names)
        self._pipeline = pipeline
        self._control = control
        self._aliases = aliases or {}
        self.num_calls = 0  # of all services

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:  # a grpc.RpcMethodHandler, or None for an unknown method
        """Return the wrapped handler of a method."""
        self.num_calls += 1
        handler = await continuation(handler_call_details)
        path = self._aliases.get(handler_call_details.method, handler_call_details.method)
        service = path.strip("/").partition("/")[0]
        if handler is None:
            return None
        if service not in self._service_names:
            return self._control.wrap(service, handler) if self._control else handler
        wrapped = self._many_requests(path, handler) if handler.request_streaming else self._one_request(path, handler)
        has_many = handler.request_streaming or handler.response_streaming
        make_handler = grpc.stream_stream_rpc_method_handler if has_many else grpc.stream_unary_rpc_method_handler
        return make_handler(without_traceback(wrapped))  # without codecs, before a message is read

    def _one_request(self, path: str, handler: Any) -> Handler:
        async def answer(_requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
            record = self._pipeline.start(path, context)

            async def respond(raw_request: bytes) -> RawResponse:
                request = parse_message(raw_request, handler.request_deserializer)
                resolve_request_id(record, request)
                if handler.response_streaming:
                    stream = ResponseStream(record, context, self._pipeline.bounds.settings.stream_idle_timeout_s)
                    await handler.unary_stream(request, stream)
                    return None
                raw_response: bytes = handler.response_serializer(await handler.unary_unary(request, record))
                return raw_response

            with ExitStack() as slots:
                streams = slots if handler.response_streaming else None
                outcome = await self._pipeline.answer(record, context, respond, as_status, streams=streams)
                return await _sent(record, context, outcome)

        return answer

    def _many_requests(self, path: str, handler: Any) -> Handler:
        """Answer each request like a call of its own, in a task of its own, with errors in the response."""

        async def answer(_requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
            record = self._pipeline.start(path, context)
            record.is_stream = True

            async def answer_raw(raw_request: bytes, request: Any, respond: Respond) -> bytes:
                own_record = self._pipeline.start(path, context, deadline_s=record.deadline_s)

                async def responded(_raw_request: bytes) -> bytes:
                    adopt_request_id(own_record, request.request_id)
                    return (await respond(own_record)).SerializeToString()

                def to_response(error: error_mapping.RpcError) -> bytes:
                    return pb.TranslateResponse(request_id=request.request_id, error=error.status).SerializeToString()

                return await self._pipeline.answer(own_record, context, responded, to_response, raw_request=raw_request)

            idle_timeout_s = self._pipeline.bounds.settings.stream_idle_timeout_s
            stream = RequestStream(
                record,
                context,
                idle_timeout_s=idle_timeout_s,
                limiter=self._pipeline.limiter,
                deserialize=handler.request_deserializer,
                answer_raw=answer_raw,
            )

            async def respond(_no_request: bytes) -> None:
                await handler.stream_stream(stream, record)

            with ExitStack() as slots:
                outcome = await self._pipeline.answer(
                    record, context, respond, as_status, raw_request=b"", streams=slots
                )
                if isinstance(outcome, error_mapping.RpcError) and not stream.has_begun:
                    await self._pipeline.bounds.open_receiver.before_rejection(context)
                return await _sent(record, context, outcome)

        return answer


async def _sent(
    record: RequestRecord, context: grpc.aio.ServicerContext, outcome: RawResponse | error_mapping.RpcError
) -> RawResponse:
    """Return the response of an RPC or abort it, with the request id in the trailing metadata."""
    request_id = (REQUEST_ID_KEY, record.request_id)
    if not isinstance(outcome, error_mapping.RpcError):
        context.set_trailing_metadata((request_id,))
        return outcome
    await context.abort(outcome.code, outcome.message, (*outcome.trailing_metadata, request_id))
    raise AssertionError("abort returned")


def without_traceback(handler: Handler) -> Handler:
    """Return a handler whose aborted calls are freed by reference counting.

    The error that `abort` raises is kept with the call, and its traceback keeps every frame, one of which keeps the
    call. At thousands of rejections per second, the garbage collector would pause the server for tens of milliseconds.
    """

    async def answer(requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
        answering = handler(requests, context)
        del requests, context  # this frame stays with the error
        try:
            return await answering
        except grpc.aio.AbortError as error:
            raise error.with_traceback(None) from None

    return answer
