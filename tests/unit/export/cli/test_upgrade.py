import json
from pathlib import Path

import onnx_ir as ir
import pytest

from dragoman_export.__main__ import main
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


@pytest.mark.parametrize("is_calibrated", [False, True])
def test_upgraded_bundle_equals_a_new_one(tmp_path: Path, *, is_calibrated: bool) -> None:
    today = build_tiny_bundle(tmp_path / "today", is_calibrated=is_calibrated)
    old = aged(build_tiny_bundle(tmp_path / "old", is_calibrated=is_calibrated))
    (old / "README.md").write_text("card", encoding="utf-8")

    assert main(["upgrade", "--bundle", str(old), "--output", str(tmp_path / "new")]) == 0
    assert open_bundle(tmp_path / "new").manifest == today.manifest
    assert (tmp_path / "new" / "README.md").read_text(encoding="utf-8") == "card"
    assert load_manifest(old).schema_version == 2
    open_bundle(old)


@pytest.mark.parametrize(
    ("output", "weights", "message"),
    [("tiny", None, "tiny already exists"), ("new", b"", "weights.int8.bin: size in bytes is 0")],
)
def test_invalid_paths_are_rejected(
    tmp_path: Path, output: str, weights: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old = aged(build_tiny_bundle(tmp_path / "tiny"))
    if weights is not None:
        (old / "weights.int8.bin").write_bytes(weights)

    assert main(["upgrade", "--bundle", str(old), "--output", str(tmp_path / output)]) == 1

    assert message in capsys.readouterr().err
    assert load_manifest(old).schema_version == 2
    assert list(tmp_path.iterdir()) == [old]
