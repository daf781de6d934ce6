"""GPU metrics from the NVIDIA Management Library (NVML), read at each scrape."""

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
    return importlib.import_module("pynvml")  # part of nvidia-ml-py, which the extra `gpu` installs


def observe_gpus(metrics: Metrics, *, load: Callable[[], Any] = _import_pynvml) -> int:
    """Register the gauges of every GPU, labelled with its index in `nvidia-smi`; return the number of GPUs.

    Returns 0 without the Python package, and, with a log message, without a driver. Values that a GPU does not report
    are NaN.
    """
    try:
        nvml = load()
    except ImportError:
        return 0
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        log.info("GPU metrics unavailable", extra={"reason": str(error)})
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
    """Return the free memory of the GPU with a CUDA index; None if NVML does not report it.

    NVML lists all GPUs. CUDA lists only the GPUs in CUDA_VISIBLE_DEVICES, given as indices or UUID prefixes.
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
        matching = (
            handle
            for number, handle in enumerate(handles)
            if name == str(number) or (not name.isdecimal() and nvml.nvmlDeviceGetUUID(handle).startswith(name))
        )
        return int(nvml.nvmlDeviceGetMemoryInfo(next(matching)).free)
    except (nvml.NVMLError, IndexError, StopIteration) as error:
        log.info("free GPU memory unknown", extra={"gpu": index, "reason": repr(error)})
        return None


def _reading(read: Callable[[Any], float], handle: Any, error: type[Exception]) -> float:
    try:
        return float(read(handle))
    except error:
        return math.nan
