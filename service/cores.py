"""How many cores there are for this process."""

import math
import os
from pathlib import Path

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
