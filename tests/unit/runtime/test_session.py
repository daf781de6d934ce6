import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.bundle import Bundle, GraphTensors
from service.errors import BundleError, ConfigError
from service.runtime.session import choose_provider, open_sessions, session_options
from service.runtime.settings import RuntimeSettings
from tests.tiny_bundle import build_tiny_bundle

_CPU = ["CPUExecutionProvider"]
_CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny", precisions=("fp32",))


@pytest.mark.parametrize(
    ("asked", "precision", "available", "chosen"),
    [
        ("cpu", "int8", _CUDA, "cpu"),
        ("auto", "fp32", _CPU, "cpu"),
        ("auto", "fp32", _CUDA, "cuda"),
        ("auto", "int8", _CUDA, "cpu"),
        ("cuda", "fp32", _CUDA, "cuda"),
    ],
)
def test_the_provider_is_the_one_asked_for(asked: str, precision: str, available: list[str], chosen: str) -> None:
    settings = RuntimeSettings.model_validate({"provider": asked})

    assert choose_provider(settings, precision, available=available) == chosen


def test_a_missing_provider_is_an_error_and_no_reason_to_fall_back() -> None:
    with pytest.raises(ConfigError, match="'provider' is 'cuda': expected one that this ONNX Runtime has: CPU"):
        choose_provider(RuntimeSettings(provider="cuda"), "fp32", available=_CPU)


def test_a_provider_that_cannot_run_the_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="'precision' is 'int8': expected fp32 with provider cuda"):
        choose_provider(RuntimeSettings(provider="cuda"), "int8", available=_CUDA)


def test_threads_are_those_of_the_settings_and_do_not_spin() -> None:
    options = session_options(RuntimeSettings(num_intra_op_threads=3))

    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert not options.enable_mem_pattern


@pytest.mark.parametrize("fields", [{"num_intra_op_threads": 0}, {"provider": "tpu"}, {"threads": 4}])
def test_a_setting_that_cannot_be_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RuntimeSettings.model_validate(fields)


def test_a_precision_that_the_bundle_lacks_is_refused(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="precision is 'int8', expected one of fp32"):
        open_sessions(bundle, RuntimeSettings(precision="int8"))


def test_a_graph_that_cannot_be_loaded_is_named(bundle: Bundle, tmp_path: Path) -> None:
    for name in ("encoder.fp32.onnx", "decoder.fp32.onnx"):
        (tmp_path / name).write_bytes(b"no graph")

    with pytest.raises(BundleError, match=r"encoder\.fp32\.onnx: graph is .*, expected a graph this service can load"):
        open_sessions(Bundle(directory=tmp_path, manifest=bundle.manifest), RuntimeSettings())


def test_tensors_other_than_those_of_the_manifest_are_named_with_both(bundle: Bundle) -> None:
    tensors = bundle.manifest.tensors
    inputs = {**tensors.encoder.inputs, "source_lengths": "int64", "source_mask": "bool"}
    changed = tensors.model_copy(update={"encoder": GraphTensors(inputs=inputs, outputs=tensors.encoder.outputs)})
    manifest = bundle.manifest.model_copy(update={"tensors": changed})

    found = re.escape("{'source_lengths': 'int32', 'source_mask': None}")
    expected = re.escape("{'source_lengths': 'int64', 'source_mask': 'bool'}")
    with pytest.raises(BundleError, match=rf"encoder\.fp32\.onnx: inputs is {found}, expected {expected}"):
        open_sessions(Bundle(directory=bundle.directory, manifest=manifest), RuntimeSettings())
