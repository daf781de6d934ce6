"""How long one thread may keep Python's lock while another wants it: short as a rule, long under overload."""

import sys
import threading
from collections.abc import Callable
from typing import Final

CALM_S: Final = 0.0002
"""A decoding thread wants the lock back after each run of the network, several hundred times a second, and may have to
wait as long each time for the thread that answers calls: at 2 ms, cores idle while calls queue."""

OVERLOADED_S: Final = 0.002
"""Refusing what cannot be done takes more of the lock than anything else, and must not wait for decoding each time."""

_OVERLOAD_LASTS_S: Final = 1.0


class SwitchInterval:
    """Sets the interval of the whole process; safe to share between threads."""

    def __init__(self, set_interval: Callable[[float], None] = sys.setswitchinterval) -> None:
        """Leave the interval as it is until it is told of a request."""
        self._set = set_interval
        self._lock = threading.Lock()
        self._chosen_s = 0.0
        self._refused_at_s = float("-inf")

    def note_refusal(self, now_s: float) -> None:
        """Take notice of a request that was refused for load."""
        with self._lock:
            self._refused_at_s = max(self._refused_at_s, now_s)
            self._choose(OVERLOADED_S)

    def note_admission(self, now_s: float) -> None:
        """Take notice of a request that was admitted."""
        with self._lock:
            if now_s - self._refused_at_s > _OVERLOAD_LASTS_S:
                self._choose(CALM_S)

    def _choose(self, interval_s: float) -> None:
        if interval_s != self._chosen_s:
            self._chosen_s = interval_s
            self._set(interval_s)
