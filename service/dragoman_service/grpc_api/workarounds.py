"""Uses of private interfaces of grpcio 1.85, each with its reason; tests fail if grpcio changes.

- `Server`: the asyncio server decodes the path of an unregistered method in the loop that accepts all calls. One call
  with a path that is not UTF-8, without a key, ends the loop and closes the port. Methods of generated services are
  registered and have their registered name, so this server accepts all other calls and answers them UNIMPLEMENTED.
- `DroppedCallCounter`: only channelz counts calls that end before an interceptor runs.
- `is_worth_logging`: grpcio logs an error if a caller disconnects while its response is being sent.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server

from dragoman_service.observability.metrics import Metrics

GRPC_LOGGER = "grpc._cython.cygrpc"

_ANY_METHOD = "/"
_COUNT_INTERVAL_S = 0.5


class Server(_server.Server):  # type: ignore[misc]  # grpc has no types
    """Answers registered methods, and UNIMPLEMENTED to all others."""

    def __init__(
        self, interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, int | str]]
    ) -> None:  # replaces the inherited constructor, which creates a server of gRPC's own class
        self._loop = cygrpc.get_working_loop()
        arguments = _server._augment_channel_arguments(options, None)
        self._server = _AioServer(self._loop, None, (), interceptors, arguments, None)
        self._server.interceptors = tuple(interceptors)


class _AioServer(cygrpc.AioServer):  # type: ignore[misc]
    interceptors: tuple[grpc.aio.ServerInterceptor, ...] = ()

    async def _request_call(self) -> None:
        """Accept calls of unregistered methods while the server runs."""
        loop, tasks = asyncio.get_running_loop(), set()
        while True:
            state = await super()._request_call()
            answer = cygrpc._handle_rpc(_ANY_METHOD, _NoMethods(), self.interceptors, state, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, _ANY_METHOD))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


class _NoMethods:
    def resolve_handler(self, *_: Any) -> None:
        return None


class DroppedCallCounter:
    """Counts calls that their callers reset, or gRPC cancelled, before an interceptor ran."""

    def __init__(self, num_accepted: Callable[[], int], metrics: Metrics) -> None:
        """Count calls of the most recently created gRPC server."""
        servers = json.loads(cygrpc.channelz_get_servers(0))["server"]
        self._server_id = max(int(server["ref"]["serverId"]) for server in servers)
        self._num_accepted = num_accepted
        self._counter = metrics.dropped_calls
        self._num_counted = 0

    async def watch(self) -> None:
        """Count until cancelled; a call that waits for longer than the interval is counted as dropped, once."""
        num_started = 0
        while True:
            num_dropped = num_started - self._num_accepted()
            self._counter.inc(max(0, num_dropped - self._num_counted))
            self._num_counted = max(self._num_counted, num_dropped)
            data = json.loads(cygrpc.channelz_get_server(self._server_id))["server"]["data"]
            num_started = int(data.get("callsStarted", 0))
            await asyncio.sleep(_COUNT_INTERVAL_S)


def is_worth_logging(record: logging.LogRecord) -> bool:
    """Filter errors of callers that disconnect while their response is being sent."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "ExecuteBatchError"
