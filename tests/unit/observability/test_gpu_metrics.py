"""Tests of GPU metrics with a fake of the used functions and errors of `pynvml`."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.observability.gpu_metrics import free_memory_bytes, observe_gpus
from dragoman_service.observability.metrics import Metrics


class NvmlError(Exception):
    pass


class FakeNvml:
    NVMLError = NvmlError
    NVML_CLOCK_SM = 1

    def __init__(self, *gpus: dict[str, float], fault: str = "") -> None:
        self.gpus, self.fault = gpus, fault

    def nvmlInit(self) -> None:  # noqa: N802
        if self.fault:
            raise NvmlError(self.fault)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, float]:  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetMemoryInfo(self, gpu: dict[str, float]) -> Any:  # noqa: N802
        total, used = self._read(gpu, "total"), self._read(gpu, "used")
        return SimpleNamespace(total=total, used=used, free=total - used)

    def nvmlDeviceGetUUID(self, gpu: dict[str, float]) -> str:  # noqa: N802
        return f"GPU-{self._read(gpu, 'total'):04.0f}-abcd"

    def nvmlDeviceGetUtilizationRates(self, gpu: dict[str, float]) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=self._read(gpu, "busy"), memory=0)

    def nvmlDeviceGetClockInfo(self, gpu: dict[str, float], clock: int) -> float:  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        return self._read(gpu, "mhz")

    def nvmlDeviceGetPowerUsage(self, gpu: dict[str, float]) -> float:  # noqa: N802
        return self._read(gpu, "milliwatts")

    @staticmethod
    def _read(gpu: dict[str, float], name: str) -> float:
        if name not in gpu:
            raise NvmlError("Not Supported")
        return gpu[name]


def readings(metrics: Metrics, gpu: str = "0") -> dict[str, float | None]:
    names = ("memory_bytes", "memory_used_bytes", "busy_share", "clock_hertz", "power_watts")
    return {name: metrics.registry.get_sample_value(f"dragoman_gpu_{name}", {"gpu": gpu}) for name in names}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def test_gpus_are_read_at_each_scrape_in_base_units(metrics: Metrics) -> None:
    first = {"total": 80e9, "used": 2e9, "busy": 40, "mhz": 1980, "milliwatts": 350_500}
    nvml = FakeNvml(first, {**first, "used": 5e9})

    assert observe_gpus(metrics, load=lambda: nvml) == 2

    expected = {"memory_bytes": 80e9, "busy_share": 0.4, "clock_hertz": 1.98e9, "power_watts": 350.5}
    assert readings(metrics) == {**expected, "memory_used_bytes": 2e9}
    assert readings(metrics, "1") == {**expected, "memory_used_bytes": 5e9}
    first["used"] = 3e9
    assert readings(metrics)["memory_used_bytes"] == 3e9


def test_value_that_a_gpu_does_not_report_is_nan(metrics: Metrics) -> None:
    gpu: dict[str, float] = {"total": 8e9, "used": 1e9, "busy": 1, "mhz": 900}
    observe_gpus(metrics, load=lambda: FakeNvml(gpu))
    assert math.isnan(readings(metrics)["power_watts"] or 0)

    gpu.clear()  # it fell off the bus

    assert all(value is not None and math.isnan(value) for value in readings(metrics).values())


def test_without_package_or_driver_there_are_no_gpus(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'", name="pynvml")

    with caplog.at_level("INFO"):
        assert observe_gpus(metrics, load=fail) == 0
        assert caplog.records == []
        assert observe_gpus(metrics, load=lambda: FakeNvml(fault="NVML Shared Library Not Found")) == 0
    assert [(record.message, vars(record)["reason"]) for record in caplog.records] == [
        ("GPU metrics unavailable", "NVML Shared Library Not Found")
    ]
    assert set(readings(metrics).values()) == {None}


def test_installed_nvml_package_has_all_used_names() -> None:
    pynvml = pytest.importorskip("pynvml", reason="not installed: pip install '.[dev]'")

    used = [name for name in dir(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert [name for name in used if not hasattr(pynvml, name)] == []


@pytest.mark.parametrize(
    ("visible", "index", "free"),
    [
        (None, 0, 60),
        (None, 1, 20),
        ("", 1, 20),
        ("1", 0, 20),
        ("1, 0", 1, 60),
        ("GPU-0080,0", 0, 20),
        ("GPU-9,0", 0, None),
        ("1", 1, None),
        (None, 2, None),
        (None, 3, None),
    ],
)
def test_free_memory_uses_the_cuda_index(visible: str | None, index: int, free: int | None) -> None:
    nvml = FakeNvml({"total": 100, "used": 40}, {"total": 80, "used": 60}, {})
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert free_memory_bytes(index, load=lambda: nvml, environment=environment) == free


def test_without_nvml_or_a_driver_free_memory_is_not_known() -> None:
    def load_nothing() -> Any:
        raise ImportError

    assert free_memory_bytes(0, load=load_nothing) is None
    assert free_memory_bytes(0, load=lambda: FakeNvml({}, fault="Driver Not Loaded")) is None
