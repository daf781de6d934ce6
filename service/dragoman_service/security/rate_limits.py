"""Rate limits and concurrency limits, per caller and for all callers."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dragoman_service.errors import DragomanError, OverloadedError, RateLimitedError, StartingError
from dragoman_service.security.api_keys import Caller

_DEFAULT_DURATION_S = 1.0  # of a call, before the first call has ended
_NUM_AVERAGED = 32  # calls in the moving average of durations
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 10.0
_REQUESTS_PER_S, _TOKENS_PER_MIN, _WORK_PER_MIN = "requests/s", "source tokens/min", "decode cost/min"
_PERIODS_S = {_REQUESTS_PER_S: 1.0, _TOKENS_PER_MIN: 60.0, _WORK_PER_MIN: 60.0}
_SLOT_RETRY_S = 1.0  # the end of a stream cannot be predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """An amount taken from one bucket of a caller."""

    caller: str
    unit: str  # identifies the bucket, also in error messages: `requests/s`

    limit: float
    amount: float

    @property
    def rate_per_s(self) -> float:
        """Fill rate of the bucket."""
        return self.limit / _PERIODS_S[self.unit]

    @property
    def capacity(self) -> float:
        """Size of the bucket: the quota of one period, at least 1 so that a request can pass."""
        return max(1.0, self.limit)

    def to_error(self, retry_after_s: float) -> RateLimitedError:
        """Return the error for a caller whose bucket does not contain the amount."""
        return RateLimitedError(caller=self.caller, limit=self.limit, unit=self.unit, retry_after_s=retry_after_s)


class TokenBucket:
    """A token bucket that also serves amounts above its capacity.

    A full bucket serves any amount and can then have a negative level, so that large requests are served eventually and
    the average rate holds.
    """

    def __init__(self, *, rate_per_s: float, capacity: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate_per_s = rate_per_s
        self._capacity = capacity
        self._clock = clock
        self._level = capacity
        self._updated_s = clock()

    def take(self, amount: float) -> float:
        """Take an amount and return 0, or take nothing and return the seconds until the amount is available."""
        now_s = self._clock()
        self._level = min(self._capacity, self._level + (now_s - self._updated_s) * self._rate_per_s)
        self._updated_s = now_s
        missing = min(amount, self._capacity) - self._level
        if missing > 0:
            return missing / self._rate_per_s
        self._level -= amount
        return 0.0

    def refund(self, amount: float) -> None:
        """Return an amount to the bucket."""
        self._level = min(self._capacity, self._level + amount)


class RateLimiter:
    """Enforces the quotas of the callers file; not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], tuple[float, TokenBucket]] = {}  # (caller, unit) -> (limit, bucket)

    def take_request(self, caller: Caller) -> tuple[Charge, ...]:
        """Charge one request and return the charges; RateLimitedError if the bucket is empty."""
        if caller.requests_per_s is None:
            return ()
        return self._take(Charge(caller=caller.name, unit=_REQUESTS_PER_S, limit=caller.requests_per_s, amount=1))

    def take_tokens(
        self, caller: str, limits: Caller | None, num_tokens: int, *, work: Callable[[], int] | None = None
    ) -> tuple[Charge, ...]:
        """Charge source tokens and decode cost, both or none, and return the charges; RateLimitedError if too many.

        `work` returns the decode cost. It is only called if it is limited, because counting takes time.
        Without an entry in the callers file a caller has no quotas; if its entry was removed, requests in progress keep
        the previous quotas.
        """
        tokens_per_min = limits.tokens_per_min if limits else self._known_limit(caller, _TOKENS_PER_MIN)
        work_per_min = limits.decode_cost_per_min if limits else self._known_limit(caller, _WORK_PER_MIN)
        charges = []
        if tokens_per_min is not None:
            charges.append(Charge(caller=caller, unit=_TOKENS_PER_MIN, limit=tokens_per_min, amount=num_tokens))
        if work_per_min is not None and work is not None and (decode_cost := work()):
            charges.append(Charge(caller=caller, unit=_WORK_PER_MIN, limit=work_per_min, amount=decode_cost))
        return self._take(*charges)

    def refund(self, charges: Iterable[Charge]) -> None:
        """Return the amounts of charges to their buckets."""
        for charge in charges:
            self._buckets[charge.caller, charge.unit][1].refund(charge.amount)

    def _known_limit(self, caller: str, unit: str) -> float | None:
        return self._buckets[caller, unit][0] if (caller, unit) in self._buckets else None

    def _take(self, *charges: Charge) -> tuple[Charge, ...]:
        for position, charge in enumerate(charges):
            wait_s = self._bucket(charge).take(charge.amount)
            if wait_s > 0:
                self.refund(charges[:position])
                raise charge.to_error(wait_s)
        return charges

    def _bucket(self, charge: Charge) -> TokenBucket:
        # A changed limit starts a new bucket.
        known_limit, bucket = self._buckets.get((charge.caller, charge.unit), (None, None))
        if bucket is None or known_limit != charge.limit:
            bucket = TokenBucket(rate_per_s=charge.rate_per_s, capacity=charge.capacity, clock=self._clock)
            self._buckets[charge.caller, charge.unit] = charge.limit, bucket
        return bucket


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


class ConcurrencyLimiter:
    """Counts calls in progress and rejects calls while closed or full.

    `maximum_concurrent_rpcs` of `grpc.aio` would queue calls instead of rejecting them.
    """

    def __init__(self, *, max_concurrent: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed, until the models are loaded."""
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._mean_duration_s: float | None = None
        self._rejection: DragomanError | None = StartingError()
        self._num_calls = 0
        self._is_closed = asyncio.Event()
        self._is_closed.set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def open(self) -> None:
        """Admit calls."""
        self._rejection = None
        self._is_closed.clear()

    def close(self, rejection: DragomanError) -> None:
        """Reject new calls with this error; calls in progress continue."""
        self._rejection = rejection
        self._is_closed.set()

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a call in progress.

        Raises:
            OverloadedError: if the limit is reached; the retry delay is the mean duration of recent calls.
            DragomanError: the rejection, if closed.
        """
        if self._rejection is not None:
            raise self._rejection.with_traceback(None)  # the error must not keep the frames of earlier calls
        if self._num_calls >= self._max_concurrent:
            duration_s = _DEFAULT_DURATION_S if self._mean_duration_s is None else self._mean_duration_s
            retry_after_s = min(max(duration_s, _MIN_RETRY_S), _MAX_RETRY_S)
            raise OverloadedError(
                queued=self._num_calls,
                limit=self._max_concurrent,
                unit="concurrent requests",
                retry_after_s=retry_after_s,
            )
        began_s = self._clock()
        self._num_calls += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_calls -= 1
            duration_s = self._clock() - began_s
            mean_s = duration_s if self._mean_duration_s is None else self._mean_duration_s
            self._mean_duration_s = mean_s + (duration_s - mean_s) / _NUM_AVERAGED
            if self._num_calls == 0:
                self._is_idle.set()

    async def wait_until_idle(self) -> None:
        """Return when no call is in progress."""
        await self._is_idle.wait()

    async def wait_until_closed(self) -> DragomanError:
        """Wait until new calls are rejected, and return the rejection."""
        while self._rejection is None:
            await self._is_closed.wait()
        return self._rejection
