"""Health, which needs no key, and reflection, which needs any valid key. Neither is counted as a request."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from dragoman_service.errors import DragomanError
from dragoman_service.grpc_api.servicer import Behavior, RawResponse, without_traceback
from dragoman_service.middleware import error_mapping
from dragoman_service.middleware.conversion import parse_message
from dragoman_service.middleware.flow_control import ResourceLimits, run_to_completion
from dragoman_service.security.authentication import Access, peer_name

HEALTH_NAME = "grpc.health.v1.Health"

_V1ALPHA = "v1alpha"
_REFLECTION_V1 = reflection.SERVICE_NAME.replace(_V1ALPHA, "v1")
_REFLECTION_NAMES = (_REFLECTION_V1, reflection.SERVICE_NAME)  # clients try v1 first; grpcio 1.85 has only v1alpha


def add_reflection(server: grpc.aio.Server, names: Iterable[str]) -> None:
    """Register both versions of reflection, for these services, with a server."""
    v1 = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(v1)
    v1 = text_format.Parse(
        text_format.MessageToString(v1).replace(_V1ALPHA, "v1"), descriptor_pb2.FileDescriptorProto()
    )
    descriptor_pool.Default().Add(v1)
    servicer = reflection.aio.ReflectionServicer((*names, *_REFLECTION_NAMES))
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,  # equal in both versions except for the package
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in _REFLECTION_NAMES:
        handlers = {"ServerReflectionInfo": handler}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        server.add_registered_method_handlers(name, handlers)


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc has no types
    """grpc.health.v1.Health; a slow watcher does not delay changes of the state."""

    def __init__(self, names: Collection[str], bounds: ResourceLimits) -> None:
        """Start as not serving, for services of these names."""
        self._names = frozenset(names)
        self._bounds = bounds
        self._is_serving = False
        self._changed = asyncio.Event()

    def set_serving(self, is_serving: bool) -> None:
        """Set whether new calls are admitted."""
        self._is_serving = is_serving
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Return the state."""
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return self._response(request.service)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext) -> None:
        """Send the state now and after each change, for a limited time; a slow reader can miss changes."""
        peer, is_known = peer_name(context.peer()), request.service in self._names
        self._bounds.watchers.acquire(peer)
        context.add_done_callback(lambda _: self._bounds.watchers.release(peer))  # after the status was sent
        try:
            async with asyncio.timeout(self._bounds.settings.max_watch_s):
                # In an operation of its own, so that a status can follow a pending message.
                await run_to_completion(context.send_initial_metadata(()))
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


class ControlServices:
    """Wraps the methods of health and reflection with the resource limits; they are not counted as requests."""

    def __init__(self, access: Access, bounds: ResourceLimits) -> None:
        self._access = access
        self._bounds = bounds

    def wrap(self, service: str, handler: Any) -> Any:
        """Return the handler of a method with limits, or unchanged if it belongs to another service."""
        if service not in (HEALTH_NAME, *_REFLECTION_NAMES):
            return handler
        is_unary = not (handler.request_streaming or handler.response_streaming)
        make_handler = grpc.stream_unary_rpc_method_handler if is_unary else grpc.stream_stream_rpc_method_handler
        answer = self._reflection(handler) if handler.request_streaming else self._health(handler)
        return make_handler(without_traceback(answer), None, handler.response_serializer)

    def _health(self, handler: Any) -> Behavior:
        async def answer(_requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
            try:
                raw_request = await self._bounds.anonymous_receiver.receive(context, peer_name(context.peer()))
                self._bounds.check_control_message(len(raw_request))
                request = parse_message(raw_request, handler.request_deserializer)
                method = handler.unary_stream if handler.response_streaming else handler.unary_unary
                response: RawResponse = await method(request, context)  # serialized by gRPC
            except DragomanError as error:
                return await _abort(context, error)
            return response

        return answer

    def _reflection(self, handler: Any) -> Behavior:
        async def checked(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
            async for raw_request in requests:
                self._bounds.check_control_message(len(raw_request))
                yield parse_message(raw_request, handler.request_deserializer)

        async def answer(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> RawResponse:
            try:
                try:
                    self._access.check_known(context)
                except DragomanError:
                    await self._bounds.anonymous_receiver.read_before_rejection(context)
                    raise
                with self._bounds.streams.held(peer_name(context.peer())):
                    async with asyncio.timeout(self._bounds.settings.stream_idle_timeout_s):
                        async for response in handler.stream_stream(checked(requests), context):
                            await run_to_completion(context.write(response))
            except TimeoutError:
                return None
            except DragomanError as error:
                return await _abort(context, error)
            return None

        return answer


async def _abort(context: grpc.aio.ServicerContext, error: DragomanError) -> RawResponse:
    rpc_error = error_mapping.to_rpc_error(error)
    await context.abort(rpc_error.code, rpc_error.message, rpc_error.trailing_metadata)
    raise AssertionError("abort returned")
