import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman_service.threads import (
    NORMAL_INTERVAL_S,
    OVERLOAD_INTERVAL_S,
    SwitchInterval,
    lower_priority,
    num_cores,
    shorten_slices,
    slice_ns,
    started_pool,
)

NAME = "tests-pool"


VERSION_2 = "0::{path}\n"
VERSION_1 = "4:memory:/other\n3:cpuset:/\n2:cpu,cpuacct:{path}\n0::/\n"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux has quotas")
@pytest.mark.parametrize(
    ("membership", "path", "files", "expected"),
    [
        (VERSION_2, "/", {"cpu.max": "max 100000\n"}, 4),
        (VERSION_2, "/", {"cpu.max": "200000 100000\n"}, 2),
        (VERSION_2, "/", {"cpu.max": "150000 100000\n"}, 1),
        (VERSION_2, "/", {"cpu.max": "50000 100000\n"}, 1),
        (VERSION_2, "/", {"cpu.max": "1000 100000\n"}, 1),
        (VERSION_2, "/", {"cpu.max": "9900000 100000\n"}, 4),
        (VERSION_2, "/", {}, 4),
        (VERSION_2, "/", {"cpu.max": ""}, 4),
        (VERSION_2, "/", {"cpu.max": "not a quota"}, 4),
        (VERSION_2, "/", {"cpu.max": "0 0"}, 4),
        (VERSION_2, "/a.slice/b.service", {"a.slice/b.service/cpu.max": "200000 100000"}, 2),
        (VERSION_2, "/a.slice/b.service", {"a.slice/b.service/cpu.max": "max 100000", "a.slice/cpu.max": "1 1"}, 1),
        (VERSION_2, "/a.slice/b.service", {"a.slice/b.service/cpu.max": "3 1", "a.slice/cpu.max": "2 1"}, 2),
        (VERSION_2, "/a.slice/b.service", {"a.slice/c.service/cpu.max": "1 1"}, 4),  # a neighbour
        (VERSION_2, "/../b.service", {"cpu.max": "2 1"}, 2),  # a process that another one moved into the container
        (VERSION_2, "/docker/1f2e", {"cpu.max": "2 1"}, 2),  # a container without a namespace of control groups
        (VERSION_1, "/", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        (VERSION_1, "/", {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        (VERSION_1, "/", {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        (VERSION_1, "/a/b", {"cpu/a/cpu.cfs_quota_us": "2\n", "cpu/a/cpu.cfs_period_us": "1\n"}, 2),
        (VERSION_1, "/docker/1f2e", {"cpu/cpu.cfs_quota_us": "2\n", "cpu/cpu.cfs_period_us": "1\n"}, 2),
        (VERSION_1 + "0::/", "/", {"unified/cpu.max": "2 1"}, 2),  # both versions
        (None, "", {"cpu.max": "2 1"}, 2),
        (None, "", {"cpu/cpu.cfs_quota_us": "2\n", "cpu/cpu.cfs_period_us": "1\n"}, 2),
    ],
)
def test_number_of_cores_is_limited_by_the_quotas_of_the_control_groups(
    membership: str | None,
    path: str,
    files: dict[str, str],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    root, own = tmp_path / "cgroup", tmp_path / "membership"
    if membership is not None:
        own.write_text(membership.format(path=path))
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)

    assert num_cores(root=root, membership=own) == expected


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([("admission", 1.0), ("admission", 2.0)], [NORMAL_INTERVAL_S]),
        (
            [("rejection", 10.0), ("admission", 10.5), ("rejection", 10.9), ("admission", 11.5)],
            [OVERLOAD_INTERVAL_S],
        ),
        ([("rejection", 10.9), ("admission", 12.0)], [OVERLOAD_INTERVAL_S, NORMAL_INTERVAL_S]),
        ([("rejection", 10.0), ("rejection", 9.0), ("admission", 10.9)], [OVERLOAD_INTERVAL_S]),
    ],
)
def test_switch_interval_is_long_for_a_second_after_the_last_rejection(
    events: list[tuple[str, float]], expected: list[float]
) -> None:
    chosen: list[float] = []
    interval = SwitchInterval(chosen.append)

    for event, now_s in events:
        (interval.record_rejection if event == "rejection" else interval.record_admission)(now_s)
        assert interval.is_normal == (chosen[-1:] == [NORMAL_INTERVAL_S])

    assert chosen == expected


def num_running() -> int:
    return sum(thread.name.startswith(NAME) for thread in threading.enumerate())


@pytest.mark.parametrize("number", [1, 5])
def test_all_threads_of_a_pool_run_from_the_start(number: int) -> None:
    with started_pool(number, name=NAME) as pool:
        assert num_running() == number

        assert list(pool.map(lambda x: x + 1, range(100))) == list(range(1, 101))
        assert num_running() == number
    assert num_running() == 0


def test_pool_whose_threads_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = ThreadPoolExecutor.submit

    def submit_twice(pool: ThreadPoolExecutor, *work: Any) -> Any:
        if num_running() == 2:
            raise RuntimeError("can't start new thread")
        return submit(pool, *work)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_twice)

    with pytest.raises(RuntimeError, match="can't start"):
        started_pool(3, name=NAME)

    assert num_running() == 0


def in_new_thread(call: Callable[[], Any]) -> Any:
    """Return the result of a call in a new thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def own_priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
@pytest.mark.parametrize("steps", [(3,), (15, 15), (0,)])
def test_priority_of_only_the_calling_thread_is_lowered(steps: tuple[int, ...]) -> None:
    before = own_priority()

    def lowered() -> int:
        for niceness in steps:
            lower_priority(niceness)
        return own_priority()

    assert in_new_thread(lowered) == min(before + sum(steps), 19)
    assert own_priority() == before


def test_short_slices_are_inherited_by_threads_and_end_with_a_lower_priority() -> None:
    usual = in_new_thread(slice_ns)

    def slices() -> list[int]:
        niceness = own_priority()
        assert shorten_slices()
        assert own_priority() == niceness
        own = slice_ns(), in_new_thread(slice_ns)
        lower_priority(0)
        return [*own, slice_ns()]

    if not in_new_thread(shorten_slices):
        pytest.skip("threads have their own time slices since Linux 6.12")
    assert in_new_thread(slices) == [100_000, 100_000, usual]
    assert in_new_thread(slice_ns) == usual  # other threads are not changed


@pytest.mark.parametrize(
    "system",
    [
        pytest.param({"platform.machine": lambda: "riscv"}, id="numbers-unknown"),
        pytest.param({"sys.platform": "darwin"}, id="not-linux"),
        pytest.param({"sys.maxsize": (1 << 31) - 1}, id="32-bits"),
        pytest.param({"os.sched_getscheduler": lambda _: 1}, id="real-time"),
        pytest.param({"ctypes.CDLL": lambda _: SimpleNamespace(syscall=lambda *_: -1)}, id="rejected"),
        pytest.param({"ctypes.CDLL": lambda _: SimpleNamespace(syscall=lambda *_: 0)}, id="accepted-and-ignored"),
    ],
)
def test_system_without_time_slices_of_threads_is_not_changed(
    system: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = in_new_thread(slice_ns)
    with monkeypatch.context() as patched:
        for name, value in system.items():
            patched.setattr(f"dragoman_service.threads.{name}", value)
        assert in_new_thread(shorten_slices) is False
    assert in_new_thread(slice_ns) == usual
