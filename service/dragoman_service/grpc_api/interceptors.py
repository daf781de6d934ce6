"""The pipeline of all requests around every RPC of ours.

Receiving and parsing are part of it: gRPC is asked for the message of a call once its caller is known, and a message
that is no protobuf, or holds text that is no UTF-8, is answered like any other bad request. Health and reflection pass
untouched: probes must not be rejected, and would dominate the figures.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any

import grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.grpc_api.streaming import RequestStream, Respond, parsed
from dragoman_service.middleware import error_mapping
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
"""Serialized; None if a stream has sent all there is to send."""

Handler = Callable[[Any, grpc.aio.ServicerContext], Awaitable[RawResponse]]
"""Answers a call of `grpc.aio` without codecs."""


class RequestInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Wraps each method of the given services."""

    def __init__(
        self, service_names: tuple[str, ...], pipeline: RequestPipeline, *, aliases: Mapping[str, str] | None = None
    ) -> None:
        """`aliases` are paths of methods that are answered as others of these services."""
        self._aliases = aliases or {}
        self._prefixes = tuple(f"/{name}/" for name in service_names)
        self._pipeline = pipeline
        self.num_calls = 0
        """Calls so far, of all services."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:  # a grpc.RpcMethodHandler, or None if there is no such method
        """Return the handler of the method with everything above around it."""
        self.num_calls += 1
        handler = await continuation(handler_call_details)
        path = self._aliases.get(handler_call_details.method, handler_call_details.method)
        if handler is None or not path.startswith(self._prefixes):
            return handler
        wrapped = self._many_requests(path, handler) if handler.request_streaming else self._one_request(path, handler)
        has_many = handler.request_streaming or handler.response_streaming
        make_handler = grpc.stream_stream_rpc_method_handler if has_many else grpc.stream_unary_rpc_method_handler
        return make_handler(freed_when_aborted(wrapped))  # no codecs, and nothing is read yet

    def _one_request(self, path: str, handler: Any) -> Handler:
        async def answer(_requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
            record = self._pipeline.start(path, context)

            async def respond(raw_request: bytes) -> RawResponse:
                request = parsed(raw_request, handler.request_deserializer)
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
        """Each is answered as if it were a call of its own, in a task of its own; an error is sent in the response."""

        async def answer(_requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
            record = self._pipeline.start(path, context)
            record.is_stream = True

            async def answer_raw(raw_request: bytes, request: Any, respond: Respond) -> bytes:
                own_record = self._pipeline.start(path, context, deadline_s=record.deadline_s)

                async def responded(_raw_request: bytes) -> bytes:
                    adopt_request_id(own_record, request.request_id)
                    return (await respond(own_record)).SerializeToString()

                def to_response(failure: error_mapping.Answer) -> bytes:
                    return pb.TranslateResponse(request_id=request.request_id, error=failure.status).SerializeToString()

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
                if isinstance(outcome, error_mapping.Answer) and not stream.has_begun:
                    await self._pipeline.bounds.open_receiver.before_rejection(context)
                return await _sent(record, context, outcome)

        return answer


async def _sent(
    record: RequestRecord, context: grpc.aio.ServicerContext, outcome: RawResponse | error_mapping.Answer
) -> RawResponse:
    """Return the response of an RPC, or abort it; either way the caller learns the id of its request."""
    request_id = (REQUEST_ID_KEY, record.request_id)
    if not isinstance(outcome, error_mapping.Answer):
        context.set_trailing_metadata((request_id,))
        return outcome
    await context.abort(outcome.code, outcome.message, (*outcome.trailing_metadata, request_id))
    raise AssertionError("abort returned")


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
