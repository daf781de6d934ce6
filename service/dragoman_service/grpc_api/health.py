"""Health, which needs no key, and reflection, for which any key is enough. Neither counts as a request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from dragoman_service.errors import DragomanError
from dragoman_service.grpc_api.interceptors import Handler, RawResponse, freed_when_aborted
from dragoman_service.grpc_api.streaming import parsed
from dragoman_service.middleware import error_mapping
from dragoman_service.middleware.flow_control import ResourceLimits, run_to_completion
from dragoman_service.security.api_keys import peer_name
from dragoman_service.security.authentication import Access

HEALTH_NAME = "grpc.health.v1.Health"

_V1ALPHA = "v1alpha"
_REFLECTION_V1 = reflection.SERVICE_NAME.replace(_V1ALPHA, "v1")
_REFLECTION_NAMES = (_REFLECTION_V1, reflection.SERVICE_NAME)
"""Both versions of reflection: clients try v1 first. grpcio-reflection 1.85 has v1alpha only."""


def add_reflection(server: grpc.aio.Server, names: Iterable[str]) -> None:
    """Register reflection of these services, and of itself, with a server."""
    v1 = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(v1)
    v1 = text_format.Parse(
        text_format.MessageToString(v1).replace(_V1ALPHA, "v1"), descriptor_pb2.FileDescriptorProto()
    )
    descriptor_pool.Default().Add(v1)
    servicer = reflection.aio.ReflectionServicer((*names, *_REFLECTION_NAMES))
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,  # the same in both versions, apart from the package
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in _REFLECTION_NAMES:
        handlers = {"ServerReflectionInfo": handler}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        server.add_registered_method_handlers(name, handlers)


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc has no types
    """grpc.health.v1.Health. Its state changes at once, whatever those who watch it read."""

    def __init__(self, names: Collection[str], bounds: ResourceLimits) -> None:
        """Begin as not serving; of other names than these, nothing is kept."""
        self._names = frozenset(names)
        self._bounds = bounds
        self._is_serving = False
        self._changed = asyncio.Event()

    def set_serving(self, is_serving: bool) -> None:
        """Tell load balancers, and those who watch, whether new calls are admitted."""
        self._is_serving = is_serving
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Answer with the state."""
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return self._response(request.service)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext) -> None:
        """Send the state now and whenever it changes, for a limited time; one who does not read misses changes."""
        peer, is_known = peer_name(context.peer()), request.service in self._names
        self._bounds.watchers.take(peer)
        context.add_done_callback(lambda _: self._bounds.watchers.give_back(peer))  # once the status is sent, too
        try:
            async with asyncio.timeout(self._bounds.settings.max_watch_s):
                await run_to_completion(
                    context.send_initial_metadata(())
                )  # apart, so that a status may follow the message
                while True:
                    changed = self._changed
                    await run_to_completion(context.write(self._response(request.service)))
                    await (changed.wait() if is_known else asyncio.Event().wait())
        except TimeoutError:
            return

    def _response(self, name: str) -> health_pb2.HealthCheckResponse:
        states = health_pb2.HealthCheckResponse
        if name not in self._names:
            return states(status=states.SERVICE_UNKNOWN)
        return states(status=states.SERVING if self._is_serving else states.NOT_SERVING)


class OpenServicesInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Receives what health and reflection are asked within the bounds of all calls; other methods pass untouched."""

    def __init__(self, access: Access, bounds: ResourceLimits) -> None:
        self._access = access
        self._bounds = bounds

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:  # a grpc.RpcMethodHandler, or None if there is no such method
        """Return the handler of the method with everything above around it."""
        handler = await continuation(handler_call_details)
        service = handler_call_details.method.strip("/").partition("/")[0]
        if handler is None or service not in (HEALTH_NAME, *_REFLECTION_NAMES):
            return handler
        is_unary = not (handler.request_streaming or handler.response_streaming)
        make_handler = grpc.stream_unary_rpc_method_handler if is_unary else grpc.stream_stream_rpc_method_handler
        answer = self._reflection(handler) if handler.request_streaming else self._health(handler)
        return make_handler(freed_when_aborted(answer), None, handler.response_serializer)

    def _health(self, handler: Any) -> Handler:
        async def answer(_requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
            try:
                raw_request = await self._bounds.open_receiver.receive(context, peer_name(context.peer()))
                self._bounds.check_control_message(len(raw_request))
                request = parsed(raw_request, handler.request_deserializer)
                method = handler.unary_stream if handler.response_streaming else handler.unary_unary
                response: RawResponse = await method(request, context)  # serialized by gRPC
            except DragomanError as error:
                return await _aborted(context, error)
            return response

        return answer

    def _reflection(self, handler: Any) -> Handler:
        async def checked(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
            async for raw_request in requests:
                self._bounds.check_control_message(len(raw_request))
                yield parsed(raw_request, handler.request_deserializer)

        async def answer(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> RawResponse:
            try:
                try:
                    self._access.check_known(context)
                except DragomanError:
                    await self._bounds.open_receiver.before_rejection(context)
                    raise
                with self._bounds.streams.taken(peer_name(context.peer())):
                    async with asyncio.timeout(self._bounds.settings.stream_idle_timeout_s):
                        async for response in handler.stream_stream(checked(requests), context):
                            await run_to_completion(context.write(response))
            except TimeoutError:
                return None
            except DragomanError as error:
                return await _aborted(context, error)
            return None

        return answer


async def _aborted(context: grpc.aio.ServicerContext, error: DragomanError) -> RawResponse:
    rejection = error_mapping.answer(error)
    await context.abort(rejection.code, rejection.message, rejection.trailing_metadata)
    raise AssertionError("abort returned")
