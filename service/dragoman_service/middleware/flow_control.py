"""How messages are received: after the caller is known, in a limited time, and within memory that all calls share.

Until a call is read from, gRPC takes no more of its message than a window of 64 KiB; from then on it takes all of it,
and nothing tells how much has come. So whoever reads holds a slot, which stands for the largest message.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc

from dragoman_service.errors import (
    DeadlineExceededError,
    IdleError,
    InvalidFieldError,
    OverloadedError,
    RateLimitedError,
    RetryableError,
)
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestRecord
from dragoman_service.security.authentication import ConnectionInfo
from dragoman_service.security.rate_limits import FairSemaphore
from dragoman_service.security.settings import GrpcSettings
from dragoman_service.threads import retrieve_exception

_Result = TypeVar("_Result")

_FIRST_MESSAGE_TIMEOUT_S = 0.2
_NUM_OPEN_READS = 8
_MAX_OPEN_UNREAD = 256
_OPEN_TIMEOUT_S = 6.0
"""For messages of callers who need no key, which are short; a probe outlives a server that stands still for seconds."""

MAX_OPEN_BODY_BYTES = 1024 * 1024
"""Of a body that has to be read to find the API key; 100,000 characters of Chinese are 900 kB as a form."""

_MAX_OPEN_BYTES = 16 * 1024 * 1024  # of all such bodies at a time
_REJECTED = ""  # in place of a caller
_HURRIED_S = 1.0
_CANCELLATION_S = 0.05  # within which a caller who has left is told from one who has sent nothing
_TIME_LIMIT_GRACE_S = 0.5  # the queue and the decoder end first at the deadline: their errors are more precise


class MessageSource(Protocol):
    """Delivers the messages of a call."""

    async def read(self) -> Any:
        """Return the next message, serialized."""


class CallContext(MessageSource, ConnectionInfo, Protocol):
    """The transport side of a call; `grpc.aio.ServicerContext` satisfies it."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None if there is no deadline."""

    async def send_initial_metadata(self, metadata: tuple[()], /) -> None:
        """Begin the response of a stream."""

    async def write(self, raw_response: bytes, /) -> None:
        """Send a message of a stream; return once the transport has accepted it."""


@dataclass(slots=True, eq=False)
class _Reader:
    """A call whose message is received, or will be."""

    caller: str
    timeout: asyncio.Timeout
    may_read: asyncio.Future[None]
    came_s: float
    began_s: float = 0.0
    """When it got its slot."""
    is_hurried: bool = False
    """Whether it ends early because others wait."""

    def end_by(self, time_s: float) -> None:
        """Let it have no more time than that."""
        until_s = self.timeout.when()
        if not self.timeout.expired() and until_s is not None and until_s > time_s:
            self.is_hurried = True
            self.timeout.reschedule(time_s)


class RequestReader:
    """Receives the first message of calls.

    While calls wait for a slot, nobody keeps one for longer than a second, and the newest call goes first; where there
    is no place for a call, the oldest of its caller ends, if it is older than that. So messages that are there are read
    at once, whatever number of callers sends nothing, or a byte now and then.
    """

    def __init__(
        self,
        *,
        unread: FairSemaphore,
        num_reads: int,
        caller_share: float,
        timeout_s: float,
        count_late: Callable[[], None],
    ) -> None:
        """Let so many messages be received at a time, the rest wait; `unread` has a place for each call of both."""
        self._unread = unread
        self._num_reads = num_reads
        self._num_caller_reads = max(1, int(num_reads * caller_share))
        self._timeout_s = timeout_s
        self._count_late = count_late
        self._readers: dict[_Reader, None] = {}  # that have a place, the oldest first
        self._reading: list[_Reader] = []
        self._waiting: list[_Reader] = []

    @property
    def num_unread(self) -> int:
        """Calls whose message is awaited."""
        return self._unread.num_taken

    async def receive(self, context: MessageSource, caller: str) -> bytes:
        """Return the message of a call.

        Raises:
            InvalidFieldError: if the caller ends without one.
            DeadlineExceededError: if it does not come in time.
            RetryableError: if too many wait for theirs, or it does not come soon while others wait.
        """
        reader = _reader(caller, self._timeout_s)
        self._take_place(reader)
        try:
            async with reader.timeout, self._slot(reader):
                raw_message = await run_to_completion(context.read())
        except TimeoutError:
            self._count_late()
            if reader.is_hurried:
                unit = "messages being received"
                raise OverloadedError(
                    queued=self._num_reads, limit=self._num_reads, unit=unit, retry_after_s=_HURRIED_S
                ) from None
            raise DeadlineExceededError("stream") from None
        finally:
            self._leave_place(reader)
        if raw_message is grpc.aio.EOF:
            await asyncio.sleep(_CANCELLATION_S)
            raise InvalidFieldError("request", "no message", "one")
        return bytes(raw_message)

    async def before_rejection(self, context: MessageSource) -> None:
        """Take the message of a stream that is about to be rejected, unless many are being taken."""
        num_own = sum(other.caller == _REJECTED for other in self._reading)
        if len(self._reading) < self._num_reads and num_own < self._num_caller_reads:
            reader = _reader(_REJECTED, None)
            async with reader.timeout, self._slot(reader):
                await wait_for_first_message(context.read())

    def _take_place(self, reader: _Reader) -> None:
        try:
            self._unread.take(reader.caller)
        except RetryableError as error:
            is_own_share = isinstance(error, RateLimitedError)
            oldest = next((other for other in self._readers if not is_own_share or other.caller == reader.caller), None)
            if oldest is None or reader.came_s - oldest.came_s < _HURRIED_S:
                raise
            oldest.end_by(reader.came_s)
            self._leave_place(oldest)
            self._unread.take(reader.caller)
        self._readers[reader] = None

    def _leave_place(self, reader: _Reader) -> None:
        if reader in self._readers:
            del self._readers[reader]
            self._unread.give_back(reader.caller)

    @contextlib.asynccontextmanager
    async def _slot(self, reader: _Reader) -> AsyncIterator[None]:
        self._waiting.append(reader)
        self._admit()
        if not reader.may_read.done():
            for other in self._reading:
                self._shorten_deadline(other, reader.caller)
        try:
            await reader.may_read
            yield
        finally:
            (self._reading if reader in self._reading else self._waiting).remove(reader)
            self._admit()

    def _admit(self) -> None:
        """Give a slot that is free to the newest call whose caller has not its share yet."""
        if not self._waiting or len(self._reading) >= self._num_reads:
            return
        num_of = Counter(other.caller for other in self._reading)
        for reader in reversed(self._waiting):
            if num_of[reader.caller] < self._num_caller_reads and not reader.may_read.done():
                self._waiting.remove(reader)
                self._reading.append(reader)
                reader.began_s = asyncio.get_running_loop().time()
                reader.may_read.set_result(None)
                if self._waiting:
                    self._shorten_deadline(reader, self._waiting[-1].caller)
                return

    def _shorten_deadline(self, reader: _Reader, caller: str) -> None:
        if reader.caller == caller or len(self._reading) >= self._num_reads:
            reader.end_by(reader.began_s + _HURRIED_S)


def _reader(caller: str, timeout_s: float | None) -> _Reader:
    loop = asyncio.get_running_loop()
    return _Reader(caller, asyncio.timeout(timeout_s), loop.create_future(), loop.time())


class ResourceLimits:
    """What the settings allow to all calls together, and to one caller."""

    def __init__(self, settings: GrpcSettings, metrics: Metrics) -> None:
        def places(setting: str, unit: str, total: int, per_caller: int) -> FairSemaphore:
            return FairSemaphore(
                unit,
                total=total,
                per_caller=max(1, per_caller),
                count_refusal=metrics.limit_refusals.labels(setting).inc,
            )

        share = settings.max_caller_share
        num_bytes, num_calls = settings.max_received_bytes // 2, settings.max_concurrent_requests
        self.settings = settings
        self.bytes = places("max_received_bytes", "bytes of messages", num_bytes, int(num_bytes * share))
        self.streams = places("max_streams", "streams", settings.max_streams, int(settings.max_streams * share))
        self.watchers = places("max_watchers", "watchers", settings.max_watchers, settings.max_peer_watchers)
        count_late = metrics.limit_refusals.labels("message_timeout_s").inc
        unread = "calls without a message"
        self.receiver = RequestReader(
            unread=places("max_concurrent_requests", unread, num_calls, int(num_calls * share)),
            num_reads=num_bytes // settings.max_message_bytes,
            caller_share=share,
            timeout_s=settings.message_timeout_s,
            count_late=count_late,
        )
        self.open_bytes = places(
            "max_received_bytes", "bytes without an API key", _MAX_OPEN_BYTES, _MAX_OPEN_BYTES // 4
        )
        """Taken by each body that has to be read to find the API key, until the key is known."""
        self.open_parsing = asyncio.Semaphore(1)
        """Held while such a body is parsed."""
        self.open_receiver = RequestReader(
            unread=places("max_concurrent_requests", unread, _MAX_OPEN_UNREAD, _MAX_OPEN_UNREAD // 2),
            num_reads=_NUM_OPEN_READS,
            caller_share=0.5,
            timeout_s=min(settings.message_timeout_s, _OPEN_TIMEOUT_S),
            count_late=count_late,
        )
        metrics.received_bytes.set_function(lambda: self.bytes.num_taken)
        metrics.watchers.set_function(lambda: self.watchers.num_taken)
        metrics.unread_calls.set_function(lambda: self.receiver.num_unread + self.open_receiver.num_unread)
        self._count_large = metrics.limit_refusals.labels("max_control_message_bytes").inc
        self.count_idle = metrics.limit_refusals.labels("stream_idle_timeout_s").inc

    def check_control_message(self, num_bytes: int) -> None:
        """Raise InvalidFieldError if a message to any service but translation is too large."""
        limit = self.settings.max_control_message_bytes
        if num_bytes > limit:
            self._count_large()
            raise InvalidFieldError("request", f"{num_bytes} bytes", f"at most {limit} bytes")


class ResponseStream:
    """Sends the messages of a call to its caller."""

    def __init__(self, record: RequestRecord, context: CallContext, idle_timeout_s: float) -> None:
        """The call ends if the transport does not accept a message within the timeout."""
        self.record = record
        self._context = context
        self._idle_timeout_s = idle_timeout_s
        self._has_sent = False

    async def write(self, raw_response: bytes) -> None:
        """Send a serialized message; return once the transport has accepted it, so that a slow reader slows the work.

        Raises:
            IdleError: if the transport does not accept it in time.
            asyncio.CancelledError: if the caller has disconnected.
        """
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                if not self._has_sent:  # in an operation of its own, so that a status can follow a pending message
                    self._has_sent = True
                    await run_to_completion(self._context.send_initial_metadata(()))
                await run_to_completion(self._context.write(raw_response))
        except TimeoutError:
            raise IdleError from None
        except grpc.aio.BaseError as error:  # gRPC is about to cancel the handler
            raise asyncio.CancelledError from error
        self.record.response_bytes += len(raw_response)


@contextlib.asynccontextmanager
async def time_limit(allowed_s: float) -> AsyncIterator[None]:
    """Raise DeadlineExceededError in work that takes longer, even if the caller neither reads nor sends."""
    try:
        async with asyncio.timeout(allowed_s + _TIME_LIMIT_GRACE_S):
            yield
    except TimeoutError as error:
        raise DeadlineExceededError("stream") from error


async def wait_for_first_message(receiving: Awaitable[Any]) -> None:
    """Take, and drop, the message with which a caller opens a stream that is about to be rejected.

    A client of `grpc.aio` that is still sending when the status comes reports INTERNAL in its place
    (grpc/grpc#36066). One who sends nothing is waited for only briefly.
    """
    task = asyncio.ensure_future(receiving)
    task.add_done_callback(retrieve_exception)
    await asyncio.wait((task,), timeout=_FIRST_MESSAGE_TIMEOUT_S)


async def run_to_completion(operation: Coroutine[Any, Any, _Result]) -> _Result:
    """Await an operation of gRPC; if the awaiting task is cancelled, the operation still comes to its end."""
    task = asyncio.ensure_future(operation)
    task.add_done_callback(retrieve_exception)
    return await asyncio.shield(task)
