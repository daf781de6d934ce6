"""Threads: core count, pools, priorities and the switch interval of the interpreter."""

import asyncio
import ctypes
import logging
import math
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")  # one line for each hierarchy: number, controllers, path


def num_cores(*, root: Path = _CONTROL_GROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Return the number of cores that this process can use: its CPU affinity, or the quota of its control groups.

    A fraction of a core counts only below one core: a thread on it would be throttled most of the time. A quota is in
    `cpu.max` (cgroup version 2) or `cpu.cfs_*_us` (version 1).
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = map(_quota_cores, control_groups("cpu", root=root, membership=membership))
    return max(1, math.floor(min(cores, *quotas, math.inf)))


def control_groups(controller: str, *, root: Path = _CONTROL_GROUPS, membership: Path = _MEMBERSHIP) -> Iterator[Path]:
    """Yield the directories of a controller whose limits apply to this process: of its own group and all parents.

    Some of them do not exist in a container, where the root is the group of the container.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = ["0::/", f"1:{controller}:/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2, or both versions
            mounts = [root, root / "unified"]
        elif controller in controllers.split(","):
            mounts = [root / controller]
        else:
            continue
        group = Path(path.lstrip("/"))
        yield from (mount / parent for mount in mounts for parent in (group, *group.parents))


def _quota_cores(group: Path) -> float:
    # Returns CPU seconds per second; infinite without a readable quota.
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((group / name).read_text() for name in names).split()
            if quota not in {"max", "-1"}:
                return int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return math.inf


NORMAL_INTERVAL_S: Final = 0.0002
"""Switch interval in normal operation. A decoding thread takes the interpreter lock after each run of the network,
hundreds of times per second, and may wait for one interval each time: at 2 ms, cores are idle while requests wait."""

OVERLOAD_INTERVAL_S: Final = 0.002
"""Switch interval under overload: rejecting calls needs the lock most of the time and must not wait for decoding."""

_OVERLOAD_DURATION_S: Final = 1.0


class SwitchInterval:
    """Switch interval of the process. Thread-safe."""

    def __init__(self, set_interval: Callable[[float], None] = sys.setswitchinterval) -> None:
        self._set = set_interval
        self._lock = threading.Lock()
        self._chosen_s = 0.0
        self.is_normal = False  # until the first admission, and under overload
        self._rejected_at_s = float("-inf")

    def record_rejection(self, now_s: float) -> None:
        """Record a request that was rejected because of overload."""
        with self._lock:
            self._rejected_at_s = max(self._rejected_at_s, now_s)
            self._choose(OVERLOAD_INTERVAL_S)

    def record_admission(self, now_s: float) -> None:
        """Record an admitted request."""
        with self._lock:
            if now_s - self._rejected_at_s > _OVERLOAD_DURATION_S:
                self._choose(NORMAL_INTERVAL_S)

    def _choose(self, interval_s: float) -> None:
        if interval_s != self._chosen_s:
            self._chosen_s, self.is_normal = interval_s, interval_s == NORMAL_INTERVAL_S
            self._set(interval_s)


_LOWEST: Final = 19

_SHORT_SLICE_NS: Final = 100_000  # the minimum of Linux

# Numbers of the system calls sched_setattr and sched_getattr; Python and glibc before 2.41 have no functions for them.
_SLICE_CALLS: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}

# struct sched_attr: size, policy, flags, niceness, priority; runtime, deadline and period in nanoseconds.
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")


def lower_priority(niceness: int) -> None:
    """Raise the niceness of the calling thread (Linux only) and undo `shorten_slices` for it.

    Decoding keeps every core busy. At equal priority, the thread that answers requests waits for a core several times
    per request, and under overload even rejections are late.
    """
    if sys.platform != "linux":
        return
    _set_slice(0)
    thread_id = threading.get_native_id()
    current = os.getpriority(os.PRIO_PROCESS, thread_id)  # the thread's own: Linux schedules threads, not processes
    os.setpriority(os.PRIO_PROCESS, thread_id, min(current + niceness, _LOWEST))


def shorten_slices() -> bool:
    """Request short time slices for the calling thread and the threads that it starts.

    Since 6.12, Linux runs a waking thread at once if its time slice is shorter than that of the running thread and it
    has not used more than its share (https://docs.kernel.org/scheduler/sched-eevdf.html). No privilege is required.
    With other busy processes on the same cores, decoding reaches 4,273 tokens/s with short slices, and 340 tokens/s
    with a lower priority instead (docs/benchmarks/archive.md).

    Returns False if the system does not support it; then nothing has changed.
    """
    return sys.platform == "linux" and _set_slice(_SHORT_SLICE_NS) and slice_ns() == _SHORT_SLICE_NS


def slice_ns(thread_id: int = 0) -> int:
    """Return the time slice of a thread, by default the calling one, in nanoseconds; 0 if it is unknown."""
    attributes = ctypes.create_string_buffer(_ATTRIBUTES.size)
    return int(_ATTRIBUTES.unpack(attributes.raw)[5]) if _call(1, thread_id, attributes, _ATTRIBUTES.size) else 0


def _set_slice(duration_ns: int) -> bool:
    # Sets the slice of the calling thread (0: the default of the system); returns whether the call succeeded. Threads
    # with a real-time policy have no such slices and are not changed.
    policy = os.sched_getscheduler(0)
    if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        return False
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    return _call(0, 0, _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, niceness, 0, duration_ns, 0, 0))


def _call(number: int, *arguments: object) -> bool:
    calls = _SLICE_CALLS.get(platform.machine()) if sys.maxsize > 1 << 32 else None  # numbers of 64-bit programs
    return calls is not None and ctypes.CDLL(None).syscall(calls[number], *arguments, 0) == 0


class _UnawaitedPool(ThreadPoolExecutor):
    """A pool whose shutdown waits for no thread."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        super().shutdown(wait=False, cancel_futures=cancel_futures)


def started_pool(num_threads: int, *, name: str, is_awaited: bool = True) -> ThreadPoolExecutor:
    """Return a pool whose threads are all running; RuntimeError if the system refuses to start a thread.

    By default a pool starts threads on demand. Then a leaked thread looks like a new thread of the pool, and a server
    with limited threads fails under load instead of at start-up.

    `name` is the prefix of the thread names. Without `is_awaited`, `shutdown` does not wait for the threads:
    `asyncio.run` waits for those of its default executor and does not return if one of them is stuck.
    """
    pool = (ThreadPoolExecutor if is_awaited else _UnawaitedPool)(num_threads, thread_name_prefix=name)
    together = threading.Barrier(num_threads)  # keeps every thread busy until all are running
    try:
        arrivals = [pool.submit(together.wait) for _ in range(num_threads)]
    except RuntimeError:
        together.abort()
        pool.shutdown()
        raise
    wait(arrivals)
    return pool


class TextThreads:
    """Runs text work in the thread pool of the event loop, one call at a time for each caller.

    So callers with much text share the pool, and cancelling and repeating a call gains nothing.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, caller: str, work: Callable[[], _Result], *, cancel: Callable[[], None]) -> _Result:
        """Return the result of `work`. `cancel` is called if the awaiting task is cancelled; it must end the work."""
        lock = self._locks.setdefault(caller, asyncio.Lock())
        await lock.acquire()
        running = asyncio.ensure_future(asyncio.to_thread(work))

        def end(_: object) -> None:
            lock.release()
            if not running.cancelled():
                running.exception()  # marks the exception as retrieved, even if nothing awaits it

        running.add_done_callback(end)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancel()
            raise


def exit_after(timeout_s: float, exit_code: int) -> None:
    """End the process after a time, even if threads are still running.

    At exit Python waits for every thread that is not a daemon. Child processes that read from this one see end of file.
    """

    def end() -> None:
        names = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
        log.error("threads did not end in time", extra={"timeout_s": timeout_s, "threads": names})
        os._exit(exit_code)

    timer = threading.Timer(timeout_s, end)
    timer.name, timer.daemon = "exit", True
    timer.start()


async def call_in_daemon(function: Callable[[], None], *, name: str) -> None:
    """Call a function in a daemon thread, which blocks neither the event loop nor the exit of the process."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()  # cancelling the waiter does not cancel the call

    def call() -> None:
        try:
            future.set_result(function())  # type: ignore[func-returns-value]
        except BaseException as error:  # noqa: BLE001 - raised in the waiter
            future.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    await asyncio.wrap_future(future)


def retrieve_exception(task: "asyncio.Future[Any]") -> None:
    """Done callback that keeps asyncio from logging the exception of a task that nothing awaits."""
    if not task.cancelled():
        task.exception()
