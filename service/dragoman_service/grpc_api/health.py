"""Health, which needs no key, and reflection, which needs any valid key. Neither is counted as a request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from dragoman_service.calls import error_mapping
from dragoman_service.calls.conversion import parse_message
from dragoman_service.calls.flow_control import ResourceLimits, run_to_completion
from dragoman_service.errors import DragomanError, RetryableError
from dragoman_service.grpc_api.servicer import Behavior, RawResponse, register, without_traceback
from dragoman_service.security.authentication import Access, peer_name

HEALTH_NAME = "grpc.health.v1.Health"

_V1ALPHA = "v1alpha"
_REFLECTION_V1 = reflection.SERVICE_NAME.replace(_V1ALPHA, "v1")
_REFLECTION_NAMES = (_REFLECTION_V1, reflection.SERVICE_NAME)  # clients try v1 first; grpcio 1.85 has only v1alpha

CONTROL_NAMES = (HEALTH_NAME, *_REFLECTION_NAMES)
"""Services that every server has, in addition to its API."""


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
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service; Health/List returns all services")
        return self._response(request.service)

    async def List(
        self, _request: health_pb2.HealthListRequest, _context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthListResponse:
        """Return the state of every service."""
        return health_pb2.HealthListResponse(statuses={name: self._response(name) for name in self._names})

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext) -> None:
        """Send the state now and after each change; a slow reader can miss changes.

        Ends only with its connection, and UNIMPLEMENTED is the status at the limit of watchers: a client with health
        checks regards any other end as the failure of all its calls (gRFC A17, client-side health checking).
        """
        peer, is_known = peer_name(context.peer()), request.service in self._names
        try:
            self._bounds.watchers.acquire(peer)
        except RetryableError as error:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
        context.add_done_callback(lambda _: self._bounds.watchers.release(peer))  # after the status was sent
        await run_to_completion(context.send_initial_metadata(()))
        while True:
            changed = self._changed
            await run_to_completion(context.write(self._response(request.service)))
            await (changed.wait() if is_known else asyncio.Event().wait())

    def _response(self, name: str) -> health_pb2.HealthCheckResponse:
        states = health_pb2.HealthCheckResponse
        if name not in self._names:
            return states(status=states.SERVICE_UNKNOWN)
        return states(status=states.SERVING if self._is_serving else states.NOT_SERVING)


class ControlServices:
    """Health and reflection with the resource limits; their calls are not counted as requests."""

    def __init__(self, health: Health, access: Access, bounds: ResourceLimits) -> None:
        self._health_servicer = health
        self._access = access
        self._bounds = bounds

    def add_to(self, server: grpc.aio.Server, names: Iterable[str]) -> None:
        """Register health and both versions of reflection with a server; reflection lists services of these names."""
        health, response = self._health_servicer, health_pb2.HealthCheckResponse.SerializeToString
        check = grpc.stream_unary_rpc_method_handler(without_traceback(self._health(health.Check)), None, response)
        watch = grpc.stream_stream_rpc_method_handler(without_traceback(self._health(health.Watch)), None, response)
        states = grpc.stream_unary_rpc_method_handler(
            without_traceback(self._health(health.List, health_pb2.HealthListRequest)),
            None,
            health_pb2.HealthListResponse.SerializeToString,
        )
        register(server, HEALTH_NAME, {"Check": check, "List": states, "Watch": watch})
        _add_v1_descriptors()
        servicer = reflection.aio.ReflectionServicer((*names, *CONTROL_NAMES))
        # The messages of both versions are equal except for the package.
        info = grpc.stream_stream_rpc_method_handler(
            without_traceback(self._reflection(servicer.ServerReflectionInfo)),
            None,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        for name in _REFLECTION_NAMES:
            register(server, name, {"ServerReflectionInfo": info})

    def _health(
        self,
        method: Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]],
        kind: type[Any] = health_pb2.HealthCheckRequest,
    ) -> Behavior:
        async def answer(_requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
            try:
                raw_request = await self._bounds.anonymous_receiver.receive(context, peer_name(context.peer()))
                self._bounds.check_control_message(len(raw_request))
                request = parse_message(raw_request, kind.FromString)
                response: RawResponse = await method(request, context)  # serialized by gRPC
            except DragomanError as error:
                return await _abort(context, error)
            return response

        return answer

    def _reflection(self, method: Callable[[Any, grpc.aio.ServicerContext], AsyncIterator[Any]]) -> Behavior:
        async def checked(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
            async for raw_request in requests:
                self._bounds.check_control_message(len(raw_request))
                yield parse_message(raw_request, reflection_pb2.ServerReflectionRequest.FromString)

        async def answer(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> RawResponse:
            try:
                try:
                    self._access.check_known(context)
                except DragomanError:
                    await self._bounds.anonymous_receiver.read_before_rejection(context)
                    raise
                with self._bounds.streams.held(peer_name(context.peer())):
                    async with asyncio.timeout(self._bounds.settings.stream_idle_timeout_s):
                        async for response in method(checked(requests), context):
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


def _add_v1_descriptors() -> None:
    v1 = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(v1)
    v1 = text_format.Parse(
        text_format.MessageToString(v1).replace(_V1ALPHA, "v1"), descriptor_pb2.FileDescriptorProto()
    )
    descriptor_pool.Default().Add(v1)
