from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.running_server import RunningServer, running_server
from tests.tiny_bundle import build_tiny_bundle


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one model, tiny/1, from English to German."""
    return _models(tmp_path_factory, "1")


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with tiny/1 and tiny/2."""
    return _models(tmp_path_factory, "1", "2")


@pytest.fixture
async def server(tiny_model: Path) -> AsyncIterator[RunningServer]:
    """A ready server with one model."""
    async with running_server(tiny_model) as server:
        yield server


@pytest.fixture(scope="module")
async def shared_server(tiny_model: Path) -> AsyncIterator[RunningServer]:
    """A ready server with one model for tests that change no state of it."""
    async with running_server(tiny_model) as server:
        yield server


def _models(tmp_path_factory: pytest.TempPathFactory, *versions: str) -> Path:
    directory = tmp_path_factory.mktemp("models")
    (directory / "tiny").mkdir()
    for version in versions:
        build_tiny_bundle(directory / "tiny" / version, version=version, precisions=("fp32",))
    return directory
