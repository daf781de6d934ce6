"""How much callers may ask for: requests and tokens in a time, and calls that are answered at a time."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dragoman_service.errors import DragomanError, OverloadedError, RateLimitedError, StartingError
from dragoman_service.security.api_keys import Caller

_UNKNOWN_DURATION_S = 1.0  # of a call, before any has ended
_NUM_AVERAGED = 32  # calls after which the duration of a past one counts e times less
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 10.0
_REQUESTS_PER_S, _TOKENS_PER_MIN, _WORK_PER_MIN = "requests/s", "source tokens/min", "decode cost/min"
_PERIODS_S = {_REQUESTS_PER_S: 1.0, _TOKENS_PER_MIN: 60.0, _WORK_PER_MIN: 60.0}
_PLACE_RETRY_S = 1.0  # nobody knows when a stream or a watcher ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """An amount that is taken from one bucket of a caller."""

    caller: str
    unit: str
    """Which of the caller's buckets, as messages name it: `requests/s`."""

    limit: float
    amount: float

    @property
    def rate_per_s(self) -> float:
        """At which the bucket fills."""
        return self.limit / _PERIODS_S[self.unit]

    @property
    def capacity(self) -> float:
        """What the bucket holds: the limit of one period, so that it lets at least one request through."""
        return max(1.0, self.limit)

    def refused(self, wait_s: float) -> RateLimitedError:
        """Return the error for the caller, if the bucket has not enough for so long."""
        return RateLimitedError(caller=self.caller, limit=self.limit, unit=self.unit, retry_after_s=wait_s)


class TokenBucket:
    """Fills at a steady rate up to its capacity; what is taken must be in it.

    More than the capacity can be taken from a full bucket, which then owes the rest and gives nothing until that has
    flowed in. So whatever is asked for is served at some time, and the rate holds in the long run.
    """

    def __init__(self, *, rate_per_s: float, capacity: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start full; both numbers are above 0."""
        self._rate_per_s = rate_per_s
        self._capacity = capacity
        self._clock = clock
        self._level = capacity
        self._updated_s = clock()

    def take(self, amount: float) -> float:
        """Take an amount and return 0, or take nothing and return in how many seconds to try again."""
        now_s = self._clock()
        self._level = min(self._capacity, self._level + (now_s - self._updated_s) * self._rate_per_s)
        self._updated_s = now_s
        missing = min(amount, self._capacity) - self._level
        if missing > 0:
            return missing / self._rate_per_s
        self._level -= amount
        return 0.0

    def give_back(self, amount: float) -> None:
        """Put back what was taken for nothing."""
        self._level = min(self._capacity, self._level + amount)


class RateLimiter:
    """Holds callers to the rates of the callers file; to be used in one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], tuple[float, TokenBucket]] = {}  # by caller and unit; first its limit

    def take_request(self, caller: Caller) -> tuple[Charge, ...]:
        """Count one request, and return how; RateLimitedError if it is one too many."""
        if caller.requests_per_s is None:
            return ()
        return self._take(Charge(caller=caller.name, unit=_REQUESTS_PER_S, limit=caller.requests_per_s, amount=1))

    def take_tokens(
        self, caller: str, limits: Caller | None, num_tokens: int, *, work: Callable[[], int] | None = None
    ) -> tuple[Charge, ...]:
        """Count source tokens and decode cost, both or none, and return how; RateLimitedError if they are too many.

        `work` returns the decode cost; it is called only if they are limited, as counting them takes time.
        A caller without an entry has no limits, but one whose entry was removed keeps those it had, as what it has
        begun goes on.
        """
        tokens_per_min = limits.tokens_per_min if limits else self._known_limit(caller, _TOKENS_PER_MIN)
        work_per_min = limits.decode_cost_per_min if limits else self._known_limit(caller, _WORK_PER_MIN)
        charges = []
        if tokens_per_min is not None:
            charges.append(Charge(caller=caller, unit=_TOKENS_PER_MIN, limit=tokens_per_min, amount=num_tokens))
        if work_per_min is not None and work is not None and (decode_cost := work()):
            charges.append(Charge(caller=caller, unit=_WORK_PER_MIN, limit=work_per_min, amount=decode_cost))
        return self._take(*charges)

    def give_back(self, charges: Iterable[Charge]) -> None:
        """Put back what was counted for nothing."""
        for charge in charges:
            self._buckets[charge.caller, charge.unit][1].give_back(charge.amount)

    def _known_limit(self, caller: str, unit: str) -> float | None:
        return self._buckets[caller, unit][0] if (caller, unit) in self._buckets else None

    def _take(self, *charges: Charge) -> tuple[Charge, ...]:
        for position, charge in enumerate(charges):
            wait_s = self._bucket(charge).take(charge.amount)
            if wait_s > 0:
                self.give_back(charges[:position])
                raise charge.refused(wait_s)
        return charges

    def _bucket(self, charge: Charge) -> TokenBucket:
        """Return the bucket of a caller and unit; it is made anew if the limit has changed."""
        known_limit, bucket = self._buckets.get((charge.caller, charge.unit), (None, None))
        if bucket is None or known_limit != charge.limit:
            bucket = TokenBucket(rate_per_s=charge.rate_per_s, capacity=charge.capacity, clock=self._clock)
            self._buckets[charge.caller, charge.unit] = charge.limit, bucket
        return bucket


class FairSemaphore:
    """What all callers share and none may take whole: calls, streams or bytes at a time; used in one thread."""

    def __init__(self, unit: str, *, total: int, per_caller: int, count_refusal: Callable[[], None]) -> None:
        self._unit = unit
        self._total = total
        self._per_caller = per_caller
        self._count_refusal = count_refusal
        self._taken: Counter[str] = Counter()
        self._num_taken = 0

    @property
    def num_taken(self) -> int:
        """By all callers."""
        return self._num_taken

    def take(self, caller: str, amount: int = 1) -> None:
        """Take some until `give_back`.

        Raises:
            RateLimitedError: if the caller would have more than its share.
            OverloadedError: if all would have more than there is.
        """
        if self._taken[caller] + amount > self._per_caller:
            self._count_refusal()
            raise RateLimitedError(
                caller=caller, limit=self._per_caller, unit=f"{self._unit} at a time", retry_after_s=_PLACE_RETRY_S
            )
        if self._num_taken + amount > self._total:
            self._count_refusal()
            raise OverloadedError(
                queued=self._num_taken, limit=self._total, unit=self._unit, retry_after_s=_PLACE_RETRY_S
            )
        self._taken[caller] += amount
        self._num_taken += amount

    def give_back(self, caller: str, amount: int = 1) -> None:
        """Give back what was taken."""
        self._num_taken -= amount
        self._taken[caller] -= amount
        if not self._taken[caller]:
            del self._taken[caller]

    @contextlib.contextmanager
    def taken(self, caller: str, amount: int = 1) -> Iterator[None]:
        """Take some for a while; raises as `take`."""
        self.take(caller, amount)
        try:
            yield
        finally:
            self.give_back(caller, amount)


class ConcurrencyLimiter:
    """Counts the calls that are being answered; rejects new ones while closed or full.

    `grpc.aio`'s own `maximum_concurrent_rpcs` would let callers wait without an answer.
    """

    def __init__(self, *, max_concurrent: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed, because the models are not loaded yet."""
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
        """Admit calls from now on."""
        self._rejection = None
        self._is_closed.clear()

    def close(self, rejection: DragomanError) -> None:
        """Reject new calls with this error; those that are being answered go on."""
        self._rejection = rejection
        self._is_closed.set()

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a call while it is answered.

        Raises:
            OverloadedError: if there are as many as there may be; to be retried after the mean duration of the last
                calls, within sensible limits.
            DragomanError: the rejection, if closed.
        """
        if self._rejection is not None:
            raise self._rejection.with_traceback(None)  # or it would keep the frames of all it was raised in
        if self._num_calls >= self._max_concurrent:
            duration_s = _UNKNOWN_DURATION_S if self._mean_duration_s is None else self._mean_duration_s
            retry_after_s = min(max(duration_s, _MIN_RETRY_S), _MAX_RETRY_S)
            raise OverloadedError(
                queued=self._num_calls, limit=self._max_concurrent, unit="requests", retry_after_s=retry_after_s
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
        """Return once no call is being answered."""
        await self._is_idle.wait()

    async def wait_until_closed(self) -> DragomanError:
        """Return the rejection once new calls are rejected."""
        while self._rejection is None:
            await self._is_closed.wait()
        return self._rejection
