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

has_quotas = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux has quotas")
has_priorities = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})


@has_quotas
@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("line", "expected"),
    [("max 100000", 4), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("9900000 100000", 4)],
)
def test_a_quota_of_version_2_is_a_limit(tmp_path: Path, line: str, expected: int) -> None:
    (tmp_path / "cpu.max").write_text(f"{line}\n")

    assert num_cores(control_group=tmp_path) == expected


@has_quotas
@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(("quota", "expected"), [("-1", 4), ("200000", 2), ("50000", 1)])
def test_a_quota_of_version_1_is_a_limit(tmp_path: Path, quota: str, expected: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")

    assert num_cores(control_group=tmp_path) == expected


@has_quotas
@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("content", [None, "", "none at all here", "0 0"])
def test_where_the_kernel_tells_no_quota_every_core_counts(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "cpu.max").write_text(content)

    assert num_cores(control_group=tmp_path) == 4


def test_the_switch_interval_is_short_while_all_requests_are_admitted() -> None:
    chosen: list[float] = []
    interval = SwitchInterval(chosen.append)

    interval.record_admission(1.0)
    interval.record_admission(2.0)

    assert chosen == [NORMAL_INTERVAL_S]


def test_a_rejection_makes_the_switch_interval_long_for_a_second() -> None:
    chosen: list[float] = []
    interval = SwitchInterval(chosen.append)

    interval.record_rejection(10.0)
    interval.record_admission(10.5)
    interval.record_rejection(10.9)
    interval.record_admission(11.5)
    assert chosen == [OVERLOAD_INTERVAL_S]

    interval.record_admission(12.0)
    assert chosen == [OVERLOAD_INTERVAL_S, NORMAL_INTERVAL_S]


def test_an_older_rejection_does_not_end_the_long_interval_earlier() -> None:
    chosen: list[float] = []
    interval = SwitchInterval(chosen.append)

    interval.record_rejection(10.0)
    interval.record_rejection(9.0)
    interval.record_admission(10.9)

    assert chosen == [OVERLOAD_INTERVAL_S]


def running(name: str = NAME) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


@pytest.mark.parametrize("number", [1, 5])
def test_all_threads_of_a_pool_run_before_there_is_work_and_no_work_adds_one(number: int) -> None:
    with started_pool(number, name=NAME) as pool:
        assert running() == number

        assert list(pool.map(lambda x: x + 1, range(100))) == list(range(1, 101))
        assert running() == number
    assert running() == 0


def test_a_system_that_starts_no_more_threads_is_an_error_and_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = ThreadPoolExecutor.submit

    def submit_twice(pool: ThreadPoolExecutor, *work: Any) -> Any:
        if running() == 2:
            raise RuntimeError("can't start new thread")
        return submit(pool, *work)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_twice)

    with pytest.raises(RuntimeError, match="can't start"):
        started_pool(3, name=NAME)

    assert running() == 0


def priority_after(*niceness: int) -> int:
    """Priority of a thread of its own, once it has been lowered."""

    def lowered() -> int:
        for steps in niceness:
            lower_priority(steps)
        return own_priority()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lowered).result()


def own_priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@has_priorities
def test_a_thread_is_lowered_by_so_many_steps_and_no_other_with_it() -> None:
    before = own_priority()

    assert priority_after(3) == min(before + 3, 19)
    assert own_priority() == before


@has_priorities
def test_the_lowest_priority_is_not_passed() -> None:
    assert priority_after(15, 15) == 19


@has_priorities
def test_no_steps_change_nothing() -> None:
    assert priority_after(0) == own_priority()


def in_new_thread(call: Callable[[], Any]) -> Any:
    """What a call in a thread of its own returns."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def has_short_slices() -> bool:
    return bool(in_new_thread(shorten_slices))


def test_short_slices_are_inherited_by_threads_and_end_with_a_lower_priority() -> None:
    usual = in_new_thread(slice_ns)

    def slices() -> list[int]:
        niceness = own_priority()
        assert shorten_slices()
        assert own_priority() == niceness
        own = slice_ns(), in_new_thread(slice_ns)
        lower_priority(0)
        return [*own, slice_ns()]

    if not has_short_slices():
        pytest.skip("Linux lets threads have slices of their own from 6.12 on")
    assert in_new_thread(slices) == [100_000, 100_000, usual]
    assert in_new_thread(slice_ns) == usual  # of no other thread


@pytest.mark.parametrize(
    "system",
    [
        pytest.param({"platform.machine": lambda: "riscv"}, id="numbers-unknown"),
        pytest.param({"sys.platform": "darwin"}, id="not-linux"),
        pytest.param({"sys.maxsize": (1 << 31) - 1}, id="32-bits"),
        pytest.param({"os.sched_getscheduler": lambda _: 1}, id="real-time"),
        pytest.param({"ctypes.CDLL": lambda _: SimpleNamespace(syscall=lambda *_: -1)}, id="refused"),
        pytest.param({"ctypes.CDLL": lambda _: SimpleNamespace(syscall=lambda *_: 0)}, id="accepted-and-ignored"),
    ],
)
def test_where_there_are_no_slices_nothing_changes(system: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    usual = in_new_thread(slice_ns)
    with monkeypatch.context() as patched:
        for name, value in system.items():
            patched.setattr(f"dragoman_service.threads.{name}", value)
        assert in_new_thread(shorten_slices) is False
    assert in_new_thread(slice_ns) == usual
