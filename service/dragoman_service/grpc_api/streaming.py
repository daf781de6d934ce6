"""Request streams: gRPC operations run one at a time and are never cancelled.

gRPC's reader and writer are used instead of its generators because of their flow control: a write returns when the
transport has accepted the message, so that a slow reader slows the work. grpcio 1.85 (grpc/grpc#43360) leaks memory for
each operation whose awaiter is cancelled, and for each handler that returns after its caller has cancelled. Hence
`run_to_completion`; a handler must not swallow `CancelledError`.
"""

import asyncio
from collections import OrderedDict
from functools import partial
from typing import Any

import grpc
from google.protobuf import proto_builder
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.message import DecodeError

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.calls import error_mapping
from dragoman_service.calls.conversion import parse_message
from dragoman_service.calls.handlers import Handler
from dragoman_service.calls.pipeline import Call, RequestPipeline, ResponseStream
from dragoman_service.calls.policy import STREAM_REQUEST
from dragoman_service.errors import DrainingError, IdleError, RequestError
from dragoman_service.threads import retrieve_exception

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
    """Receives the requests of a call and answers each as a call of its own, with errors in the response."""

    def __init__(self, call: Call, pipeline: RequestPipeline, translate: Handler) -> None:
        super().__init__(call, pipeline.bounds.settings.stream_idle_timeout_s)
        self._pipeline = pipeline
        self._translate = translate
        self._max_unanswered = pipeline.bounds.settings.max_stream_requests
        self.has_begun = False  # whether anything was read
        self._is_half_closed = False
        self._reading: asyncio.Task[Any] | None = None
        self._unanswered: dict[asyncio.Task[bytes], str] = {}  # task -> request id

    async def answer_all(self, _no_request: bytes) -> None:
        """Answer all requests until the caller has half-closed and the last request is answered.

        Reading pauses at `max_stream_requests` unanswered requests, and ends when the server drains. If this is
        cancelled or fails, unanswered requests are cancelled.

        Raises:
            IdleError: if no request arrives in time while none is unanswered.
            DrainingError: if the server drains, after every request that was read has been answered.
        """
        draining = asyncio.create_task(self._pipeline.limiter.wait_until_draining())
        try:
            while not self._is_over(draining):
                if self._may_read and not draining.done():
                    self._reading = asyncio.create_task(self.read())
                    self._reading.add_done_callback(retrieve_exception)
                waiting = {*self._unanswered, *([self._reading] if self._reading else [])}
                if not draining.done():
                    waiting.add(draining)
                idle_timeout_s = None if self._unanswered else self._idle_timeout_s
                done, _ = await asyncio.wait(waiting, timeout=idle_timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise IdleError
                for task in [task for task in self._unanswered if task.done()]:
                    await self.write(task.result())
                    del self._unanswered[task]
                if self._reading is not None and self._reading.done():
                    self._start(self._reading.result())
                    self._reading = None
        finally:  # the read must not be cancelled; it ends with the call
            for unfinished in (draining, *self._unanswered):
                unfinished.cancel()
            await asyncio.gather(draining, *self._unanswered, return_exceptions=True)

    async def read(self) -> Any:
        """Return the next serialized request, or `grpc.aio.EOF` after a half-close. Must not be cancelled."""
        self.has_begun = True
        return await self.call.transport.read()

    @property
    def _may_read(self) -> bool:
        return self._reading is None and not self._is_half_closed and len(self._unanswered) < self._max_unanswered

    def _is_over(self, draining: "asyncio.Task[None]") -> bool:
        if self._unanswered:
            return False
        if draining.done() and not self._is_half_closed:
            raise DrainingError
        return self._is_half_closed

    def _start(self, raw_request: Any) -> None:
        if raw_request is grpc.aio.EOF:
            self._is_half_closed = True
            return
        self.call.request_bytes += len(raw_request)
        error: RequestError | None
        try:
            request = parse_message(raw_request, pb.TranslateRequest.FromString)
            error = self._id_error(request.request_id)
        except RequestError as parse_error:
            request, error = pb.TranslateRequest(request_id=readable_id(raw_request)), parse_error
        task = asyncio.ensure_future(self._answer(raw_request, request, error))
        self._unanswered[task] = request.request_id

    async def _answer(self, raw_request: bytes, request: pb.TranslateRequest, error: RequestError | None) -> bytes:
        request_id = request.request_id
        with self._pipeline.call(STREAM_REQUEST, self.call.transport, deadline_s=self.call.deadline_s) as call:
            outcome = await self._pipeline.answer(
                call, partial(self._respond, call, request, error), raw_request=raw_request
            )
            if isinstance(outcome, error_mapping.RpcError):
                response = pb.TranslateResponse(request_id=request_id, error=outcome.status).SerializeToString()
                call.response_bytes = len(response)  # before the call is logged
                return response
            return outcome

    async def _respond(
        self, call: Call, request: pb.TranslateRequest, error: RequestError | None, _raw_request: bytes
    ) -> bytes:
        if error:
            self._pipeline.adopt_id(call, request.request_id)
            raise error
        self._pipeline.identify(call, request)
        raw_response: bytes = (await self._translate(request, call)).SerializeToString()
        return raw_response

    def _id_error(self, request_id: str) -> RequestError | None:
        if not request_id:
            return RequestError("request_id", "required in a stream (1 to 128 printable ASCII characters)")
        if request_id in self._unanswered.values():
            return RequestError("request_id", "in use by an unanswered request of this stream")
        return None
