"""What the decoding process itself takes."""

import threading
import time
from collections.abc import Callable


class Usage:
    """CPU time and caches of this process; any thread may ask."""

    def __init__(self, cache_bytes: Callable[[], int], cpu_clock: Callable[[], float] = time.process_time) -> None:
        """Begin with the CPU time taken so far as not yet told."""
        self.cache_bytes = cache_bytes
        """Tells the bytes of all caches."""
        self._cpu_clock = cpu_clock
        self._lock = threading.Lock()
        self._told_s = 0.0

    def untold_cpu_s(self) -> float:
        """Return the CPU time since this was asked last, in seconds."""
        with self._lock:
            told_s, self._told_s = self._told_s, self._cpu_clock()
            return self._told_s - told_s
