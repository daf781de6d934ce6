"""Rate limits of callers."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dragoman_service.errors import RateLimitedError
from dragoman_service.security.api_keys import Caller

_REQUESTS_PER_S, _TOKENS_PER_MIN, _DECODE_COST_PER_MIN = "requests/s", "source tokens/min", "decode cost/min"
_PERIODS_S = {_REQUESTS_PER_S: 1.0, _TOKENS_PER_MIN: 60.0, _DECODE_COST_PER_MIN: 60.0}


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

    def take_request(self, caller: str, requests_per_s: float) -> tuple[Charge, ...]:
        """Charge one request and return the charges; RateLimitedError if the bucket is empty."""
        return self._take(Charge(caller=caller, unit=_REQUESTS_PER_S, limit=requests_per_s, amount=1))

    def take_tokens(
        self, caller: str, limits: Caller | None, num_tokens: int, *, decode_cost: Callable[[], int] | None = None
    ) -> tuple[Charge, ...]:
        """Charge source tokens and decode cost, both or none, and return the charges; RateLimitedError if too many.

        `decode_cost` is called only if the decode cost is limited, because computing it takes time. A caller without
        an entry in the callers file has no quotas. If its entry was removed, requests in progress keep the previous
        quotas.
        """
        tokens_per_min = limits.tokens_per_min if limits else self._known_limit(caller, _TOKENS_PER_MIN)
        decode_cost_per_min = limits.decode_cost_per_min if limits else self._known_limit(caller, _DECODE_COST_PER_MIN)
        charges = []
        if tokens_per_min is not None:
            charges.append(Charge(caller=caller, unit=_TOKENS_PER_MIN, limit=tokens_per_min, amount=num_tokens))
        if decode_cost_per_min is not None and decode_cost is not None and (amount := decode_cost()):
            unit = _DECODE_COST_PER_MIN
            charges.append(Charge(caller=caller, unit=unit, limit=decode_cost_per_min, amount=amount))
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
