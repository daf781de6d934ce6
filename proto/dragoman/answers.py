"""How a call is waited for, sync and async, and ended early without leaving anything behind."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import grpc

from dragoman.calls import Answer, Call
from dragoman.errors import CallCancelledError, error_from_rpc

Outcome = TypeVar("Outcome")

_END = object()


def answer(call: Call[Answer]) -> Answer:
    """Wait for the one answer of a call."""
    with _errors_raised(call):
        return call.read(call.start())


def answers(call: Call[Answer]) -> Generator[Answer, None, None]:
    """Yield the answers of a call; cancels it if closed early."""
    with _errors_raised(call):
        rpc = call.start()
        try:
            for response in rpc:
                yield call.read(response)
        finally:
            call.stop_feed()
            rpc.cancel()
    call.raise_feed_error()


async def awaited_answer(call: Call[Answer]) -> Answer:
    """Wait for the one answer of a call; cancels it if the waiting task is cancelled."""
    async with _awaited_errors_raised(call):
        rpc = call.start()
        return call.read(await _unless_cancelled(rpc, _awaited(rpc), call.request_id))


async def awaited_answers(call: Call[Answer]) -> AsyncGenerator[Answer, None]:
    """Yield the answers of a call; cancels it if closed early or the waiting task is cancelled."""
    async with _awaited_errors_raised(call):
        rpc = call.start()
        responses = aiter(rpc)
        try:
            await _unless_cancelled(rpc, _connected(rpc), call.request_id)
            while (response := await _unless_cancelled(rpc, _next(responses), call.request_id)) is not _END:
                yield call.read(response)
        finally:
            call.stop_feed()
            _cancel(rpc)
    call.raise_feed_error()


@contextmanager
def _errors_raised(call: Call[Answer]) -> Iterator[None]:
    """Raise the errors of gRPC as those of this package."""
    try:
        yield
    except grpc.RpcError as error:
        raise call.reachability.explained(error_from_rpc(error, call.request_id)) from error


@asynccontextmanager
async def _awaited_errors_raised(call: Call[Answer]) -> AsyncIterator[None]:
    """As `_errors_raised`; looks for the cause of a failed connection in a thread."""
    try:
        yield
    except grpc.RpcError as error:
        told = error_from_rpc(error, call.request_id)
        if call.reachability.can_explain(told):
            told = await asyncio.to_thread(call.reachability.explained, told)
        raise told from error


async def _unless_cancelled(rpc: Any, waiting: Coroutine[Any, Any, Outcome], request_id: str) -> Outcome:
    """Await `waiting`; if the task that does so is cancelled, cancel the RPC, which then ends `waiting`.

    A task of `grpc.aio` that is itself cancelled while gRPC's core works for it never gives back the memory of that
    work (https://github.com/grpc/grpc/issues/43360), so none is.

    Raises:
        CallCancelledError: if the call was cancelled and not the waiting task.
    """
    task = asyncio.ensure_future(waiting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled() and not _is_being_cancelled():
            raise CallCancelledError(
                grpc.StatusCode.CANCELLED, "the call was cancelled", request_id=request_id
            ) from None
        _cancel(rpc)
        raise


def _cancel(rpc: Any) -> None:
    """End an RPC of `grpc.aio` in gRPC's core alone; its `cancel` would cancel the tasks that wait for the core too."""
    rpc._cancel("cancelled by the caller")  # private, but the dependency is pinned and a test watches the memory


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _connected(rpc: Any) -> None:
    """Wait until the request is sent and the server answers: a read that begins after a cancel keeps memory, too."""
    await rpc.wait_for_connection()


async def _awaited(rpc: Any) -> Any:
    return await rpc


async def _next(responses: AsyncIterator[Any]) -> Any:
    return await anext(responses, _END)
