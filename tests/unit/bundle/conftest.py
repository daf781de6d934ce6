from pathlib import Path

import pytest

from tests.unit.bundle.bundle_files import FILES, MORE_FILES, manifest_fields, write_manifest


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, content in {**FILES, **MORE_FILES}.items():
        (tmp_path / name).write_bytes(content)
    write_manifest(tmp_path, manifest_fields(tmp_path))
    return tmp_path
