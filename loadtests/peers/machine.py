"""What a figure depends on besides the code: processor, instruction sets, versions, date."""

import datetime as dt
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from service.cores import num_cores

_CPU_INFO = Path("/proc/cpuinfo")
_PACKAGES = ("dragoman", "onnxruntime", "numpy", "ctranslate2", "transformers", "torch", "sacrebleu")
_INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def describe_machine() -> dict[str, Any]:
    """Return the facts as JSON-ready values."""
    info = _cpu_info()
    flags = set(info.get("flags", "").split())
    return {
        "cpu": info.get("model name", platform.processor() or platform.machine()),
        "cores": num_cores(),
        "instruction_sets": [name for name in _INSTRUCTION_SETS if name in flags],
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def _cpu_info() -> dict[str, str]:
    """Return the first processor's fields; empty where the system does not tell."""
    try:
        first = _CPU_INFO.read_text(encoding="ascii", errors="replace").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
