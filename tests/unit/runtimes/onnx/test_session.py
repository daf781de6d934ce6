import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
import pytest
from pydantic import ValidationError

from dragoman_service.bundle.architecture import GraphTensors
from dragoman_service.bundle.files import Bundle
from dragoman_service.bundle.manifest import GraphFiles
from dragoman_service.errors import BundleError, ConfigError
from dragoman_service.runtimes.onnx.session import (
    CrossAttention,
    multiplies_u8s8_exactly,
    num_low_latency_threads,
    open_sessions,
    place,
    session_options,
)
from dragoman_service.runtimes.settings import Device, Placement, RuntimeSettings
from tests.tiny_bundle import build_tiny_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny", precisions=("fp32",))


@pytest.mark.parametrize(("num_low_latency_threads", "num_threads", "spins"), [(None, 3, "0"), (4, 4, "1")])
def test_only_low_latency_threads_spin_until_the_run_ends(
    num_low_latency_threads: int | None, num_threads: int, spins: str
) -> None:
    options = session_options(RuntimeSettings(num_intra_op_threads=3), num_low_latency_threads=num_low_latency_threads)

    assert options.intra_op_num_threads == num_threads
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == spins
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    assert not options.enable_mem_pattern


def _x64quantprecision(options: onnxruntime.SessionOptions) -> str | None:
    try:
        return str(options.get_session_config_entry("session.x64quantprecision"))
    except RuntimeError:  # not set
        return None


@pytest.mark.parametrize(("is_exact", "expected"), [(True, None), (False, "1")])
def test_inexact_products_enable_another_quantization_mode(is_exact: bool, expected: str | None) -> None:
    options = session_options(RuntimeSettings(), multiplies_exactly=lambda: is_exact)

    assert _x64quantprecision(options) == expected


@pytest.mark.parametrize(
    ("architecture", "flags", "is_exact"),
    [
        ("x86_64", "flags : avx2 avx512bw avx512_vnni", True),
        ("AMD64", "flags : avx2 avx_vnni", True),
        ("x86_64", "flags : avx2 avx512bw", False),
        ("x86_64", None, False),
        ("aarch64", "Features : asimd", True),
    ],
)
def test_int8_products_are_exact_with_vnni_or_without_x86(architecture: str, flags: str | None, is_exact: bool) -> None:
    def read_cpu_info() -> str:
        if flags is None:
            raise FileNotFoundError
        return flags

    assert multiplies_u8s8_exactly(architecture, read_cpu_info) is is_exact


@pytest.mark.parametrize("fields", [{"num_intra_op_threads": 0}, {"gpu_memory_limit_bytes": 0}, {"threads": 4}])
def test_invalid_setting_is_rejected(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RuntimeSettings.model_validate(fields)


def test_missing_precision_is_rejected(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="precision is 'int8', expected one of fp32"):
        open_sessions(bundle, RuntimeSettings(precision="int8"))


def test_error_of_damaged_graph_contains_its_file(bundle: Bundle, tmp_path: Path) -> None:
    for name in ("encoder.fp32.onnx", "decoder.fp32.onnx"):
        (tmp_path / name).write_bytes(b"no graph")

    with pytest.raises(BundleError, match=r"encoder\.fp32\.onnx: graph is .*, expected a graph that"):
        open_sessions(Bundle(directory=tmp_path, manifest=bundle.manifest), RuntimeSettings())


@pytest.mark.parametrize("graph", ["encoder", "decoder"])
def test_truncated_unopened_graph_is_rejected(bundle: Bundle, tmp_path: Path, graph: str) -> None:
    name = f"{graph}.fp32.onnx"
    for other in ("encoder.fp32.onnx", "decoder.fp32.onnx", "attention.fp32.onnx", "weights.fp32.bin"):
        shutil.copy(bundle.directory / other, tmp_path / other)
    whole = (tmp_path / name).read_bytes()
    part_of_header = onnx.load_from_string(whole)
    part_of_header.ClearField("graph")
    part_of_header.ClearField("opset_import")
    without_opset = onnx.load_from_string(whole)
    without_opset.ClearField("opset_import")

    open_sessions(Bundle(directory=tmp_path, manifest=bundle.manifest), RuntimeSettings(), graphs=())
    parts = [whole[:size] for size in (0, 1, 100, len(whole) // 2, len(whole) - 1)]
    for part in (*parts, part_of_header.SerializeToString(), without_opset.SerializeToString()):
        (tmp_path / name).write_bytes(part)
        with pytest.raises(BundleError, match=rf"{graph}\.fp32\.onnx: .* is .*, expected"):
            open_sessions(Bundle(directory=tmp_path, manifest=bundle.manifest), RuntimeSettings(), graphs=())


def test_tensors_of_unopened_graph_are_checked(bundle: Bundle) -> None:
    tensors = bundle.manifest.tensors["fp32"]
    outputs = {**tensors.decoder.outputs, "more": "float32"}
    changed = tensors.model_copy(update={"decoder": GraphTensors(inputs=tensors.decoder.inputs, outputs=outputs)})
    manifest = bundle.manifest.model_copy(update={"tensors": {"fp32": changed}})

    with pytest.raises(BundleError, match=r"decoder\.fp32\.onnx: outputs is .*, expected .*more"):
        open_sessions(Bundle(directory=bundle.directory, manifest=manifest), RuntimeSettings(), graphs=())


def test_error_of_tensor_mismatch_contains_both_types(bundle: Bundle) -> None:
    tensors = bundle.manifest.tensors["fp32"]
    inputs = {**tensors.encoder.inputs, "source_lengths": "int64", "source_mask": "bool"}
    changed = tensors.model_copy(update={"encoder": GraphTensors(inputs=inputs, outputs=tensors.encoder.outputs)})
    manifest = bundle.manifest.model_copy(update={"tensors": {"fp32": changed}})

    found = re.escape("{'source_lengths': 'int32', 'source_mask': None}")
    expected = re.escape("{'source_lengths': 'int64', 'source_mask': 'bool'}")
    with pytest.raises(BundleError, match=rf"encoder\.fp32\.onnx: inputs is {found}, expected {expected}"):
        open_sessions(Bundle(directory=bundle.directory, manifest=manifest), RuntimeSettings())


def test_chosen_placement_is_returned_and_logged(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="dragoman_service.runtimes.onnx.session"):
        sessions = open_sessions(bundle, RuntimeSettings(), find_cuda_fault=lambda index: f"GPU {index} is on fire")

    assert sessions.placement == Placement(device="cpu", precision="fp32", reason="GPU 0 is on fire")
    assert sessions.device_memory is None
    (record,) = [record for record in caplog.records if record.message == "device chosen"]
    fields = (vars(record)[name] for name in ("model", "device", "precision", "reason"))
    assert tuple(fields) == ("tiny/1", "cpu", "fp32", "GPU 0 is on fire")


def test_recurrent_decoder_runs_on_the_cpu_only(tmp_path: Path) -> None:
    recurrent = build_tiny_bundle(tmp_path / "tiny", precisions=("fp32",), decoder_type="ssru")

    chosen = place(recurrent, RuntimeSettings(), find_cuda_fault=lambda _: None)

    assert chosen == Placement(device="cpu", precision="fp32", reason="decoders of type ssru run on the CPU only")
    with pytest.raises(ConfigError, match="decoders of type ssru run on the CPU only"):
        place(recurrent, RuntimeSettings(device="cuda"), find_cuda_fault=lambda _: None)


@pytest.mark.parametrize(("device", "level"), [("auto", "WARNING"), ("cpu", "INFO")])
def test_fallback_to_cpu_with_cuda_provider_is_a_warning(
    device: Literal["auto", "cpu"],
    level: str,
    bundle: Bundle,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)

    with caplog.at_level("INFO", logger="dragoman_service.runtimes.onnx.session"):
        open_sessions(bundle, RuntimeSettings(device=device), find_cuda_fault=lambda index: f"GPU {index} is on fire")

    assert [record.levelname for record in caplog.records if record.message == "device chosen"] == [level]


def test_graph_with_unlisted_external_file_is_rejected(bundle: Bundle) -> None:
    graphs = bundle.manifest.precisions["fp32"].model_copy(update={"weights": "other.bin"})
    manifest = bundle.manifest.model_copy(update={"precisions": {"fp32": graphs}})
    (bundle.directory / "other.bin").touch()

    expected = r"encoder\.fp32\.onnx: weight file is \['weights\.fp32\.bin'\], expected other\.bin"
    with pytest.raises(BundleError, match=expected):
        open_sessions(Bundle(directory=bundle.directory, manifest=manifest), RuntimeSettings())


def test_bundle_with_embedded_weights_is_loaded(bundle: Bundle, tmp_path: Path) -> None:
    for name in ("encoder.fp32.onnx", "decoder.fp32.onnx"):
        onnx.save(onnx.load(bundle.directory / name), tmp_path / name)  # embeds the arrays
    graphs = GraphFiles(encoder="encoder.fp32.onnx", decoder="decoder.fp32.onnx")
    tensors = bundle.manifest.tensors["fp32"].model_copy(update={"attention": None})
    manifest = bundle.manifest.model_copy(update={"precisions": {"fp32": graphs}, "tensors": {"fp32": tensors}})

    sessions = open_sessions(Bundle(directory=tmp_path, manifest=manifest), RuntimeSettings())

    assert sessions.opened("encoder").get_inputs()[0].name == "source_ids"


@pytest.mark.parametrize(
    ("device", "asked", "weights_bytes", "expected"),
    [
        ("cpu", None, 60 << 20, 8),
        ("cpu", None, 9 << 20, 2),
        ("cpu", 4, 9 << 20, 4),
        ("cpu", 1, 60 << 20, 2),
        ("cuda", None, 60 << 20, 2),
    ],
)
def test_low_latency_threads_depend_on_device_and_size(
    device: Device, asked: int | None, weights_bytes: int, expected: int
) -> None:
    settings = RuntimeSettings(num_intra_op_threads=2, num_low_latency_threads=asked)
    placement = Placement(device=device, precision="fp32", reason="")

    assert num_low_latency_threads(settings, placement, weights_bytes=weights_bytes, num_cores=8) == expected


def test_files_of_loaded_model_are_not_mapped(bundle: Bundle) -> None:
    sessions = open_sessions(bundle, RuntimeSettings())

    assert sessions.weights_bytes > 0
    assert str(bundle.directory) not in Path("/proc/self/maps").read_text(encoding="utf-8")


_CROSS = {
    f"{kind}.{layer}": np.zeros((1, 2, 5, 4), dtype=np.float32)
    for kind in ("cross_key", "cross_value")
    for layer in range(2)
}


class FakeSession:
    """Records its inputs and returns the index of the layer."""

    def __init__(self) -> None:
        self.fed: Mapping[str, Any] = {}

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        self.fed = inputs
        shape = (1, 2, inputs["token_ids"].shape[1], 5)
        return [np.full(shape, float(name.rpartition(".")[2]), dtype=np.float32) for name in outputs]


def test_attention_of_a_target_shifted_by_bos_has_the_layers_in_order() -> None:
    session = FakeSession()
    attention = CrossAttention(session, num_layers=2, bos_id=1)

    weights = attention.weights([7, 8, 2], _CROSS)

    assert session.fed["token_ids"].tolist() == [[1, 7, 8]]
    assert session.fed["source_lengths"].tolist() == [5]
    assert set(session.fed) == {"token_ids", "source_lengths", "cross_key.0", "cross_value.0", "cross_key.1"}
    assert weights.shape == (2, 2, 3, 5)
    assert weights[:, 0, 0, 0].tolist() == [0, 1]
