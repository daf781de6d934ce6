import json
from pathlib import Path

import pytest

from loadtests.stress.server import Versions, complaints, only_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    directory = tmp_path / "shipped"
    directory.mkdir()
    (directory / "manifest.json").write_text(json.dumps({"name": "m", "version": "1", "licence": "CC0"}))
    (directory / "weights.bin").write_bytes(b"weights")
    return directory


def test_a_version_has_the_files_of_the_bundle_and_a_manifest_of_its_own(tmp_path: Path, bundle: Path) -> None:
    versions = Versions(tmp_path / "models", bundle)

    versions.add(7)

    assert versions.full_name(7) == "m/7"
    manifest = json.loads((tmp_path / "models" / "m" / "7" / "manifest.json").read_text())
    assert manifest == {"name": "m", "version": "7", "licence": "CC0"}
    assert (tmp_path / "models" / "m" / "7" / "weights.bin").read_bytes() == b"weights"
    assert json.loads((bundle / "manifest.json").read_text())["version"] == "1"


def test_a_broken_version_lacks_the_end_of_its_weights_and_the_bundle_does_not(tmp_path: Path, bundle: Path) -> None:
    Versions(tmp_path / "models", bundle).add(7, is_broken=True)

    assert (tmp_path / "models" / "m" / "7" / "weights.bin").read_bytes() == b"weight"
    assert (bundle / "weights.bin").read_bytes() == b"weights"


def test_a_version_that_is_removed_leaves_nothing(tmp_path: Path, bundle: Path) -> None:
    versions = Versions(tmp_path / "models", bundle)
    versions.add(7)

    versions.remove(7)

    assert list((tmp_path / "models" / "m").iterdir()) == []
    assert (bundle / "weights.bin").read_bytes() == b"weights"


def test_errors_and_what_is_no_record_are_complaints() -> None:
    lines = [
        '{"event": "request", "level": "info"}',
        '{"event": "sentence splitter failed", "level": "warning"}',
        "",
        '{"event": "request failed", "level": "error"}',
        "Traceback (most recent call last):",
        "7",
    ]

    assert complaints(f"{line}\n" for line in lines) == lines[3:]


def test_a_directory_of_models_has_one_bundle_or_is_refused(tmp_path: Path, bundle: Path) -> None:
    versions = Versions(tmp_path / "models", bundle)
    versions.add(7)

    assert only_bundle(tmp_path / "models") == tmp_path / "models" / "m" / "7"
    versions.add(8)
    with pytest.raises(ValueError, match="expected one bundle MODEL/VERSION, found 2"):
        only_bundle(tmp_path / "models")
