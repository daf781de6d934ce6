"""Calls that end with a status other than OK, and the memory they hold."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

Answer = Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]
"""Answers a call of `grpc.aio`, whichever of the two may be many."""


def freed_when_aborted(answer: Answer) -> Answer:
    """Let a call that is aborted be freed once it has ended.

    gRPC keeps the error that `abort` raised with the call, and the error keeps every frame that it passed, one of
    which keeps the call: a circle that only the garbage collector finds. A server that refuses thousands of calls
    would stop for it, for tens of milliseconds, in the middle of refusing.
    """

    async def answered(requests: Any, context: grpc.aio.ServicerContext) -> Any:
        answering = answer(requests, context)
        del requests, context  # this frame stays with the error
        try:
            return await answering
        except grpc.aio.AbortError as error:
            raise error.with_traceback(None) from None

    return answered
