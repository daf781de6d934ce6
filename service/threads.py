"""How many cores there are for this process."""

import math
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

_CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Of this process, where it runs in a container."""


def num_cores(*, control_group: Path = _CONTROL_GROUP) -> int:
    """Return how many cores this process can keep busy: those it may run on, or fewer if its container has a quota.

    Part of a core counts as a whole one: a thread too many waits, one too few leaves time unused.

    Args:
        control_group: where the kernel tells the quota, as `cpu.max` (version 2) or `cpu/cpu.cfs_*_us` (version 1).
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _quota_cores(control_group))))


def _quota_cores(control_group: Path) -> float:
    """Return the cores' time that may be used a second; infinite without a quota, or where the kernel tells none."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((control_group / name).read_text() for name in names).split()
            if quota not in {"max", "-1"}:
                return int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return math.inf


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


_LOWEST: Final = 19


def lower_priority(niceness: int) -> None:
    """Let other threads run before the calling one, by so many steps of niceness; only Linux can, elsewhere nothing is.

    Decoding keeps every core busy. At the same priority, the thread that takes and refuses calls waits for its turn
    behind it, several times for each call, and under overload even refusals come late.
    """
    if sys.platform != "linux":
        return
    thread_id = threading.get_native_id()
    current = os.getpriority(os.PRIO_PROCESS, thread_id)  # the thread's own: Linux schedules threads, not processes
    os.setpriority(os.PRIO_PROCESS, thread_id, min(current + niceness, _LOWEST))


def started_pool(num_threads: int, *, name: str) -> ThreadPoolExecutor:
    """Return a pool all of whose threads run already.

    A pool by itself starts a thread when work comes and none is idle, so how many there are depends on how calls
    happened to fall: a thread that leaks cannot be told from one more of the pool, and where threads are limited a
    server fails at its busiest moment instead of at its start.

    Args:
        num_threads: in it.
        name: how their names begin.

    Raises:
        RuntimeError: if the system starts no more threads.
    """
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
    together = threading.Barrier(num_threads)  # nobody is idle until all are there
    try:
        arrivals = [pool.submit(together.wait) for _ in range(num_threads)]
    except RuntimeError:
        together.abort()
        pool.shutdown()
        raise
    wait(arrivals)
    return pool
