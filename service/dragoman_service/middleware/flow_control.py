"""Flow control of calls: bounded memory and time for receiving messages, and back pressure for sending them.

gRPC accepts at most a window of 64 KiB of a message until the call is read, then the whole message, and does not report
progress. So a call that is being read holds a slot, which stands for the largest message.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc

from dragoman_service.errors import (
    DeadlineExceededError,
    IdleError,
    InvalidFieldError,
    OverloadedError,
    RateLimitedError,
    RequestError,
    RetryableError,
)
from dragoman_service.middleware.settings import GrpcSettings
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestRecord
from dragoman_service.security.authentication import ConnectionInfo
from dragoman_service.threads import retrieve_exception

_Result = TypeVar("_Result")

MAX_OPEN_BODY_BYTES = 1024 * 1024
"""Largest body that is read to find the API key; 100,000 Chinese characters have 900 kB as a form."""

_MAX_OPEN_BYTES = 16 * 1024 * 1024  # of all such bodies at the same time
_SLOT_RETRY_S = 1.0  # the end of a stream cannot be predicted
_FIRST_MESSAGE_TIMEOUT_S = 0.2
_NUM_OPEN_READS = 8
_MAX_OPEN_UNREAD = 256
_OPEN_TIMEOUT_S = 6.0  # for short messages of callers without a key; a probe survives a server that stalls for seconds
_REJECTED = ""  # caller of streams that are rejected
_CONTENTION_TIMEOUT_S = 1.0  # longest time to receive a message while other calls wait
_CANCELLATION_S = 0.05  # time in which a disconnected caller is distinguished from one that sent no message
_TIME_LIMIT_GRACE_S = 0.5  # the queue and the decoder end first at the deadline: their errors are more precise


class MessageSource(Protocol):
    """Delivers the messages of a call."""

    async def read(self) -> Any:
        """Return the next message, serialized."""


class CallContext(MessageSource, ConnectionInfo, Protocol):
    """The transport side of a call; `grpc.aio.ServicerContext` satisfies it."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None: unlimited."""

    async def send_initial_metadata(self, metadata: tuple[()], /) -> None:
        """Begin the response of a stream."""

    async def write(self, raw_response: bytes, /) -> None:
        """Send a message of a stream; return once the transport has accepted it."""


@dataclass(slots=True, eq=False)
class _Reader:
    """A call whose message is being received or waits for a slot."""

    caller: str
    timeout: asyncio.Timeout
    has_slot: asyncio.Future[None]
    created_s: float
    slot_s: float = 0.0  # time at which it got its slot
    is_shortened: bool = False  # ends early because other calls wait

    def end_by(self, time_s: float) -> None:
        until_s = self.timeout.when()
        if not self.timeout.expired() and until_s is not None and until_s > time_s:
            self.is_shortened = True
            self.timeout.reschedule(time_s)


class FairSemaphore:
    """A counting semaphore with a limit per caller, for calls, streams or bytes; not thread-safe."""

    def __init__(self, unit: str, *, total: int, per_caller: int, on_rejection: Callable[[], None]) -> None:
        self._unit = unit
        self._total = total
        self._per_caller = per_caller
        self._on_rejection = on_rejection
        self._held: Counter[str] = Counter()
        self._num_held = 0

    @property
    def num_held(self) -> int:
        """Amount held by all callers."""
        return self._num_held

    def acquire(self, caller: str, amount: int = 1) -> None:
        """Hold an amount until `release`.

        Raises:
            RateLimitedError: if the caller exceeds its share.
            OverloadedError: if all callers exceed the total.
        """
        if self._held[caller] + amount > self._per_caller:
            self._on_rejection()
            raise RateLimitedError(
                caller=caller, limit=self._per_caller, unit=f"concurrent {self._unit}", retry_after_s=_SLOT_RETRY_S
            )
        if self._num_held + amount > self._total:
            self._on_rejection()
            raise OverloadedError(
                queued=self._num_held, limit=self._total, unit=self._unit, retry_after_s=_SLOT_RETRY_S
            )
        self._held[caller] += amount
        self._num_held += amount

    def release(self, caller: str, amount: int = 1) -> None:
        """Release an amount."""
        self._num_held -= amount
        self._held[caller] -= amount
        if not self._held[caller]:
            del self._held[caller]

    @contextlib.contextmanager
    def held(self, caller: str, amount: int = 1) -> Iterator[None]:
        """Hold an amount within a `with` block; raises as `acquire`."""
        self.acquire(caller, amount)
        try:
            yield
        finally:
            self.release(caller, amount)


class RequestReader:
    """Receives the first message of calls.

    While calls wait for a slot, no call keeps a slot for longer than a second, and the newest call goes first. At the
    limit of calls, the oldest call of the same caller ends, if it is older than a second. So a message that has
    arrived is read at once, even if many callers send nothing or one byte at a time.
    """

    def __init__(
        self,
        *,
        unread: FairSemaphore,
        num_reads: int,
        caller_share: float,
        timeout_s: float,
        on_timeout: Callable[[], None],
    ) -> None:
        """Receive `num_reads` messages at the same time; `unread` limits the calls that receive or wait."""
        self._unread = unread
        self._num_reads = num_reads
        self._num_caller_reads = max(1, int(num_reads * caller_share))
        self._timeout_s = timeout_s
        self._on_timeout = on_timeout
        self._readers: dict[_Reader, None] = {}  # that count in `unread`, oldest first
        self._reading: list[_Reader] = []
        self._waiting: list[_Reader] = []

    @property
    def num_unread(self) -> int:
        """Calls whose message has not arrived."""
        return self._unread.num_held

    async def receive(self, context: MessageSource, caller: str) -> bytes:
        """Return the message of a call.

        Raises:
            RequestError: if the caller closes the call without a message.
            DeadlineExceededError: if the message does not arrive in time.
            RetryableError: if too many calls wait, or the message does not arrive soon while other calls wait.
        """
        reader = _new_reader(caller, self._timeout_s)
        self._add(reader)
        try:
            async with reader.timeout, self._slot(reader):
                raw_message = await run_to_completion(context.read())
        except TimeoutError:
            self._on_timeout()
            if reader.is_shortened:
                num_reads, unit = self._num_reads, "concurrent uploads"
                raise OverloadedError(
                    queued=num_reads, limit=num_reads, unit=unit, retry_after_s=_CONTENTION_TIMEOUT_S
                ) from None
            raise DeadlineExceededError("stream") from None
        finally:
            self._remove(reader)
        if raw_message is grpc.aio.EOF:
            await asyncio.sleep(_CANCELLATION_S)
            raise RequestError("request", "stream closed before a message was received")
        return bytes(raw_message)

    async def read_before_rejection(self, context: MessageSource) -> None:
        """Read the message of a stream before its rejection, unless many messages are being received."""
        num_rejected = sum(other.caller == _REJECTED for other in self._reading)
        if len(self._reading) < self._num_reads and num_rejected < self._num_caller_reads:
            reader = _new_reader(_REJECTED, None)
            async with reader.timeout, self._slot(reader):
                await wait_for_first_message(context.read())

    def _add(self, reader: _Reader) -> None:
        try:
            self._unread.acquire(reader.caller)
        except RetryableError as error:
            is_own_share = isinstance(error, RateLimitedError)
            oldest = next((other for other in self._readers if not is_own_share or other.caller == reader.caller), None)
            if oldest is None or reader.created_s - oldest.created_s < _CONTENTION_TIMEOUT_S:
                raise
            oldest.end_by(reader.created_s)
            self._remove(oldest)
            self._unread.acquire(reader.caller)
        self._readers[reader] = None

    def _remove(self, reader: _Reader) -> None:
        if reader in self._readers:
            del self._readers[reader]
            self._unread.release(reader.caller)

    @contextlib.asynccontextmanager
    async def _slot(self, reader: _Reader) -> AsyncIterator[None]:
        self._waiting.append(reader)
        self._assign_slot()
        if not reader.has_slot.done():
            for other in self._reading:
                self._shorten_deadline(other, reader.caller)
        try:
            await reader.has_slot
            yield
        finally:
            (self._reading if reader in self._reading else self._waiting).remove(reader)
            self._assign_slot()

    def _assign_slot(self) -> None:
        """Give a free slot to the newest call whose caller has not used its share."""
        if not self._waiting or len(self._reading) >= self._num_reads:
            return
        num_reading = Counter(other.caller for other in self._reading)
        for reader in reversed(self._waiting):
            if num_reading[reader.caller] < self._num_caller_reads and not reader.has_slot.done():
                self._waiting.remove(reader)
                self._reading.append(reader)
                reader.slot_s = asyncio.get_running_loop().time()
                reader.has_slot.set_result(None)
                if self._waiting:
                    self._shorten_deadline(reader, self._waiting[-1].caller)
                return

    def _shorten_deadline(self, reader: _Reader, caller: str) -> None:
        if reader.caller == caller or len(self._reading) >= self._num_reads:
            reader.end_by(reader.slot_s + _CONTENTION_TIMEOUT_S)


def _new_reader(caller: str, timeout_s: float | None) -> _Reader:
    loop = asyncio.get_running_loop()
    return _Reader(caller, asyncio.timeout(timeout_s), loop.create_future(), loop.time())


class ResourceLimits:
    """Limits of `GrpcSettings` for all calls together and for each caller."""

    def __init__(self, settings: GrpcSettings, metrics: Metrics) -> None:
        def semaphore(setting: str, unit: str, total: int, per_caller: int) -> FairSemaphore:
            on_rejection = metrics.limit_refusals.labels(setting).inc
            return FairSemaphore(unit, total=total, per_caller=max(1, per_caller), on_rejection=on_rejection)

        share = settings.max_caller_share
        num_bytes, num_calls = settings.max_received_bytes // 2, settings.max_concurrent_requests
        on_timeout = metrics.limit_refusals.labels("message_timeout_s").inc
        self.settings = settings
        self.bytes = semaphore("max_received_bytes", "bytes of messages", num_bytes, int(num_bytes * share))
        self.streams = semaphore("max_streams", "streams", settings.max_streams, int(settings.max_streams * share))
        self.watchers = semaphore("max_watchers", "watchers", settings.max_watchers, settings.max_peer_watchers)
        self.receiver = RequestReader(
            unread=semaphore("max_concurrent_requests", "calls without a message", num_calls, int(num_calls * share)),
            num_reads=num_bytes // settings.max_message_bytes,
            caller_share=share,
            timeout_s=settings.message_timeout_s,
            on_timeout=on_timeout,
        )
        # For bodies that are read and parsed to find the API key:
        self.open_bytes = semaphore(
            "max_received_bytes", "bytes without an API key", _MAX_OPEN_BYTES, _MAX_OPEN_BYTES // 4
        )
        self.open_parsing = asyncio.Semaphore(1)
        self.open_receiver = RequestReader(
            unread=semaphore(
                "max_concurrent_requests", "calls without a message", _MAX_OPEN_UNREAD, _MAX_OPEN_UNREAD // 2
            ),
            num_reads=_NUM_OPEN_READS,
            caller_share=0.5,
            timeout_s=min(settings.message_timeout_s, _OPEN_TIMEOUT_S),
            on_timeout=on_timeout,
        )
        metrics.received_bytes.set_function(lambda: self.bytes.num_held)
        metrics.watchers.set_function(lambda: self.watchers.num_held)
        metrics.unread_calls.set_function(lambda: self.receiver.num_unread + self.open_receiver.num_unread)
        self._on_large_message = metrics.limit_refusals.labels("max_control_message_bytes").inc
        self.on_idle_stream = metrics.limit_refusals.labels("stream_idle_timeout_s").inc

    def check_control_message(self, num_bytes: int) -> None:
        """Raise InvalidFieldError if a message to a service other than TranslationService is too large."""
        limit = self.settings.max_control_message_bytes
        if num_bytes > limit:
            self._on_large_message()
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


def call_timeout_s(settings: GrpcSettings, remaining_s: float | None) -> float:
    """Return the time limit of a call with this time until its deadline; None: no deadline."""
    return min(settings.default_timeout_s if remaining_s is None else remaining_s, settings.max_timeout_s)


def stream_timeout_s(settings: GrpcSettings, remaining_s: float | None) -> float:
    """Return the time limit of a document or request stream; see `call_timeout_s`."""
    return min(settings.default_stream_timeout_s if remaining_s is None else remaining_s, settings.max_stream_timeout_s)


@contextlib.asynccontextmanager
async def time_limit(allowed_s: float) -> AsyncIterator[None]:
    """Raise DeadlineExceededError in work that takes longer, even if the caller neither reads nor sends."""
    try:
        async with asyncio.timeout(allowed_s + _TIME_LIMIT_GRACE_S):
            yield
    except TimeoutError as error:
        raise DeadlineExceededError("stream") from error


async def wait_for_first_message(receiving: Awaitable[Any]) -> None:
    """Read and discard the first message of a stream that is about to be rejected, or return after a short wait.

    A client of `grpc.aio` that is still sending when the status arrives reports INTERNAL instead (grpc/grpc#36066).
    """
    task = asyncio.ensure_future(receiving)
    task.add_done_callback(retrieve_exception)
    await asyncio.wait((task,), timeout=_FIRST_MESSAGE_TIMEOUT_S)


async def run_to_completion(operation: Coroutine[Any, Any, _Result]) -> _Result:
    """Await an operation of gRPC, which continues if the awaiting task is cancelled."""
    task = asyncio.ensure_future(operation)
    task.add_done_callback(retrieve_exception)
    return await asyncio.shield(task)
