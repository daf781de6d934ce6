"""A gRPC server that no name of a method can end.

gRPC's asyncio server (seen in grpcio 1.85.1) decodes the path of a method that is not registered in the loop that takes
all calls: a single path that is no UTF-8, from a caller without a key, ends the loop and closes the port for good.
Methods of generated services are registered and come with the name that they were registered with. So every other call
is taken here, under a name of ours, and answered UNIMPLEMENTED as gRPC would.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server

_ANY_METHOD = "/"


class Server(_server.Server):  # type: ignore[misc]  # grpc has no types
    """Answers the methods of generated services, and UNIMPLEMENTED to all others."""

    def __init__(
        self, interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int | str]]
    ) -> None:  # in place of the inherited one, which makes a server of gRPC's own class
        self._loop = cygrpc.get_working_loop()
        arguments = _server._augment_channel_arguments(options, None)
        self._server = _AioServer(self._loop, None, (), interceptors, arguments, None)
        self._server.interceptors = tuple(interceptors)


class _AioServer(cygrpc.AioServer):  # type: ignore[misc]
    interceptors: tuple[grpc.aio.ServerInterceptor, ...] = ()

    async def _request_call(self) -> None:
        """Take calls of methods that are not registered for as long as the server runs."""
        loop, answering = asyncio.get_running_loop(), set()
        while True:
            state = await super()._request_call()
            answer = cygrpc._handle_rpc(_ANY_METHOD, _NoMethods(), self.interceptors, state, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, _ANY_METHOD))
            answering.add(task)
            task.add_done_callback(answering.discard)


class _NoMethods:
    def resolve_handler(self, *_: Any) -> None:
        """Return that there is no handler."""
