"""Which device runs a network and at which precision, by settings, machine and bundle."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnxruntime

from service.errors import ConfigError
from service.runtime.settings import RuntimeSettings

Device = Literal["cpu", "cuda"]

_PROVIDERS: dict[Device, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""ONNX Runtime's names."""

_CUDA_PRECISIONS = ("fp16", "fp32")
"""Precisions that a GPU can run, best first; ONNX Runtime multiplies integers on the CPU only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Device and precision of a network."""

    device: Device
    precision: str
    reason: str
    """Why, for the log."""


def choose_placement(
    settings: RuntimeSettings,
    *,
    precisions: Collection[str],
    default_precision: str,
    cuda_fault: Callable[[int], str | None],
) -> Placement:
    """Return device and precision of a bundle; `auto` takes a GPU if there is one that can run the bundle.

    The default precision is taken on the CPU if no other is asked for. `cuda_fault` returns why the GPU of an index
    cannot be used, None if it can.

    Raises:
        ConfigError: if `cuda` is asked for and does not work here or cannot run the precision.
    """
    on_cpu = settings.precision or default_precision
    if settings.device == "cpu":
        return Placement(device="cpu", precision=on_cpu, reason="asked for")
    wanted = precisions if settings.precision is None else (settings.precision,)
    runnable = [precision for precision in _CUDA_PRECISIONS if precision in wanted]
    if settings.device == "cuda":
        _check_cuda(settings, wanted, runnable, cuda_fault(settings.device_index))
        return Placement(device="cuda", precision=runnable[0], reason="asked for")
    if not runnable:
        return Placement(device="cpu", precision=on_cpu, reason=f"a GPU cannot run {', '.join(sorted(wanted))}")
    if (fault := cuda_fault(settings.device_index)) is not None:
        return Placement(device="cpu", precision=on_cpu, reason=fault)
    return Placement(device="cuda", precision=runnable[0], reason="a GPU that works")


def cuda_fault(device_index: int) -> str | None:
    """Try the GPU of an index; return why it cannot be used, None if it can."""
    if _PROVIDERS["cuda"] not in onnxruntime.get_available_providers():
        return "this ONNX Runtime has no CUDA provider"
    onnxruntime.preload_dlls()  # of the CUDA packages installed beside it
    try:
        onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, dtype=np.float32), "cuda", device_index)
    except Exception as error:  # noqa: BLE001 (its exception classes have no common base)
        return f"GPU {device_index} does not work: {error}"
    return None


def providers(device: Device, settings: RuntimeSettings) -> list[tuple[str, dict[str, Any]]]:
    """Return ONNX Runtime's providers and their options, the one for the device first."""
    cpu: tuple[str, dict[str, Any]] = (_PROVIDERS["cpu"], {})
    if device == "cpu":
        return [cpu]
    options = {"device_id": settings.device_index, "use_tf32": int(settings.use_tf32)}
    if settings.gpu_memory_limit_bytes is not None:
        options["gpu_mem_limit"] = settings.gpu_memory_limit_bytes
    return [(_PROVIDERS["cuda"], options), cpu]


def check_device(device: Device, found: Sequence[str]) -> None:
    """Raise ConfigError if the providers found in a session show that ONNX Runtime opened it on another device."""
    if not found or found[0] != _PROVIDERS[device]:
        raise ConfigError("runtime.device", device, f"a working device; ONNX Runtime fell back to {', '.join(found)}")


def _check_cuda(settings: RuntimeSettings, wanted: Collection[str], runnable: Sequence[str], fault: str | None) -> None:
    """Raise ConfigError unless a GPU was found that can run one of the precisions wanted."""
    if fault is not None:
        raise ConfigError("runtime.device", "cuda", f"a device that works here; available: cpu ({fault})")
    if not runnable and settings.precision is not None:
        possible = " or ".join(_CUDA_PRECISIONS)
        raise ConfigError("runtime.precision", settings.precision, f"{possible} with runtime.device cuda")
    if not runnable:
        raise ConfigError("runtime.device", "cuda", f"cpu, as the bundle has only {', '.join(sorted(wanted))}")
