"""Choice between ONNX Runtime and the native engine, and its reasons."""

import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dragoman_service.bundle.files import Bundle, open_bundle
from dragoman_service.errors import BundleError, ConfigError, EngineError
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.native import library as library_module
from dragoman_service.runtimes.native.library import BackendUnsupportedError, Library, load_library
from dragoman_service.runtimes.native.step_model import NativeStepModel
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
    if not found.instruction_sets:
        pytest.skip("the CPU does not have AVX2")
    return found


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("variant", "settings", "engine", "reason"),
    [
        ({}, {}, NativeStepModel, "int8 weights and CPU with "),
        ({}, {"engine": "onnxruntime"}, OnnxStepModel, "configured"),
        ({}, {"precision": "fp32"}, OnnxStepModel, "does not describe int8 weights of its decoder for fp32"),
        ({"num_kv_heads": 1}, {}, OnnxStepModel, "1 key and value heads .* 2 query heads"),
        ({"head_dim": 8}, {}, OnnxStepModel, "d_model 32 .* 2 heads of size 8"),
        ({"head_dim": 12}, {}, OnnxStepModel, "head size 12"),
        ({"positions": "rotary"}, {}, OnnxStepModel, "positions 'rotary'"),
        ({"norm": "pre", "final_norm": False}, {}, OnnxStepModel, "norm 'pre' with final_norm False"),
    ],
)
def test_engine_is_native_if_supported_and_the_reason_is_logged(
    tmp_path: Path,
    bundle: Bundle,
    variant: dict[str, Any],
    settings: dict[str, Any],
    engine: type,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = build_tiny_bundle(tmp_path / "tiny", precisions=("int8",), **variant) if variant else bundle

    with caplog.at_level(logging.INFO):
        assert isinstance(open_step_model(opened, _CPU.model_copy(update=settings)), engine)

    (record,) = [record for record in caplog.records if record.message == "decoder engine chosen"]
    assert vars(record)["engine"] == ("native" if engine is NativeStepModel else "onnxruntime")
    assert re.search(reason, vars(record)["reason"])


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/nowhere/lib.so", "cannot be loaded"),
        ("libc.so.6", "cannot be loaded: .*dragoman_abi"),  # lacks a function
        (None, r"not installed.*pip install \./service/native"),
    ],
)
def test_missing_native_library_fails_only_if_the_native_engine_is_configured(
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


def test_library_of_another_version_is_rejected(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"dragoman": "0.2.0", "dragoman-native": "0.1.9"}
    monkeypatch.delenv("DRAGOMAN_NATIVE_LIBRARY", raising=False)
    monkeypatch.setitem(sys.modules, "dragoman_native", ModuleType("dragoman_native"))
    monkeypatch.setattr("dragoman_service.runtimes.native.library.version", versions.__getitem__)

    assert isinstance(open_step_model(bundle, _CPU), OnnxStepModel)
    with pytest.raises(ConfigError, match=r"version 0\.1\.9, expected 0\.2\.0; .*pip install 'dragoman\[serve\]'"):
        open_step_model(bundle, _CPU.model_copy(update={"engine": "native"}))


def test_log_says_that_the_system_does_not_permit_amx(
    library: Library, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = next(each for each in library.instruction_sets if each != "amx")
    monkeypatch.setattr(Library, "instruction_sets", (name,))
    monkeypatch.setattr("dragoman_service.runtimes.factory.read_cpu_info", lambda: "flags: avx2 amx_int8")

    with caplog.at_level("INFO"):
        open_step_model(bundle, _CPU)

    (record,) = (each for each in caplog.records if each.msg == "decoder engine chosen")
    assert record.reason == f"int8 weights and CPU with {name}; the system does not permit its AMX"  # type: ignore[attr-defined]


def test_library_with_another_abi_version_is_rejected(
    library: Library, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library.instruction_sets
    monkeypatch.setattr("dragoman_service.runtimes.native.library._ABI", 0)

    with pytest.raises(ConfigError, match="expected 0"):
        open_step_model(bundle, _CPU.model_copy(update={"engine": "native"}))


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ("Shape 68\\n", r"layout 'Shape 68', expected 'Shape 64'"),
        ("Shape 64\\nShape.num_heads 0 4\\n", r"layout 'Shape.num_heads 0 4', expected 'Shape.d_model 0 4'"),
        ("", r"layout 'nothing', expected 'Shape 64'"),
    ],
)
def test_library_with_another_layout_is_rejected(tmp_path: Path, lines: str, error: str) -> None:
    if (compiler := shutil.which("gcc")) is None:
        pytest.skip("gcc is not installed")
    (source := tmp_path / "library.c").write_text(
        f"int dragoman_abi(void) {{ return {library_module._ABI}; }}\n"
        f'const char* dragoman_layout(void) {{ return "{lines}"; }}\n'
        + "".join(f"void {name}(void) {{}}\n" for name in set(library_module._FUNCTIONS) - {"dragoman_layout"}),
        encoding="utf-8",
    )
    path = tmp_path / "library.so"
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", path], check=True)

    with pytest.raises(EngineError, match=error):
        Library(str(path))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("graph", ["encoder", "decoder"])
def test_truncated_graph_is_rejected_although_the_native_engine_does_not_run_it(
    bundle: Bundle, tmp_path: Path, graph: str
) -> None:
    for name in bundle.manifest.files:
        (tmp_path / name).write_bytes((bundle.directory / name).read_bytes())
    path = tmp_path / f"{graph}.int8.onnx"
    path.write_bytes(path.read_bytes()[:-1])
    damaged = Bundle(directory=tmp_path, manifest=bundle.manifest)

    with pytest.raises(BundleError, match=rf"{graph}\.int8\.onnx: graph"):
        open_step_model(damaged, _CPU)


def test_every_instruction_set_of_the_cpu_can_be_chosen(library: Library, bundle: Bundle) -> None:
    for name in library.instruction_sets:
        model = open_step_model(bundle, _CPU.model_copy(update={"instruction_set": name}))

        assert isinstance(model, NativeStepModel)
        assert model.network.instruction_set == name


@pytest.mark.parametrize("engine", ["auto", "native"])
def test_instruction_set_that_the_cpu_lacks_is_rejected(
    engine: str, library: Library, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library.instruction_sets
    monkeypatch.setattr(Library, "instruction_sets", ("avx2",))

    with pytest.raises(ConfigError, match="does not have avx512, only avx2"):
        open_step_model(bundle, _CPU.model_copy(update={"engine": engine, "instruction_set": "avx512"}))


def test_instruction_set_requires_the_native_engine(bundle: Bundle) -> None:
    settings = _CPU.model_copy(update={"engine": "onnxruntime", "instruction_set": "avx2"})

    with pytest.raises(ConfigError, match=r"'runtime\.instruction_set' is 'avx2'"):
        open_step_model(bundle, settings)


def test_shortlist_requires_the_native_engine(bundle: Bundle) -> None:
    settings = _CPU.model_copy(update={"engine": "onnxruntime", "shortlist": True})

    with pytest.raises(ConfigError, match=r"'runtime\.shortlist' is True"):
        open_step_model(bundle, settings)


@pytest.mark.usefixtures("library")
def test_bundle_without_shortlist_is_rejected_if_a_shortlist_is_configured(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="shortlist is None"):
        open_step_model(bundle, _CPU.model_copy(update={"shortlist": True}))
