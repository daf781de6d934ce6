import json
from pathlib import Path

import onnx_ir as ir
import pytest

from dragoman_export.__main__ import main
from dragoman_export.onnx_export.quantize import ProductKind
from dragoman_service.bundle.files import MANIFEST_NAME, Bundle, file_entry, load_manifest, open_bundle
from tests.tiny_bundle import build_tiny_bundle


def aged(bundle: Bundle) -> Path:
    """Downgrade a bundle to version 2 of the format: small arrays are only in the graphs."""
    path = bundle.directory / MANIFEST_NAME
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["schema_version"] = 2
    for files in manifest["precisions"].values():
        if described := files.pop("int8_weights"):
            (bundle.directory / described).unlink()
            del manifest["files"][described]
        weights = bundle.directory / files["weights"]
        with weights.open("r+b") as file:
            file.truncate(max(_ends(bundle.directory / files[graph]) for graph in ("encoder", "decoder", "attention")))
        manifest["files"][weights.name] = file_entry(weights).model_dump()
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return bundle.directory


def _ends(graph: Path) -> int:
    tensors = [value.const_value for value in ir.load(graph).graph.initializers.values()]
    external = [tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor)]
    return max((tensor.offset or 0) + (tensor.length or 0) for tensor in external)


def upgrade(bundle: Path, output: Path) -> int:
    return main(["upgrade", "--bundle", str(bundle), "--output", str(output)])


@pytest.mark.parametrize("is_calibrated", [False, True])
def test_upgraded_bundle_equals_a_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_calibrated: bool
) -> None:
    today = build_tiny_bundle(tmp_path / "today", is_calibrated=is_calibrated)
    old = aged(build_tiny_bundle(tmp_path / "old", is_calibrated=is_calibrated))
    (old / "README.md").write_text("card", encoding="utf-8")

    status = upgrade(old, tmp_path / "new")

    assert status == 0
    assert "with int8 weights described: int8" in capsys.readouterr().out
    assert open_bundle(tmp_path / "new").manifest == today.manifest
    assert (tmp_path / "new" / "README.md").read_text(encoding="utf-8") == "card"
    assert load_manifest(old).schema_version == 2
    open_bundle(old)


def test_current_bundle_is_not_upgraded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_tiny_bundle(tmp_path / "tiny")

    status = upgrade(tmp_path / "tiny", tmp_path / "new")

    assert status == 1
    assert "tiny already describes its int8 weights: int8" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("precisions", [("fp32",), ("int8",)])
def test_bundle_without_int8_decoder_is_not_upgraded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], precisions: tuple[str, ...]
) -> None:
    build_tiny_bundle(tmp_path / "tiny", precisions=precisions, kept=frozenset({ProductKind.FEED_FORWARD}))
    before = set(tmp_path.iterdir())

    status = upgrade(tmp_path / "tiny", tmp_path / "new")

    assert status == 1
    assert "tiny has no decoder" in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == before


def test_existing_directory_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = aged(build_tiny_bundle(tmp_path / "tiny"))

    status = upgrade(old, old)

    assert status == 1
    assert "tiny already exists" in capsys.readouterr().err
    assert load_manifest(old).schema_version == 2


def test_damaged_bundle_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = aged(build_tiny_bundle(tmp_path / "tiny"))
    (old / "weights.int8.bin").write_bytes(b"")

    status = upgrade(old, tmp_path / "new")

    assert status == 1
    assert "weights.int8.bin: size in bytes is 0" in capsys.readouterr().err
