"""The machine of a measurement: processor, instruction sets, versions, date."""

import datetime as dt
import math
import os
import platform
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

_CPU_INFO = Path("/proc/cpuinfo")
_CONTROL_GROUP = Path("/sys/fs/cgroup")
_OTHER_SYSTEMS = ("ctranslate2", "transformers", "torch", "sacrebleu")
_PACKAGES = ("dragoman", "onnxruntime", "onnxruntime-gpu", "numpy", "grpcio", "locust", *_OTHER_SYSTEMS)
_INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def describe_machine() -> dict[str, Any]:
    """Return JSON-ready values."""
    first = _CPU_INFO.read_text(encoding="ascii", errors="replace").partition("\n\n")[0] if _CPU_INFO.exists() else ""
    info = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    flags = set(info.get("flags", "").split())
    return {
        "cpu": info.get("model name", platform.processor() or platform.machine()),
        "cores": num_cores(),
        "instruction_sets": [name for name in _INSTRUCTION_SETS if name in flags],
        "python": platform.python_version(),
        "versions": {name: next((one.version for one in distributions(name=name)), None) for name in _PACKAGES},
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def num_cores(*, control_group: Path = _CONTROL_GROUP) -> int:
    """Return the number of usable cores: the affinity mask, or the CPU quota of the container if it is lower."""
    cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((control_group / name).read_text() for name in names).split()
            if quota not in {"max", "-1"}:
                cores = min(cores, int(quota) / int(period))
                break
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return max(1, math.ceil(cores))
