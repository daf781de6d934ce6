"""GPUs as NVIDIA's management library (NVML) sees them: memory, utilisation, clock and power, read when scraped."""

import importlib
import logging
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dragoman_service.observability.metrics import Metrics

log = logging.getLogger(__name__)


def _import_pynvml() -> Any:
    return importlib.import_module("pynvml")  # of nvidia-ml-py, which only the extra `gpu` installs


def observe_gpus(metrics: Metrics, *, load: Callable[[], Any] = _import_pynvml) -> int:
    """Expose every GPU that NVML finds, under the index that `nvidia-smi` gives it; return how many these are.

    Without the Python package there are none; without a driver neither, and the log says so. What a GPU does not tell,
    then or later, is exposed as NaN.
    """
    try:
        nvml = load()
    except ImportError:
        return 0
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        log.info("no metrics of GPUs", extra={"reason": str(error)})
        return 0
    readings: dict[Any, Callable[[Any], float]] = {
        metrics.gpu_memory_bytes: lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).total,
        metrics.gpu_memory_used_bytes: lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        metrics.gpu_busy_share: lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        metrics.gpu_clock_hertz: lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,  # MHz
        metrics.gpu_power_watts: lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,  # milliwatts
    }
    for index, handle in enumerate(handles):
        for gauge, read in readings.items():
            gauge.labels(str(index)).set_function(partial(_reading, read, handle, nvml.NVMLError))
    return len(handles)


def free_memory_bytes(
    index: int, *, load: Callable[[], Any] = _import_pynvml, environment: Mapping[str, str] = os.environ
) -> int | None:
    """Return the memory that is free on the GPU of an index, as CUDA counts them; None if NVML does not tell.

    NVML knows all GPUs, CUDA those of CUDA_VISIBLE_DEVICES, which names them by index or by the start of their UUID.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    try:
        nvml = load()
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        name = visible.split(",")[index].strip() if visible else str(index)
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        found = (
            handle
            for number, handle in enumerate(handles)
            if name == str(number) or (not name.isdecimal() and nvml.nvmlDeviceGetUUID(handle).startswith(name))
        )
        return int(nvml.nvmlDeviceGetMemoryInfo(next(found)).free)
    except (nvml.NVMLError, IndexError, StopIteration) as error:
        log.info("free memory of the GPU is not known", extra={"gpu": index, "reason": repr(error)})
        return None


def _reading(read: Callable[[Any], float], handle: Any, error: type[Exception]) -> float:
    try:
        return float(read(handle))
    except error:
        return math.nan
