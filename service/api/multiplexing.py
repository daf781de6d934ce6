"""Many requests on one call, answered side by side as they finish, a bounded number at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from service.api.streams import RequestStream, StreamedRequest, look_at_error
from service.errors import DragomanError, InvalidFieldError


async def answer_all(
    stream: RequestStream, answer: Callable[[Any], Awaitable[Message]], *, max_unanswered: int
) -> None:
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

    def __init__(self, stream: RequestStream, answer: Callable[[Any], Awaitable[Message]], max_unanswered: int) -> None:
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
        async def respond() -> Message:
            if problem:
                raise problem
            return await self._answer(request.message)

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
