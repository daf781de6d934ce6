"""Which engine takes the decoder steps of a bundle, and what is said if it is not the one asked for."""

import dataclasses
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman_service.bundle.files import Bundle, open_bundle
from dragoman_service.errors import BundleError, ConfigError
from dragoman_service.runtimes.native.library import BackendUnsupportedError, Library, load_library
from dragoman_service.runtimes.native.step_model import FAST_SETS, NativeStepModel, open_step_model
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.tiny_bundle import build_tiny_bundle

_CPU = RuntimeSettings(device="cpu", precision="int8")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    build_tiny_bundle(directory := tmp_path_factory.mktemp("bundle") / "tiny")
    return open_bundle(directory)


@pytest.fixture(scope="module")
def library() -> Library:
    try:
        found = load_library()
    except BackendUnsupportedError as error:
        pytest.skip(str(error))
    if not set(found.instruction_sets) & set(FAST_SETS):
        pytest.skip("the CPU multiplies bytes too slowly")
    return found


def _undescribed(bundle: Bundle) -> Bundle:
    """Return the bundle as if it did not describe its weights."""
    files = {name: each.model_copy(update={"int8_weights": None}) for name, each in bundle.manifest.precisions.items()}
    return dataclasses.replace(bundle, manifest=bundle.manifest.model_copy(update={"precisions": files}))


@pytest.mark.usefixtures("library")
def test_an_int8_bundle_is_decoded_by_the_library_and_the_log_says_so(
    bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        model = open_step_model(bundle, _CPU)

    assert isinstance(model, NativeStepModel)
    (record,) = [record for record in caplog.records if record.message == "decoder engine chosen"]
    assert vars(record)["engine"] == "native"
    assert "avx" in vars(record)["reason"]


def test_the_graph_can_be_asked_for(bundle: Bundle) -> None:
    assert isinstance(open_step_model(bundle, _CPU.model_copy(update={"engine": "onnxruntime"})), OnnxStepModel)


@pytest.mark.usefixtures("library")
def test_a_bundle_that_does_not_describe_its_weights_falls_back_to_the_graph(
    bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert isinstance(open_step_model(_undescribed(bundle), _CPU), OnnxStepModel)

    (record,) = [record for record in caplog.records if record.message == "decoder engine chosen"]
    assert "does not describe int8 weights" in vars(record)["reason"]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ({"num_kv_heads": 1}, "1 heads of keys and values for 2 of queries"),
        ({"head_dim": 8}, "2 heads of size 8 beside a d_model of 32"),
        ({"head_dim": 12}, "heads of size 12, which is no multiple of 8"),
        ({"positions": "rotary"}, "no positions 'rotary'"),
        ({"norm": "pre", "final_norm": False}, "no norm 'pre' with final_norm False"),
    ],
)
def test_an_architecture_that_the_library_does_not_compute_falls_back_to_the_graph(
    tmp_path: Path, variant: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("int8",), **variant)

    with caplog.at_level(logging.INFO):
        assert isinstance(open_step_model(bundle, _CPU), OnnxStepModel)

    (record,) = [record for record in caplog.records if record.message == "decoder engine chosen"]
    assert reason in vars(record)["reason"]


def test_a_precision_in_floats_is_decoded_by_the_graph(bundle: Bundle) -> None:
    assert isinstance(open_step_model(bundle, _CPU.model_copy(update={"precision": "fp32"})), OnnxStepModel)


@pytest.mark.parametrize(
    ("path", "reason"), [("/nowhere/lib.so", "cannot be loaded"), (None, "dragoman-native is not installed")]
)
def test_the_native_engine_that_cannot_be_had_ends_the_load_with_the_reason(
    path: str | None, reason: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path is None:
        monkeypatch.setitem(sys.modules, "dragoman_native", None)
        monkeypatch.delenv("DRAGOMAN_NATIVE_LIBRARY", raising=False)
    else:
        monkeypatch.setenv("DRAGOMAN_NATIVE_LIBRARY", path)

    assert isinstance(open_step_model(bundle, _CPU), OnnxStepModel)
    with pytest.raises(ConfigError, match=reason):
        open_step_model(bundle, _CPU.model_copy(update={"engine": "native"}))


def test_a_library_of_another_version_is_not_used(
    library: Library, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library.instruction_sets
    monkeypatch.setattr("dragoman_service.runtimes.native.library._ABI", 0)

    with pytest.raises(ConfigError, match="this service needs 0"):
        open_step_model(bundle, _CPU.model_copy(update={"engine": "native"}))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("graph", ["encoder", "decoder"])
def test_a_truncated_graph_is_refused_though_the_native_engine_does_not_run_it(
    bundle: Bundle, tmp_path: Path, graph: str
) -> None:
    for name in bundle.manifest.files:
        (tmp_path / name).write_bytes((bundle.directory / name).read_bytes())
    path = tmp_path / f"{graph}.int8.onnx"
    path.write_bytes(path.read_bytes()[:-1])
    damaged = Bundle(directory=tmp_path, manifest=bundle.manifest)

    with pytest.raises(BundleError, match=rf"{graph}\.int8\.onnx: graph"):
        open_step_model(damaged, _CPU)


def test_a_shortlist_needs_the_native_engine(bundle: Bundle) -> None:
    settings = _CPU.model_copy(update={"engine": "onnxruntime", "shortlist": True})

    with pytest.raises(ConfigError, match=r"runtime\.shortlist.*or the native engine; the graph is used: asked for"):
        open_step_model(bundle, settings)


@pytest.mark.usefixtures("library")
def test_a_bundle_without_a_shortlist_is_refused_if_one_is_asked_for(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="shortlist is None"):
        open_step_model(bundle, _CPU.model_copy(update={"shortlist": True}))
