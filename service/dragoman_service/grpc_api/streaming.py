"""Request streams: gRPC operations run one at a time and are never cancelled.

gRPC's reader and writer are used instead of its generators because of their flow control: a write returns when the
transport has accepted the message, so that a slow reader slows the work. grpcio 1.85 (grpc/grpc#43360) leaks memory for
each operation whose awaiter is cancelled, and for each handler that returns after its caller has cancelled. Hence
`run_to_completion`; a handler must not swallow `CancelledError`.
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
from dragoman_service.errors import DragomanError, IdleError, RequestError
from dragoman_service.middleware.conversion import parse_message
from dragoman_service.middleware.flow_control import CallContext, ResponseStream
from dragoman_service.middleware.pipeline import ConcurrencyLimiter
from dragoman_service.request import RequestRecord
from dragoman_service.threads import retrieve_exception

Answer = Callable[[Any, RequestRecord], Awaitable[Message]]
"""Returns the response to a request of a stream, or raises a DragomanError."""

Respond = Callable[[RequestRecord], Awaitable[Message]]
"""Returns the response to one request."""

AnswerRaw = Callable[[bytes, Message, Respond], Awaitable[bytes]]
"""Runs the request pipeline around `Respond` for a request (serialized and parsed); returns the serialized response."""

_ID_NUMBER = pb.TranslateRequest.REQUEST_ID_FIELD_NUMBER
_IdOnly: Any = proto_builder.MakeSimpleProtoClass(  # a message with a request id, in which other fields are any bytes
    OrderedDict(
        (f"field_{number}" if number < _ID_NUMBER else "request_id", FieldDescriptorProto.TYPE_BYTES)
        for number in range(1, _ID_NUMBER + 1)
    ),
    full_name="dragoman.unreadable.IdOnly",
)


def readable_id(raw_request: bytes) -> str:
    """Return the id of a TranslateRequest that cannot be parsed; empty if there is none."""
    try:
        message = _IdOnly.FromString(raw_request)
    except DecodeError:
        return ""
    return str(message.request_id, "utf-8", "replace")


class RequestStream(ResponseStream):
    """Receives the requests of a call and answers them as they arrive."""

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
        """`limiter` reports when the server stops admitting requests."""
        super().__init__(record, context, idle_timeout_s)
        self._limiter = limiter
        self._deserialize = deserialize
        self._answer_raw = answer_raw
        self.has_begun = False  # whether anything was read
        self._is_half_closed = False
        self._reading: asyncio.Task[Any] | None = None
        self._unanswered: dict[asyncio.Task[bytes], str] = {}  # task -> request id

    async def answer_all(self, answer: Answer, *, max_unanswered: int) -> None:
        """Answer all requests until the caller has half-closed and the last request is answered.

        If this is cancelled or fails, unanswered requests are cancelled.

        Args:
            answer: answers one request; a DragomanError becomes the response.
            max_unanswered: number of unanswered requests at which reading pauses.

        Raises:
            IdleError: if no request arrives in time while none is unanswered.
            DragomanError: the rejection of new requests, after unanswered requests have been answered.
        """
        rejection = asyncio.create_task(self._limiter.wait_until_closed())
        try:
            while not self._is_over(rejection):
                if self._reading is None and not self._is_half_closed and len(self._unanswered) < max_unanswered:
                    self._reading = asyncio.create_task(self.read())
                    self._reading.add_done_callback(retrieve_exception)
                waiting = {*self._unanswered, rejection, *([self._reading] if self._reading else [])}
                if rejection.done():
                    waiting.remove(rejection)
                idle_timeout_s = None if self._unanswered else self._idle_timeout_s
                done, _ = await asyncio.wait(waiting, timeout=idle_timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise IdleError
                for task in [task for task in self._unanswered if task.done()]:
                    await self.write(task.result())
                    del self._unanswered[task]
                if self._reading is not None and self._reading.done():
                    self._start(self._reading.result(), answer)
                    self._reading = None
        finally:  # the read must not be cancelled; it ends with the call
            for unfinished in (rejection, *self._unanswered):
                unfinished.cancel()
            await asyncio.gather(rejection, *self._unanswered, return_exceptions=True)

    async def read(self) -> Any:
        """Return the next serialized request, or `grpc.aio.EOF` after a half-close. Must not be cancelled."""
        self.has_begun = True
        return await self._context.read()

    def _is_over(self, rejection: "asyncio.Task[DragomanError]") -> bool:
        if self._unanswered:
            return False
        if rejection.done() and not self._is_half_closed:
            raise rejection.result()
        return self._is_half_closed

    def _start(self, raw_request: Any, answer: Answer) -> None:
        if raw_request is grpc.aio.EOF:
            self._is_half_closed = True
            return
        self.record.request_bytes += len(raw_request)
        request: Any
        try:
            request = parse_message(raw_request, self._deserialize)
            error = self._id_error(request.request_id)
        except RequestError as parse_error:
            request, error = pb.TranslateRequest(request_id=readable_id(raw_request)), parse_error

        async def respond(record: RequestRecord) -> Message:
            if error:
                raise error
            return await answer(request, record)

        task = asyncio.ensure_future(self._answer_raw(raw_request, request, respond))
        self._unanswered[task] = request.request_id

    def _id_error(self, request_id: str) -> RequestError | None:
        if not request_id:
            return RequestError("request_id", "required in a stream (1 to 128 printable ASCII characters)")
        if request_id in self._unanswered.values():
            return RequestError("request_id", "in use by an unanswered request of this stream")
        return None
