"""Threads of the process: cores, pools, priorities, and the interval at which Python switches between them."""

import asyncio
import ctypes
import logging
import math
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

_CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Of this process, where it runs in a container."""


def num_cores(*, control_group: Path = _CONTROL_GROUP) -> int:
    """Return how many cores this process can use: those it may run on, or fewer if its container has a quota.

    A part of a core counts as one: a thread too many waits, a thread too few leaves CPU time unused. The quota is
    `cpu.max` (version 2) or `cpu/cpu.cfs_*_us` (version 1) of the control group.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _quota_cores(control_group))))


def _quota_cores(control_group: Path) -> float:
    """Return the CPU time that may be used a second; infinite without a quota, or if there is none to be read."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((control_group / name).read_text() for name in names).split()
            if quota not in {"max", "-1"}:
                return int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return math.inf


NORMAL_INTERVAL_S: Final = 0.0002
"""A decoding thread takes the interpreter lock after each run of the network, several hundred times a second, and may
wait for one interval each time while calls are answered: at 2 ms, cores are idle while calls queue."""

OVERLOAD_INTERVAL_S: Final = 0.002
"""Under overload, rejecting calls needs the lock most of the time, and must not wait for decoding each time."""

_OVERLOAD_DURATION_S: Final = 1.0


class SwitchInterval:
    """Sets the switch interval of the process; any thread may use it."""

    def __init__(self, set_interval: Callable[[float], None] = sys.setswitchinterval) -> None:
        """Leave the interval as it is until the first request."""
        self._set = set_interval
        self._lock = threading.Lock()
        self._chosen_s = 0.0
        self._refused_at_s = float("-inf")

    def record_rejection(self, now_s: float) -> None:
        """Note a request that was rejected for overload."""
        with self._lock:
            self._refused_at_s = max(self._refused_at_s, now_s)
            self._choose(OVERLOAD_INTERVAL_S)

    def record_admission(self, now_s: float) -> None:
        """Note a request that was admitted."""
        with self._lock:
            if now_s - self._refused_at_s > _OVERLOAD_DURATION_S:
                self._choose(NORMAL_INTERVAL_S)

    def _choose(self, interval_s: float) -> None:
        if interval_s != self._chosen_s:
            self._chosen_s = interval_s
            self._set(interval_s)


_LOWEST: Final = 19

_SHORT_SLICE_NS: Final = 100_000
"""The shortest that Linux gives."""

_SLICE_CALLS: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Numbers of the system calls sched_setattr and sched_getattr, which glibc has no functions for before 2.41."""

_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""struct sched_attr: size, policy, flags, niceness, priority; runtime, deadline and period in nanoseconds."""


def lower_priority(niceness: int) -> None:
    """Raise the niceness of the calling thread, so that others run before it; does nothing except on Linux.

    Decoding keeps every core busy. At the same priority, the thread that answers calls waits for a core several times
    for each call, and under overload even rejections are late. What `shorten_slices` did for the thread ends.
    """
    if sys.platform != "linux":
        return
    _set_slice(0)
    thread_id = threading.get_native_id()
    current = os.getpriority(os.PRIO_PROCESS, thread_id)  # the thread's own: Linux schedules threads, not processes
    os.setpriority(os.PRIO_PROCESS, thread_id, min(current + niceness, _LOWEST))


def shorten_slices() -> bool:
    """Let the calling thread, and those that it starts, run at once when they wake up, in return for shorter turns.

    Linux does so from 6.12 on for a thread with a shorter time slice than the one that has the core, unless it has run
    for more than its share (https://docs.kernel.org/scheduler/sched-eevdf.html). No right is needed for it.

    Returns:
        False where the system has no slices of threads, or does not let a process choose them: nothing has changed.
    """
    return sys.platform == "linux" and _set_slice(_SHORT_SLICE_NS) and slice_ns() == _SHORT_SLICE_NS


def slice_ns(thread_id: int = 0) -> int:
    """Return the time slice of a thread, by default the calling one, in nanoseconds; 0 if it cannot be known."""
    attributes = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if not _call(1, thread_id, attributes, _ATTRIBUTES.size):
        return 0
    slice_: int = _ATTRIBUTES.unpack(attributes.raw)[5]
    return slice_


def _set_slice(duration_ns: int) -> bool:
    """Set the slice of the calling thread, 0: what threads usually have; say whether the system knows the call.

    A thread with a policy without such slices, as real-time ones are, stays as it is.
    """
    policy = os.sched_getscheduler(0)
    if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        return False
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    return _call(0, 0, _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, niceness, 0, duration_ns, 0, 0))


def _call(number: int, *arguments: object) -> bool:
    """Make one of the two calls, and say whether it succeeded."""
    calls = _SLICE_CALLS.get(platform.machine()) if sys.maxsize > 1 << 32 else None  # numbers of 64-bit programs
    return calls is not None and ctypes.CDLL(None).syscall(calls[number], *arguments, 0) == 0


class _UnawaitedPool(ThreadPoolExecutor):
    """A pool whose shutdown waits for no thread."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """End idle threads, and busy ones after their work, without waiting for them."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)


def started_pool(num_threads: int, *, name: str, is_awaited: bool = True) -> ThreadPoolExecutor:
    """Return a pool with all of its threads running; RuntimeError if the system starts no more threads.

    By default a pool starts a thread when work arrives and none is idle: a leaked thread cannot be told from one more
    of the pool, and where threads are limited a server fails under load instead of at its start.

    Args:
        num_threads: of the pool.
        name: that the names of the threads begin with.
        is_awaited: whether `shutdown` can wait for the threads. `asyncio.run` waits for those of its default executor;
            if one of them is stuck, it does not return.
    """
    pool = (ThreadPoolExecutor if is_awaited else _UnawaitedPool)(num_threads, thread_name_prefix=name)
    together = threading.Barrier(num_threads)  # no thread is idle until all are running
    try:
        arrivals = [pool.submit(together.wait) for _ in range(num_threads)]
    except RuntimeError:
        together.abort()
        pool.shutdown()
        raise
    wait(arrivals)
    return pool


def exit_after(timeout_s: float, exit_code: int) -> None:
    """End the process after a time unless it has ended by then, whatever its threads do.

    Python waits at its exit for every thread that is no daemon. Child processes that read from this one see its end.
    """

    def end() -> None:
        names = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
        log.error("threads did not end in time", extra={"timeout_s": timeout_s, "threads": names})
        os._exit(exit_code)

    timer = threading.Timer(timeout_s, end)
    timer.name, timer.daemon = "exit", True
    timer.start()


async def call_in_daemon(function: Callable[[], None], *, name: str) -> None:
    """Call a function in a thread for which neither the end of the event loop nor that of the process waits."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()  # who stops waiting leaves it as it is

    def call() -> None:
        try:
            future.set_result(function())  # type: ignore[func-returns-value]
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    await asyncio.wrap_future(future)


def retrieve_exception(task: "asyncio.Future[Any]") -> None:
    """Done callback that keeps asyncio from logging the exception of a task that nothing awaits."""
    if not task.cancelled():
        task.exception()
