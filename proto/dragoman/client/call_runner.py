"""Waiting for calls, blocking and with asyncio, and cancelling them without leaks."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc

from dragoman.client.calls import Call, Response
from dragoman.client.errors import CallCancelledError, error_from_rpc

T = TypeVar("T")

_END = object()


def response(call: Call[Response]) -> Response:
    """Wait for the response of a call."""
    with _errors_raised(call):
        return call.read(call.start())


def responses(call: Call[Response]) -> Generator[Response, None, None]:
    """Yield the responses of a call; closing the generator cancels the call."""
    with _errors_raised(call):
        rpc = call.start()
        try:
            for message in rpc:
                yield call.read(message)
        finally:
            call.stop_stream()
            rpc.cancel()
    call.raise_stream_error()


async def async_response(call: Call[Response]) -> Response:
    """Wait for the response of a call; cancelling the task cancels the call."""
    with _errors_raised(call):
        rpc = call.start()
        return call.read(await _unless_cancelled(rpc, rpc, call.request_id))


async def async_responses(call: Call[Response]) -> AsyncGenerator[Response, None]:
    """Yield the responses of a call; closing the generator or cancelling the task cancels the call."""
    with _errors_raised(call):
        rpc = call.start()
        messages = aiter(rpc)
        try:
            # A read that begins after a cancellation also leaks memory: wait until the server has answered the request.
            await _unless_cancelled(rpc, rpc.wait_for_connection(), call.request_id)
            while (message := await _unless_cancelled(rpc, anext(messages, _END), call.request_id)) is not _END:
                yield call.read(message)
        finally:
            call.stop_stream()
            _cancel(rpc)
    call.raise_stream_error()


@contextmanager
def _errors_raised(call: Call[Response]) -> Iterator[None]:
    """Convert errors of gRPC to errors of this package."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error, call.request_id, target=call.target) from error


async def _unless_cancelled(rpc: Any, waiting: Awaitable[T], request_id: str) -> T:
    """Await `waiting`. If the current task is cancelled, cancel the RPC, which then ends `waiting`.

    A task of `grpc.aio` that is cancelled while gRPC's core works for it never frees the memory of that work
    (https://github.com/grpc/grpc/issues/43360). Therefore no such task is cancelled.

    Raises:
        CallCancelledError: if the call was cancelled, and not the current task.
    """
    task = asyncio.ensure_future(waiting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if task.cancelled() and not (current is not None and current.cancelling()):
            raise CallCancelledError(
                grpc.StatusCode.CANCELLED, "the call was cancelled", request_id=request_id
            ) from None
        _cancel(rpc)
        raise


def _cancel(rpc: Any) -> None:
    """Cancel an RPC of `grpc.aio` in gRPC's core only; its `cancel` also cancels the tasks that wait for the core."""
    cancel = getattr(rpc, "_cancel", None)  # private; test_memory_of_cancelled_calls counts what `cancel` leaks
    if cancel is None:
        rpc.cancel()
    else:
        cancel("cancelled by the caller")
