"""How much may be taken in a time, with bursts."""

import time
from collections.abc import Callable


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
