"""Flow control of calls: bounded memory and time for receiving messages, and back pressure for sending them.

gRPC accepts at most a window of 64 KiB of a message until the call is read, then the whole message, and does not report
progress. So a call that is being read holds a slot, which stands for the largest message.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc

from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.errors import (
    DeadlineExceededError,
    InvalidFieldError,
    OverloadedError,
    RateLimitedError,
    RequestError,
    RetryableError,
    StartingError,
)
from dragoman_service.observability.metrics import Metrics
from dragoman_service.threads import retrieve_exception

_Result = TypeVar("_Result")

MAX_ANONYMOUS_BODY_BYTES = 1024 * 1024
"""Largest body that is read to find the API key; 100,000 Chinese characters have 900 kB as a form."""

_MAX_ANONYMOUS_BYTES = 16 * 1024 * 1024  # of all such bodies at the same time
_SLOT_RETRY_S = 1.0  # the end of a stream cannot be predicted
_DEFAULT_DURATION_S = 1.0  # of a call, before the first call has ended
_NUM_AVERAGED = 32  # calls in the moving average of durations
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 10.0
_FIRST_MESSAGE_TIMEOUT_S = 0.2
_NUM_ANONYMOUS_READS = 8
_MAX_ANONYMOUS_UNREAD = 256
_ANONYMOUS_TIMEOUT_S = 6.0  # for messages of callers without a key; a probe survives a server that stalls for seconds
_REJECTED = ""  # caller of streams that are rejected
_CONTENTION_TIMEOUT_S = 1.0  # longest time to receive a message while other calls wait
_CANCELLATION_S = 0.05  # time in which a disconnected caller is distinguished from one that sent no message
_TIME_LIMIT_GRACE_S = 0.5  # the queue and the decoder end first at the deadline: their errors are more precise


class MessageSource(Protocol):
    """Delivers the messages of a call."""

    async def read(self) -> Any:
        """Return the next message, serialized."""


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
    """A counting semaphore with an optional limit per caller, for calls, streams or bytes; not thread-safe."""

    def __init__(
        self,
        unit: str,
        *,
        total: int,
        per_caller: int | None = None,
        on_rejection: Callable[[], None] = lambda: None,
        retry_after_s: Callable[[], float] = lambda: _SLOT_RETRY_S,
    ) -> None:
        self._unit = unit
        self._total = total
        self._per_caller = per_caller
        self._on_rejection = on_rejection
        self._retry_after_s = retry_after_s
        self._held: Counter[str] = Counter()
        self._num_held = 0

    @property
    def num_held(self) -> int:
        """Amount held by all callers."""
        return self._num_held

    def acquire(self, caller: str = "", amount: int = 1) -> None:
        """Hold an amount until `release`.

        Raises:
            RateLimitedError: if the caller exceeds its share.
            OverloadedError: if all callers exceed the total.
        """
        if self._per_caller is not None and self._held[caller] + amount > self._per_caller:
            self._on_rejection()
            unit, retry_after_s = f"concurrent {self._unit}", self._retry_after_s()
            raise RateLimitedError(caller=caller, limit=self._per_caller, unit=unit, retry_after_s=retry_after_s)
        if self._num_held + amount > self._total:
            self._on_rejection()
            retry_after_s = self._retry_after_s()
            raise OverloadedError(
                queued=self._num_held, limit=self._total, unit=self._unit, retry_after_s=retry_after_s
            )
        self._held[caller] += amount
        self._num_held += amount

    def release(self, caller: str = "", amount: int = 1) -> None:
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


class ConcurrencyLimiter:
    """Counts calls in progress and rejects calls while the server starts or is full.

    `maximum_concurrent_rpcs` of `grpc.aio` would queue calls instead of rejecting them.
    """

    def __init__(self, *, max_concurrent: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed, until the models are loaded."""
        self._calls = FairSemaphore("concurrent requests", total=max_concurrent, retry_after_s=self._retry_after_s)
        self._clock = clock
        self._mean_duration_s: float | None = None
        self._is_open = False
        self._is_draining = asyncio.Event()

    def open(self) -> None:
        """Admit calls."""
        self._is_open = True

    def drain(self) -> None:
        """End request streams; calls that the server has accepted are still admitted."""
        self._is_draining.set()

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a call in progress.

        Raises:
            OverloadedError: if the limit is reached; the retry delay is the mean duration of recent calls.
            StartingError: before `open`.
        """
        if not self._is_open:
            raise StartingError
        self._calls.acquire()
        began_s = self._clock()
        try:
            yield
        finally:
            self._calls.release()
            duration_s = self._clock() - began_s
            mean_s = duration_s if self._mean_duration_s is None else self._mean_duration_s
            self._mean_duration_s = mean_s + (duration_s - mean_s) / _NUM_AVERAGED

    async def wait_until_draining(self) -> None:
        """Return when the drain begins."""
        await self._is_draining.wait()

    def _retry_after_s(self) -> float:
        duration_s = _DEFAULT_DURATION_S if self._mean_duration_s is None else self._mean_duration_s
        return min(max(duration_s, _MIN_RETRY_S), _MAX_RETRY_S)


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
        self.unread = unread
        self._num_reads = num_reads
        self._num_caller_reads = max(1, int(num_reads * caller_share))
        self._timeout_s = timeout_s
        self._on_timeout = on_timeout
        self._readers: dict[_Reader, None] = {}  # that count in `unread`, oldest first
        self._reading: list[_Reader] = []
        self._waiting: list[_Reader] = []

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
            self.unread.acquire(reader.caller)
        except RetryableError as error:
            is_own_share = isinstance(error, RateLimitedError)
            oldest = next((other for other in self._readers if not is_own_share or other.caller == reader.caller), None)
            if oldest is None or reader.created_s - oldest.created_s < _CONTENTION_TIMEOUT_S:
                raise
            oldest.end_by(reader.created_s)
            self._remove(oldest)
            self.unread.acquire(reader.caller)
        self._readers[reader] = None

    def _remove(self, reader: _Reader) -> None:
        if reader in self._readers:
            del self._readers[reader]
            self.unread.release(reader.caller)

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
            on_rejection = metrics.limit_rejections.labels(setting).inc
            return FairSemaphore(unit, total=total, per_caller=max(1, per_caller), on_rejection=on_rejection)

        share = settings.max_caller_share
        num_bytes, num_calls = settings.max_received_bytes // 2, settings.max_concurrent_requests
        on_timeout = metrics.limit_rejections.labels("message_timeout_s").inc
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
        self.anonymous_bytes = semaphore(
            "max_received_bytes", "bytes without an API key", _MAX_ANONYMOUS_BYTES, _MAX_ANONYMOUS_BYTES // 4
        )
        self.anonymous_parsing = asyncio.Semaphore(1)
        self.anonymous_receiver = RequestReader(
            unread=semaphore(
                "max_concurrent_requests", "calls without a message", _MAX_ANONYMOUS_UNREAD, _MAX_ANONYMOUS_UNREAD // 2
            ),
            num_reads=_NUM_ANONYMOUS_READS,
            caller_share=0.5,
            timeout_s=min(settings.message_timeout_s, _ANONYMOUS_TIMEOUT_S),
            on_timeout=on_timeout,
        )
        metrics.received_bytes.set_function(lambda: self.bytes.num_held)
        metrics.watchers.set_function(lambda: self.watchers.num_held)
        metrics.unread_calls.set_function(
            lambda: self.receiver.unread.num_held + self.anonymous_receiver.unread.num_held
        )
        self._on_large_message = metrics.limit_rejections.labels("max_control_message_bytes").inc
        self.on_idle_stream = metrics.limit_rejections.labels("stream_idle_timeout_s").inc

    def check_control_message(self, num_bytes: int) -> None:
        """Raise InvalidFieldError if a message to a service other than TranslationService is too large."""
        limit = self.settings.max_control_message_bytes
        if num_bytes > limit:
            self._on_large_message()
            raise InvalidFieldError("request", f"{num_bytes} bytes", f"at most {limit} bytes")


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
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(retrieve_exception)
        raise
