"""GPUs as NVIDIA's management library (NVML) sees them: memory, utilisation, clock and power, read when scraped."""

import importlib
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from service.telemetry.metrics import Metrics

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


def _reading(read: Callable[[Any], float], handle: Any, error: type[Exception]) -> float:
    try:
        return float(read(handle))
    except error:
        return math.nan
