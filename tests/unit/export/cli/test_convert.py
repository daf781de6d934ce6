import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman_export.__main__ import main
from dragoman_export.importers.bundle import read_network
from dragoman_service.bundle.files import MANIFEST_NAME, file_entry, open_bundle
from dragoman_service.errors import ConfigError
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.onnx.session import place
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.tiny_bundle import build_tiny_bundle


def convert(bundle: Path, output: Path, *flags: str) -> int:
    return main(["convert", "--bundle", str(bundle), "--output", str(output), *flags])


@pytest.mark.parametrize(
    "variant",
    [{}, {"positions": "rotary", "activation": "swiglu", "norm_kind": "rms", "tied_embeddings": "none"}],
    ids=["paper", "modern"],
)
def test_fp16_of_a_bundle_in_fp32_equals_that_of_the_checkpoint(tmp_path: Path, variant: dict[str, Any]) -> None:
    exact = build_tiny_bundle(tmp_path / "exact", precisions=("fp32", "int8"), **variant)
    expected = build_tiny_bundle(tmp_path / "both", precisions=("fp16",), **variant).manifest

    assert convert(exact.directory, tmp_path / "new") == 0

    manifest = open_bundle(tmp_path / "new").manifest
    names = expected.precisions["fp16"].names()
    assert {name: manifest.files[name] for name in names} == {name: expected.files[name] for name in names}
    assert manifest.precisions["fp16"] == expected.precisions["fp16"]
    assert manifest.tensors["fp16"] == expected.tensors["fp16"]


def test_conversion_of_int8_adds_dequantized_weights_and_keeps_everything_else(tmp_path: Path) -> None:
    old = build_tiny_bundle(tmp_path / "old", precisions=("int8",), is_calibrated=True)
    (old.directory / "README.md").write_text("card", encoding="utf-8")

    assert convert(old.directory, tmp_path / "new") == 0

    new = open_bundle(tmp_path / "new")
    assert list(new.manifest.precisions) == ["int8", "fp16"]
    assert new.manifest.default_precision == "int8"
    assert new.manifest.files.items() >= old.manifest.files.items()
    same = {"precisions", "tensors", "files"}
    assert new.manifest.model_dump(exclude=same) == old.manifest.model_dump(exclude=same)
    assert (new.directory / "README.md").read_text(encoding="utf-8") == "card"
    dequantized, halves = read_network(old, "int8").weights, read_network(new, "fp16").weights
    assert halves.keys() == dequantized.keys()
    for name, array in halves.items():
        np.testing.assert_array_equal(array, dequantized[name].astype(np.float16))


def test_command_in_the_error_of_a_gpu_makes_a_bundle_that_the_gpu_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = build_tiny_bundle(tmp_path / "tiny models" / "tiny" / "1", precisions=("int8",))
    settings = RuntimeSettings(device="cuda")
    with pytest.raises(ConfigError, match="only int8") as raised:
        open_step_model(bundle, settings)

    words = shlex.split(raised.value.expected.partition("with: ")[2])
    assert words[:3] == ["dragoman", "export", "convert"]
    assert main(words[2:]) == 0

    converted = open_bundle(tmp_path / "fp16" / "tiny" / "1")
    assert place(converted, settings, find_cuda_fault=lambda _: None).precision == "fp16"
    with pytest.raises(ConfigError, match="GPU 0 is on fire"):
        place(converted, settings, find_cuda_fault=lambda index: f"GPU {index} is on fire")
    assert place(converted, RuntimeSettings(device="cpu")).precision == "int8"


@pytest.mark.parametrize(
    ("source", "output", "flags", "message"),
    [
        ("tiny", "tiny", (), "tiny already exists"),
        ("tiny", "new", ("--precision", "fp32"), "already has fp32: fp32, int8"),
        (
            "run",
            "new",
            (),
            "run': expected a bundle; export a checkpoint with `dragoman export bundle --precisions fp16`",
        ),
    ],
)
def test_invalid_conversion_is_rejected(
    tmp_path: Path,
    source: str,
    output: str,
    flags: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build_tiny_bundle(tmp_path / "tiny")

    assert convert(tmp_path / source, tmp_path / output, *flags) == 1

    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_weight_out_of_the_range_of_fp16_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("fp32",))
    weights = bundle.directory / "weights.fp32.bin"
    np.memmap(weights, np.float32, "r+")[:] = 7e4
    path = bundle.directory / MANIFEST_NAME
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["files"][weights.name] = file_entry(weights).model_dump()
    path.write_text(json.dumps(manifest), encoding="utf-8")

    assert convert(bundle.directory, tmp_path / "new") == 1

    assert "has a weight of magnitude 70000: fp16 has at most 65504" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
