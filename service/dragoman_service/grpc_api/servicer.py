"""The methods of the API for `grpc.aio`: each receives and parses its messages within the request pipeline.

So a message is read after its caller is authenticated, and an invalid message is answered like any other invalid
request. gRPC neither deserializes requests nor serializes responses.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.calls import conversion, error_mapping
from dragoman_service.calls.handlers import Handler, Handlers
from dragoman_service.calls.pipeline import REQUEST_ID_KEY, Call, RequestPipeline, ResponseStream
from dragoman_service.calls.policy import POLICIES, TRANSLATE_DOCUMENT, TRANSLATE_STREAM, CallPolicy
from dragoman_service.grpc_api.streaming import RequestStream
from dragoman_service.observability.usage import WARNINGS_KEY

RawResponse = bytes | None  # serialized; None if a stream has sent all its messages

Behavior = Callable[[Any, grpc.aio.ServicerContext], Awaitable[RawResponse]]
"""Answers a call of `grpc.aio` that is neither deserialized nor serialized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnaryMethod:
    """A method with one request and one response."""

    policy: CallPolicy
    handler: Handler
    request: type[Any]  # class of the request


class GrpcExtension(Protocol):
    """A service of another API, whose methods have policies of this API."""

    name: str  # full name of the service
    methods: Mapping[str, UnaryMethod]  # by name

    def add_descriptors(self) -> None:
        """Add the service to the protobuf descriptors, for reflection."""


class Servicer:
    """Answers the methods of the API and of its extension."""

    def __init__(self, handlers: Handlers, pipeline: RequestPipeline) -> None:
        self._handlers = handlers
        self._pipeline = pipeline

    def add_to(self, server: grpc.aio.Server, extension: GrpcExtension | None = None) -> None:
        """Register all methods with a server."""
        behaviors: dict[CallPolicy, Behavior] = {
            TRANSLATE_DOCUMENT: self._translate_document,
            TRANSLATE_STREAM: self._translate_stream,
        }
        for service in pb.DESCRIPTOR.services_by_name.values():
            handlers = {}
            for method in service.methods:
                policy = POLICIES[f"/{service.full_name}/{method.name}"]
                behavior = behaviors.get(policy)
                if behavior is not None:
                    handlers[method.name] = grpc.stream_stream_rpc_method_handler(without_traceback(behavior))
                    continue
                kind = getattr(pb, method.input_type.name)
                handlers[method.name] = self.unary_handler(
                    UnaryMethod(policy=policy, handler=self._handlers.unary[policy], request=kind)
                )
            register(server, service.full_name, handlers)
        if extension:
            extension.add_descriptors()
            methods = {name: self.unary_handler(method) for name, method in extension.methods.items()}
            register(server, extension.name, methods)

    def unary_handler(self, method: UnaryMethod) -> Any:
        """Return the handler of a method for gRPC, which receives its request before it is read."""
        return grpc.stream_unary_rpc_method_handler(without_traceback(partial(self._answer, method)))

    async def _answer(self, method: UnaryMethod, _requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
        with self._pipeline.call(method.policy, context) as call:
            outcome = await self._pipeline.answer(call, partial(self._respond, method, call))
            return await _sent(call, context, outcome)

    async def _respond(self, method: UnaryMethod, call: Call, raw_request: bytes) -> RawResponse:
        request = self._parsed(raw_request, method.request, call)
        raw_response: bytes = (await method.handler(request, call)).SerializeToString()
        return raw_response

    async def _translate_document(self, _requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
        with self._pipeline.call(TRANSLATE_DOCUMENT, context) as call:
            outcome = await self._pipeline.answer(call, partial(self._send_sentences, call))
            return await _sent(call, context, outcome)

    async def _send_sentences(self, call: Call, raw_request: bytes) -> None:
        request = self._parsed(raw_request, pb.TranslateDocumentRequest, call)
        stream = ResponseStream(call, self._pipeline.bounds.settings.stream_idle_timeout_s)
        async with contextlib.aclosing(self._handlers.translate_document(request, call)) as sentences:
            async for sentence in sentences:
                await stream.write(sentence.SerializeToString())

    async def _translate_stream(self, _requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
        with self._pipeline.call(TRANSLATE_STREAM, context) as call:
            stream = RequestStream(call, self._pipeline, self._handlers.translate)
            outcome = await self._pipeline.answer(call, stream.answer_all)
            if isinstance(outcome, error_mapping.RpcError) and not stream.has_begun:
                await self._pipeline.bounds.anonymous_receiver.read_before_rejection(context)
            return await _sent(call, context, outcome)

    def _parsed(self, raw_request: bytes, kind: type[Any], call: Call) -> Any:
        request = conversion.parse_message(raw_request, kind.FromString)
        self._pipeline.identify(call, request)
        return request


def register(server: grpc.aio.Server, service: str, handlers: Mapping[str, Any]) -> None:
    """Register the handlers of a service by the names of their methods."""
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_registered_method_handlers(service, handlers)


async def _sent(
    call: Call, context: grpc.aio.ServicerContext, outcome: RawResponse | error_mapping.RpcError
) -> RawResponse:
    request_id = (REQUEST_ID_KEY, call.request_id)
    if not isinstance(outcome, error_mapping.RpcError):
        warnings = ((WARNINGS_KEY, call.usage.warning_header),) if call.usage.warnings else ()
        context.set_trailing_metadata((request_id, *warnings))
        return outcome
    await context.abort(outcome.code, outcome.message, (*outcome.trailing_metadata, request_id))
    raise AssertionError("abort returned")


def without_traceback(behavior: Behavior) -> Behavior:
    """Return a behavior whose aborted calls are freed by reference counting.

    The error that `abort` raises is kept with the call, and its traceback keeps every frame, one of which keeps the
    call. At thousands of rejections per second, the garbage collector would pause the server for tens of milliseconds.
    """

    async def answer(requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
        answering = behavior(requests, context)
        del requests, context  # this frame stays with the error
        try:
            return await answering
        except grpc.aio.AbortError as error:
            raise error.with_traceback(None) from None

    return answer
