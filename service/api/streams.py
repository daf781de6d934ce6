"""Streaming calls as the methods see them: messages in and out, one gRPC operation at a time, none of them cancelled.

gRPC's reader and writer are used instead of its generators, for their flow control: a write returns once the
transport has taken the message, so that a slow reader stops the work. gRPC (1.85 still, grpc/grpc#43360) leaks the
memory of each operation whose awaiter is cancelled, and of the status that a handler sends by returning after its
caller has cancelled. Hence `_undisturbed`, and no handler may swallow `CancelledError`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from service.api.gate import Gate
from service.errors import DragomanError, InvalidFieldError

_Result = TypeVar("_Result")

_FIRST_MESSAGE_PATIENCE_S = 0.2

Respond = Callable[[], Awaitable[Message]]
"""Answers a request, or raises an error of the tree."""


class ResponseStream:
    """Sends the messages of a call to its caller."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context
        self._has_sent = False
        self.num_bytes = 0
        """Sent so far."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None if there is none."""
        remaining_s: float | None = self._context.time_remaining()
        return remaining_s

    async def write(self, response: Message) -> None:
        """Send a message; returns once the transport has taken it, and so waits for a slow reader.

        Raises:
            asyncio.CancelledError: if the caller has left.
        """
        await self.write_raw(response.SerializeToString())

    async def write_raw(self, raw_response: bytes) -> None:
        """Send a message that is serialized already; see `write`."""
        try:
            if not self._has_sent:  # apart from the message, so that a status may follow while that is being sent
                self._has_sent = True
                await _undisturbed(self._context.send_initial_metadata(()))
            await _undisturbed(self._context.write(raw_response))
        except grpc.aio.BaseError as error:  # gRPC is about to cancel the handler, too
            raise asyncio.CancelledError from error
        self.num_bytes += len(raw_response)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedRequest:
    """One request of a stream."""

    message: Any
    answered: Callable[[Respond], Awaitable[bytes]]
    """Answers it as if it were a call of its own, counted and logged; returns the serialized response, which tells
    the error if there was one."""

    problem: InvalidFieldError | None = None
    """What is wrong if its bytes are no request; `message` has only the id then, if that can be read."""


class RequestStream(ResponseStream):
    """Receives the requests of a call, too."""

    def __init__(
        self, context: grpc.aio.ServicerContext, gate: Gate, received: Callable[[bytes], StreamedRequest]
    ) -> None:
        """Read nothing yet.

        Args:
            context: of the call; it has no codecs.
            gate: tells when the server takes no more requests.
            received: makes a request of its bytes, whatever they are.
        """
        super().__init__(context)
        self._gate = gate
        self._received = received
        self._has_begun = False
        self.num_requests = 0
        """Received so far."""

    async def read(self) -> StreamedRequest | None:
        """Return the next request; None once the caller has half-closed. Not to be cancelled."""
        self._has_begun = True
        raw_request = await self._context.read()
        if raw_request is grpc.aio.EOF:
            return None
        self.num_requests += 1
        return self._received(raw_request)

    async def before_refusal(self) -> None:
        """Prepare the refusal of the call; see `wait_for_first_message`."""
        if not self._has_begun:
            await wait_for_first_message(self._context.read())

    async def refusal(self) -> DragomanError:
        """Wait until the server takes no more requests; return why."""
        return await self._gate.wait_until_closed()


async def wait_for_first_message(receiving: Awaitable[Any]) -> None:
    """Take, and drop, the message with which a caller opens a stream that is about to be refused.

    A client of `grpc.aio` that is still sending when the status comes reports INTERNAL in its place
    (grpc/grpc#36066). One who sends nothing is waited for only briefly.
    """
    task = asyncio.ensure_future(receiving)
    task.add_done_callback(look_at_error)
    await asyncio.wait((task,), timeout=_FIRST_MESSAGE_PATIENCE_S)


async def _undisturbed(operation: Coroutine[Any, Any, _Result]) -> _Result:
    """Await an operation of gRPC; if the awaiting task is cancelled, the operation still comes to its end."""
    task = asyncio.ensure_future(operation)
    task.add_done_callback(look_at_error)
    return await asyncio.shield(task)


def look_at_error(task: "asyncio.Future[Any]") -> None:
    """Keep asyncio from logging the error of a task that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
