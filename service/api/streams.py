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
from dragoman.v1 import translation_pb2 as pb
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from service.api.calls import Call
from service.api.rate_limits import ConcurrencyLimiter
from service.errors import DragomanError, InvalidFieldError

_NAME = "dragoman.unreadable.Named"


def readable_id(raw_request: bytes) -> str:
    """Return the id of a TranslateRequest whose other fields may hold anything; empty if none can be read."""
    try:
        named = _NAMED.FromString(raw_request)
    except DecodeError:
        return ""
    raw_id: bytes = getattr(named, "request_id")  # noqa: B009 - a type that no checker knows
    return raw_id.decode("utf-8", "replace")


def _named_type() -> type[Message]:
    """Return a message with the id as its only field: all others are skipped, whatever is in them."""
    package, _, name = _NAME.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(name=f"{_NAME}.proto", package=package, syntax="proto3")
    file.message_type.add(name=name).field.add(
        name="request_id",
        number=pb.TranslateRequest.REQUEST_ID_FIELD_NUMBER,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(_NAME))


_NAMED = _named_type()

_Result = TypeVar("_Result")

_FIRST_MESSAGE_PATIENCE_S = 0.2

Respond = Callable[[Call], Awaitable[Message]]
"""Answers a request of a stream as the call that it is given, or raises an error of the tree."""

Answer = Callable[[Any, Call], Awaitable[Message]]
"""Answers a message, likewise."""


class ResponseStream:
    """Sends the messages of a call to its caller."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._context = call.grpc_context
        self._has_sent = False

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
        self.call.response_bytes += len(raw_response)


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

    def __init__(self, call: Call, limiter: ConcurrencyLimiter, received: Callable[[bytes], StreamedRequest]) -> None:
        """Read nothing yet.

        Args:
            call: without codecs.
            limiter: tells when the server takes no more requests.
            received: makes a request of its bytes, whatever they are.
        """
        super().__init__(call)
        self._limiter = limiter
        self._received = received
        self._has_begun = False

    async def read(self) -> StreamedRequest | None:
        """Return the next request; None once the caller has half-closed. Not to be cancelled."""
        self._has_begun = True
        raw_request = await self._context.read()
        if raw_request is grpc.aio.EOF:
            return None
        self.call.request_bytes += len(raw_request)
        return self._received(raw_request)

    async def before_refusal(self) -> None:
        """Prepare the refusal of the call; see `wait_for_first_message`."""
        if not self._has_begun:
            await wait_for_first_message(self._context.read())

    async def refusal(self) -> DragomanError:
        """Wait until the server takes no more requests; return why."""
        return await self._limiter.wait_until_closed()


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


async def answer_all(stream: RequestStream, answer: Answer, *, max_unanswered: int) -> None:
    """Answer the requests of a stream until its caller has half-closed and the last one is answered.

    If this is cancelled or fails, so are the requests under way.

    Args:
        stream: to read from and write to.
        answer: answers one request, or raises an error of the tree, which is the answer then.
        max_unanswered: how many are under way before no more are read.

    Raises:
        DragomanError: why the server takes no more requests, once those under way are answered.
    """
    await _Multiplexer(stream, answer, max_unanswered).run()


class _Multiplexer:
    """The requests under way on one call, by the tasks that answer them."""

    def __init__(self, stream: RequestStream, answer: Answer, max_unanswered: int) -> None:
        self._stream = stream
        self._answer = answer
        self._max_unanswered = max_unanswered
        self._under_way: dict[asyncio.Task[bytes], str] = {}
        self._reading: asyncio.Task[StreamedRequest | None] | None = None
        self._is_half_closed = False

    async def run(self) -> None:
        refusal = asyncio.create_task(self._stream.refusal())
        try:
            while not self._is_over(refusal):
                self._read_on()
                waiting = {*self._under_way, refusal, *([self._reading] if self._reading else [])}
                if refusal.done():
                    waiting.remove(refusal)
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                await self._write_answers()
                self._take_request()
        finally:  # but for the read, which must not be cancelled: it ends with the call
            await _cancel_all((refusal, *self._under_way))

    def _is_over(self, refusal: "asyncio.Task[DragomanError]") -> bool:
        if self._under_way:
            return False
        if refusal.done() and not self._is_half_closed:
            raise refusal.result()
        return self._is_half_closed

    def _read_on(self) -> None:
        if self._reading is None and not self._is_half_closed and len(self._under_way) < self._max_unanswered:
            self._reading = asyncio.create_task(self._stream.read())
            self._reading.add_done_callback(look_at_error)

    async def _write_answers(self) -> None:
        for task in [task for task in self._under_way if task.done()]:
            await self._stream.write_raw(task.result())
            del self._under_way[task]

    def _take_request(self) -> None:
        if self._reading is None or not self._reading.done():
            return
        request = self._reading.result()
        self._reading = None
        if request is None:
            self._is_half_closed = True
        else:
            request_id = request.message.request_id
            task = asyncio.create_task(self._answered(request, request.problem or self._problem(request_id)))
            self._under_way[task] = request_id

    async def _answered(self, request: StreamedRequest, problem: InvalidFieldError | None) -> bytes:
        async def respond(call: Call) -> Message:
            if problem:
                raise problem
            return await self._answer(request.message, call)

        return await request.answered(respond)

    def _problem(self, request_id: str) -> InvalidFieldError | None:
        """Return what is wrong with the id of the next request, if anything."""
        if not request_id:
            return InvalidFieldError("request_id", "empty", "present in a stream, 1 to 128 printable ASCII characters")
        if request_id in self._under_way.values():
            return InvalidFieldError("request_id", "that of a request still unanswered", "different from all of those")
        return None


async def _cancel_all(tasks: "tuple[asyncio.Task[Any], ...]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
