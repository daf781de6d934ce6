from collections.abc import Callable

import pytest
from pydantic import ValidationError

from dragoman_service.errors import ConfigError
from dragoman_service.runtimes.onnx.session import check_device, cuda_fault, providers
from dragoman_service.runtimes.settings import Placement, RuntimeSettings, choose_placement

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"


def _fails(device_index: int) -> str:
    return f"GPU {device_index} does not work: out of order"


def _place(precisions: str, asked: dict[str, object], fault: Callable[[int], str | None]) -> Placement:
    settings = RuntimeSettings.model_validate(asked)
    return choose_placement(
        settings,
        precisions=precisions.split(),
        default_precision="int8",
        convert_command="convert this",
        cuda_fault=fault,
    )


@pytest.mark.parametrize(
    ("precisions", "asked", "expected"),
    [
        ("int8", {}, "cpu int8: a GPU cannot run int8"),
        ("fp32 int8", {}, "cuda fp32: GPU available"),
        ("fp16 fp32 int8", {}, "cuda fp16: GPU available"),
        ("fp16 fp32 int8", {"precision": "fp32"}, "cuda fp32: GPU available"),
        ("fp16 fp32 int8", {"precision": "int8"}, "cpu int8: a GPU cannot run int8"),
        ("fp32 int8", {"device": "cpu"}, "cpu int8: configured"),
        ("fp32 int8", {"device": "cpu", "precision": "fp32"}, "cpu fp32: configured"),
        ("fp32 int8", {"device": "cuda"}, "cuda fp32: configured"),
        ("fp16 fp32 int8", {"device": "cuda:3"}, "cuda fp16: configured"),
        ("fp16 fp32", {"device": "cuda", "precision": "fp32"}, "cuda fp32: configured"),
    ],
)
def test_gpu_uses_the_best_supported_precision(precisions: str, asked: dict[str, object], expected: str) -> None:
    tried: list[int] = []

    placement = _place(precisions, asked, tried.append)

    assert f"{placement.device} {placement.precision}: {placement.reason}" == expected
    is_gpu_tried = "cuda" in expected
    assert tried == ([3 if asked.get("device") == "cuda:3" else 0] if is_gpu_tried else [])


def test_auto_without_usable_gpu_uses_the_cpu_and_default_precision() -> None:
    placement = _place("fp16 fp32 int8", {}, _fails)

    assert placement == Placement(device="cpu", precision="int8", reason="GPU 0 does not work: out of order")


@pytest.mark.parametrize(
    ("precisions", "asked", "fault", "message"),
    [
        ("fp32", {"device": "cuda"}, _fails, r"'runtime\.device' is 'cuda': .*available: cpu \(GPU 0 does not work"),
        ("fp32", {"device": "cuda:3"}, _fails, r"'runtime\.device' is 'cuda:3': .*GPU 3"),
        (
            "fp32 int8",
            {"device": "cuda", "precision": "int8"},
            None,
            r"'runtime\.precision' is 'int8': expected fp16 or fp32 with runtime.device cuda",
        ),
        (
            "int8",
            {"device": "cuda"},
            _fails,
            r"'runtime\.device' is 'cuda': expected cpu, .* has only int8; add fp16 to the bundle with: convert this",
        ),
    ],
)
def test_explicit_cuda_never_falls_back(
    precisions: str, asked: dict[str, object], fault: Callable[[int], str] | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _place(precisions, asked, fault or (lambda _: None))


@pytest.mark.parametrize(
    ("asked", "chosen", "others"),
    [("auto", "cuda", ["cuda:1", "cuda:2"]), ("cuda:2", "cuda", ["cuda:3", "cuda:4"]), ("auto", "cpu", ["cpu", "cpu"])],
)
def test_other_replicas_use_the_following_gpus(asked: str, chosen: str, others: list[str]) -> None:
    settings = RuntimeSettings(device=asked, num_replicas=3).of_other_replicas(chosen, "fp16")

    assert [one.device for one in settings] == others
    assert {one.precision for one in settings} == {"fp16"}


@pytest.mark.parametrize(
    "device", ["cuda:", "cuda:-1", "cuda:1.0", "cuda:x", "cpu:0", "auto:1", "gpu", "CUDA", "cuda:1\n"]
)
def test_invalid_device_is_rejected(device: str) -> None:
    with pytest.raises(ValidationError, match="'auto', 'cpu' or 'cuda', or 'cuda:N'"):
        RuntimeSettings(device=device)


def test_fault_of_installed_onnx_runtime_has_a_cause() -> None:
    if (fault := cuda_fault(1_000)) is not None:
        assert "no CUDA provider" in fault or "GPU 1000" in fault
    else:
        pytest.fail("GPU 1000 is reported as usable")


class FakeLibrary:
    """ONNX Runtime with CUDA and a usable GPU 0."""

    def __init__(self) -> None:
        self.OrtValue = self
        self.has_found_libraries = False

    def get_available_providers(self) -> list[str]:
        return [_CUDA, _CPU]

    def preload_dlls(self) -> None:
        self.has_found_libraries = True

    def ortvalue_from_numpy(self, _: object, device: str, index: int) -> None:
        assert device == "cuda"
        assert self.has_found_libraries
        if index:
            raise RuntimeError("CUDA failure 100: no CUDA-capable device is detected")


def test_fault_of_unusable_gpu_contains_cause_and_remedy() -> None:
    assert cuda_fault(0, FakeLibrary(), str) is None
    fault = cuda_fault(1, FakeLibrary(), str)
    assert fault is not None
    assert "GPU 1 " in fault
    assert "CUDA failure 100: no CUDA-capable device is detected" in fault
    assert "nvidia-smi" in fault


def test_missing_driver_is_reported_before_cuda_libraries_are_loaded() -> None:
    library = FakeLibrary()

    def load_nothing(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file")

    fault = cuda_fault(0, library, load_nothing)
    assert fault is not None
    assert "libcuda.so.1: cannot open shared object file" in fault
    assert "--gpus all" in fault
    assert not library.has_found_libraries


@pytest.mark.parametrize(
    ("settings", "captures", "options"),
    [
        ({}, False, {"device_id": 0, "use_tf32": 0}),
        ({"use_tf32": True}, False, {"device_id": 0, "use_tf32": 1}),
        (
            {"device": "cuda:2", "gpu_memory_limit_bytes": 1 << 30},
            False,
            {"device_id": 2, "use_tf32": 0, "gpu_mem_limit": 1 << 30},
        ),
        ({}, True, {"device_id": 0, "use_tf32": 0, "enable_cuda_graph": 1}),
    ],
)
def test_cuda_provider_has_options_and_is_followed_by_the_cpu(
    settings: dict[str, object], captures: bool, options: dict[str, int]
) -> None:
    parsed = RuntimeSettings.model_validate(settings)

    assert providers("cuda", parsed, captures=captures) == [(_CUDA, options), (_CPU, {})]
    assert providers("cpu", parsed, captures=captures) == [(_CPU, {})]


@pytest.mark.parametrize("found", [[_CPU], []])
def test_session_that_fell_back_is_rejected(found: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"'runtime\.device' is 'cuda': .*ONNX Runtime fell back"):
        check_device("cuda", found)
    check_device("cuda", [_CUDA, _CPU])
    check_device("cpu", [_CPU])
