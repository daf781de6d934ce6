"""When the next call is made: evenly, and never faster to make up for what was missed."""

import threading
import time
from collections.abc import Callable


class Pace:
    """Hands out the times of calls; any thread may ask."""

    def __init__(self, rate_per_s: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow so many calls a second; None: as fast as they are answered."""
        self._gap_s = 0.0 if rate_per_s is None else 1.0 / rate_per_s
        self._clock = clock
        self._next_s = clock()
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """Return how long to wait with the next call."""
        with self._lock:
            now_s = self._clock()
            at_s = max(self._next_s, now_s)  # what was missed is not made up for: the load is to be constant
            self._next_s = at_s + self._gap_s
            return at_s - now_s
