from pathlib import Path

import pytest

from tests.tiny_bundle import build_tiny_bundle


@pytest.fixture(scope="session")
def fp32_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a bundle, which tests do not change."""
    return build_tiny_bundle(tmp_path_factory.mktemp("shared") / "fp32", precisions=("fp32",)).directory
