"""How much may be taken in a time, with bursts."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

from service.api.callers import Caller, Limits
from service.errors import DragomanError, OverloadedError, RateLimitedError, StartingError


class TokenBucket:
    """Fills at a steady rate up to its capacity; who takes more than is in it has to wait.

    More than the capacity can be taken from a full bucket, which then owes the rest and stays shut until that has
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
        self._fill()
        missing = min(amount, self._capacity) - self._level
        if missing > 0:
            return missing / self._rate_per_s
        self._level -= amount
        return 0.0

    def give_back(self, amount: float) -> None:
        """Put back what was taken for nothing."""
        self._level = min(self._capacity, self._level + amount)

    def _fill(self) -> None:
        now_s = self._clock()
        self._level = min(self._capacity, self._level + (now_s - self._updated_s) * self._rate_per_s)
        self._updated_s = now_s


_S_PER_MIN = 60.0


class _Allowance:
    """The buckets of one caller; None where it has no limit."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.requests: TokenBucket | None = None
        self.tokens: TokenBucket | None = None
        if limits.requests_per_s is not None:
            rate_per_s = limits.requests_per_s
            self.requests = TokenBucket(rate_per_s=rate_per_s, capacity=max(1.0, rate_per_s), clock=clock)
        if limits.tokens_per_min is not None:
            per_min = limits.tokens_per_min
            self.tokens = TokenBucket(rate_per_s=per_min / _S_PER_MIN, capacity=per_min, clock=clock)


class RateLimiter:
    """The buckets of all callers; to be used in one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_name: dict[str, _Allowance] = {}

    def take_request(self, caller: Caller) -> None:
        """Count one request; RateLimitedError if it is one too many."""
        requests = self._of(caller).requests
        wait_s = requests.take(1) if requests else 0.0
        if wait_s > 0:
            raise RateLimitedError(
                caller=caller.name, limit=caller.requests_per_s or 0.0, unit="requests/s", retry_after_s=wait_s
            )

    @contextlib.contextmanager
    def charge_tokens(self, caller: Caller, num_tokens: int) -> Iterator[None]:
        """Count source tokens, but not if what they are for fails inside; RateLimitedError if they are too many."""
        tokens = self._of(caller).tokens
        wait_s = tokens.take(num_tokens) if tokens else 0.0
        if wait_s > 0:
            raise RateLimitedError(
                caller=caller.name, limit=caller.tokens_per_min or 0.0, unit="source tokens/min", retry_after_s=wait_s
            )
        try:
            yield
        except BaseException:
            if tokens:
                tokens.give_back(num_tokens)
            raise

    def _of(self, caller: Caller) -> _Allowance:
        """Return its buckets, made anew when its limits have changed."""
        allowance = self._by_name.get(caller.name)
        if allowance is None or allowance.limits != caller.limits:
            allowance = self._by_name[caller.name] = _Allowance(caller.limits, self._clock)
        return allowance


_UNKNOWN_STAY_S = 1.0  # before any call has ended
_STAY_MEMORY = 32  # calls after which a past one counts e times less
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 10.0


class ConcurrencyLimiter:
    """Counts the RPCs being answered; refuses new ones while closed or full.

    `grpc.aio`'s own `maximum_concurrent_rpcs` would let callers wait without an answer.
    """

    def __init__(self, *, max_concurrent: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed, because the models are not loaded yet."""
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._mean_stay_s: float | None = None
        self._refusal: DragomanError | None = StartingError()
        self._num_open = 0
        self._is_closed = asyncio.Event()
        self._is_closed.set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def open(self) -> None:
        """Admit RPCs from now on."""
        self._refusal = None
        self._is_closed.clear()

    def close(self, refusal: DragomanError) -> None:
        """Refuse new RPCs with this error; those inside go on."""
        self._refusal = refusal
        self._is_closed.set()

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Hold a place while an RPC is answered.

        Raises:
            OverloadedError: if every place is taken; to come back after the time that calls take of late, within
                sensible limits: by then the places have changed hands.
            DragomanError: the refusal, if closed.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._num_open >= self._max_concurrent:
            raise OverloadedError(
                queued=self._num_open, limit=self._max_concurrent, unit="requests", retry_after_s=self._retry_after_s()
            )
        began_s = self._clock()
        self._num_open += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_open -= 1
            self._learn_stay(self._clock() - began_s)
            if self._num_open == 0:
                self._is_idle.set()

    async def wait_until_idle(self) -> None:
        """Return once no RPC is being answered."""
        await self._is_idle.wait()

    async def wait_until_closed(self) -> DragomanError:
        """Return the refusal once new RPCs are refused."""
        while self._refusal is None:
            await self._is_closed.wait()
        return self._refusal

    def _learn_stay(self, stay_s: float) -> None:
        if self._mean_stay_s is None:
            self._mean_stay_s = stay_s
        else:
            self._mean_stay_s += (stay_s - self._mean_stay_s) / _STAY_MEMORY

    def _retry_after_s(self) -> float:
        stay_s = _UNKNOWN_STAY_S if self._mean_stay_s is None else self._mean_stay_s
        return min(max(stay_s, _MIN_RETRY_S), _MAX_RETRY_S)
