"""Uses of private interfaces of grpcio 1.85, each with its reason; tests fail if grpcio changes.

- `Server`: the asyncio server decodes the path of an unregistered method in the loop that accepts all calls. One call
  with a path that is not UTF-8, without a key, ends the loop and closes the port. Methods of generated services are
  registered and have their registered name, so this server accepts all other calls and answers them UNIMPLEMENTED.
  When it stops, it also drops calls that it has accepted and not started (grpc/grpc#41785): this server starts them.
- `DroppedCallCounter`: only channelz counts calls that end, or wait, before they are accepted.
- `is_worth_logging`: grpcio logs an error if a caller disconnects while its response is being sent.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server

from dragoman_service.observability.metrics import Metrics
from dragoman_service.threads import retrieve_exception

GRPC_LOGGER = "grpc._cython.cygrpc"

_UNREGISTERED = "/"
_CONTROL_PREFIX = "/grpc."
_NUM_FAST_ACCEPTS = 64  # of each method
_UNLIMITED_S = 1_000_000.0  # a later `stop` limits the time
_COUNT_INTERVAL_S = 0.5
_ACCEPT_POLL_S = 0.001


class Server(_server.Server):  # type: ignore[misc]  # grpc has no types
    """Answers registered methods, and UNIMPLEMENTED to all others."""

    def __init__(
        self, options: Sequence[tuple[str, int | str]]
    ) -> None:  # replaces the inherited constructor, which creates a server of gRPC's own class
        self._loop = cygrpc.get_working_loop()
        self._server = _AioServer(self._loop, None, (), (), _server._augment_channel_arguments(options, None), None)

    @property
    def num_accepted(self) -> int:
        """Number of accepted calls."""
        count: int = self._server.num_accepted
        return count

    async def close(self) -> None:
        """Close the port and send GOAWAY to all connections; accepted calls continue."""
        self._closing = asyncio.create_task(self.stop(_UNLIMITED_S))
        await self._server.wait_until_closed()

    def accept_faster(self) -> None:
        """Accept more calls at the same time."""
        self._server.accept_faster()

    async def wait_until_answered(self) -> None:
        """Wait until each accepted call has its status, except calls of health and reflection."""
        await self._server.wait_until_answered()


class _AioServer(cygrpc.AioServer):  # type: ignore[misc]
    """Accepts calls in tasks of its own, which survive the end of gRPC's accepting task."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.num_accepted = 0
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}
        self._accepting: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._controls: set[asyncio.Task[None]] = set()  # calls of health and reflection

    def add_registered_method_handlers(self, method_handlers: dict[str, grpc.RpcMethodHandler]) -> None:
        self._handlers.update(method_handlers)
        super().add_registered_method_handlers(method_handlers)

    def resolve_handler(self, details: Any) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call for gRPC; None if its method is not registered."""
        return self._handlers.get(details.method)

    def accept_faster(self) -> None:
        """Accept many calls of each method at the same time, so that none waits in gRPC."""
        for method in (None, *(name.encode() for name in self._handlers)):
            for _ in range(_NUM_FAST_ACCEPTS):
                self._start_accepting(method)

    async def wait_until_closed(self) -> None:
        """Wait until no more call is accepted."""
        while self._accepting:
            await asyncio.wait(self._accepting)

    async def wait_until_answered(self) -> None:
        """Wait until each accepted call has its status, except calls of health and reflection."""
        while self._answering:
            await asyncio.wait(self._answering)

    def _make_request_call_future(self, method: bytes | None) -> "asyncio.Future[None]":
        """Accept calls of a method, or of all unregistered methods, until the server closes.

        The task of gRPC cancels the future when it ends.
        """
        return asyncio.shield(self._start_accepting(method))

    def _start_accepting(self, method: bytes | None) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._accept(method))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)
        task.add_done_callback(retrieve_exception)
        return task

    async def _accept(self, method: bytes | None) -> None:
        name = method.decode() if method else _UNREGISTERED
        while True:
            # Raises _RequestCallError when the server closes.
            state = await (self._request_registered_call(method) if method else self._request_call())
            self.num_accepted += 1
            loop = asyncio.get_running_loop()
            answer = cygrpc._handle_rpc(name, self, (), state, loop, False)
            task = asyncio.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, name))
            tasks = self._controls if name.startswith(_CONTROL_PREFIX) else self._answering
            tasks.add(task)
            task.add_done_callback(tasks.discard)


class DroppedCallCounter:
    """Counts calls that their callers reset, or gRPC cancelled, before they were accepted."""

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
            num_started = self._num_started()
            await asyncio.sleep(_COUNT_INTERVAL_S)

    async def wait_until_accepted(self, timeout_s: float) -> None:
        """Return when every call that has arrived is accepted or counted as dropped, or after a timeout.

        gRPC cancels the other calls when the server closes its port (grpc/grpc#41785).
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._num_started() > self._num_accepted() + self._num_counted:
                    await asyncio.sleep(_ACCEPT_POLL_S)

    def _num_started(self) -> int:
        data = json.loads(cygrpc.channelz_get_server(self._server_id))["server"]["data"]
        return int(data.get("callsStarted", 0))


def is_worth_logging(record: logging.LogRecord) -> bool:
    """Filter errors of callers that disconnect while their response is being sent."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "ExecuteBatchError"
