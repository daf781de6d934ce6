"""Streaming calls as the methods see them: messages in and out, one gRPC operation at a time, none of them cancelled.

gRPC's reader and writer are used instead of its generators, for their flow control: a write returns once the
transport has taken the message, so that a slow reader stops the work. gRPC (1.85 still, grpc/grpc#43360) leaks the
memory of each operation whose awaiter is cancelled, and of the status that a handler sends by returning after its
caller has cancelled. Hence `run_to_completion`, and no handler may swallow `CancelledError`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import proto_builder
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.message import DecodeError, Message

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import DragomanError, IdleError, InvalidFieldError
from dragoman_service.middleware.flow_control import CallContext, ResponseStream
from dragoman_service.request import RequestRecord
from dragoman_service.security.rate_limits import ConcurrencyLimiter
from dragoman_service.threads import retrieve_exception


def readable_id(raw_request: bytes) -> str:
    """Return the id of a TranslateRequest whose other fields may hold anything; empty if none can be read."""
    try:
        named = _NAMED.FromString(raw_request)
    except DecodeError:
        return ""
    return str(named.request_id, "utf-8", "replace")


_ID_NUMBER = pb.TranslateRequest.REQUEST_ID_FIELD_NUMBER
_NAMED: Any = proto_builder.MakeSimpleProtoClass(
    OrderedDict(
        (f"field_{number}" if number < _ID_NUMBER else "request_id", FieldDescriptorProto.TYPE_BYTES)
        for number in range(1, _ID_NUMBER + 1)
    ),
    full_name="dragoman.unreadable.Named",
)
"""A message with the id at its number; what precedes it may be any bytes, all other fields are skipped."""

Answer = Callable[[Any, RequestRecord], Awaitable[Message]]
"""Answers a request of a stream, as the call that it is given, or raises an error of the tree."""

Respond = Callable[[RequestRecord], Awaitable[Message]]
"""The same for a certain request."""

AnswerRaw = Callable[[bytes, Message, Respond], Awaitable[bytes]]
"""Has a request, raw and parsed, answered as if it were a call of its own, counted and logged; returns the serialized
response, which holds the error if there was one."""


class RequestStream(ResponseStream):
    """Receives the requests of a call, too, and answers them as they come."""

    def __init__(
        self,
        record: RequestRecord,
        context: CallContext,
        *,
        idle_timeout_s: float,
        limiter: ConcurrencyLimiter,
        deserialize: Callable[[bytes], Message],
        answer_raw: AnswerRaw,
    ) -> None:
        """Read nothing yet; `limiter` knows when the server admits no more requests."""
        super().__init__(record, context, idle_timeout_s)
        self._limiter = limiter
        self._deserialize = deserialize
        self._answer_raw = answer_raw
        self._has_begun = False
        self._is_half_closed = False
        self._reading: asyncio.Task[Any] | None = None
        self._under_way: dict[asyncio.Task[bytes], str] = {}  # request ids by the tasks that answer

    async def answer_all(self, answer: Answer, *, max_unanswered: int) -> None:
        """Answer all requests until the caller has half-closed and the last one is answered.

        If this is cancelled or fails, so are the requests under way.

        Args:
            answer: answers one request, or raises an error of the tree, which is the answer then.
            max_unanswered: how many are under way before no more are read.

        Raises:
            IdleError: if no request comes for too long while none is under way.
            DragomanError: why the server takes no more requests, once those under way are answered.
        """
        rejection = asyncio.create_task(self._limiter.wait_until_closed())
        try:
            while not self._is_over(rejection):
                if self._reading is None and not self._is_half_closed and len(self._under_way) < max_unanswered:
                    self._reading = asyncio.create_task(self.read())
                    self._reading.add_done_callback(retrieve_exception)
                waiting = {*self._under_way, rejection, *([self._reading] if self._reading else [])}
                if rejection.done():
                    waiting.remove(rejection)
                idle_timeout_s = None if self._under_way else self._idle_timeout_s
                done, _ = await asyncio.wait(waiting, timeout=idle_timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise IdleError
                for task in [task for task in self._under_way if task.done()]:
                    await self.write(task.result())
                    del self._under_way[task]
                if self._reading is not None and self._reading.done():
                    self._take(self._reading.result(), answer)
                    self._reading = None
        finally:  # but for the read, which must not be cancelled: it ends with the call
            for unfinished in (rejection, *self._under_way):
                unfinished.cancel()
            await asyncio.gather(rejection, *self._under_way, return_exceptions=True)

    async def read(self) -> Any:
        """Return the next request, raw; `grpc.aio.EOF` once the caller has half-closed. Not to be cancelled."""
        self._has_begun = True
        return await self._context.read()

    @property
    def has_begun(self) -> bool:
        """Whether anything was read."""
        return self._has_begun

    def _is_over(self, rejection: "asyncio.Task[DragomanError]") -> bool:
        if self._under_way:
            return False
        if rejection.done() and not self._is_half_closed:
            raise rejection.result()
        return self._is_half_closed

    def _take(self, raw_request: Any, answer: Answer) -> None:
        """Begin to answer a request."""
        if raw_request is grpc.aio.EOF:
            self._is_half_closed = True
            return
        self.record.request_bytes += len(raw_request)
        request, problem = self._parsed_or_named(raw_request)
        problem = problem or self._problem_of_id(request.request_id)

        async def respond(record: RequestRecord) -> Message:
            if problem:
                raise problem
            return await answer(request, record)

        task = asyncio.ensure_future(self._answer_raw(raw_request, request, respond))
        self._under_way[task] = request.request_id

    def _parsed_or_named(self, raw_request: bytes) -> tuple[Any, InvalidFieldError | None]:
        """Return a request, or its id alone and what is wrong with it."""
        try:
            return parsed(raw_request, self._deserialize), None
        except InvalidFieldError as problem:
            return pb.TranslateRequest(request_id=readable_id(raw_request)), problem

    def _problem_of_id(self, request_id: str) -> InvalidFieldError | None:
        """Return what is wrong with the id of the next request, if anything."""
        if not request_id:
            return InvalidFieldError("request_id", "empty", "present in a stream, 1 to 128 printable ASCII characters")
        if request_id in self._under_way.values():
            return InvalidFieldError("request_id", "that of a request still unanswered", "different from all of those")
        return None


def parsed(raw_request: bytes, deserialize: Callable[[bytes], Message]) -> Message:
    """Return a request; InvalidFieldError if the bytes are none."""
    try:
        return deserialize(raw_request)
    except DecodeError as error:
        raise InvalidFieldError("request", "no valid protobuf message", "one, with all texts in UTF-8") from error
