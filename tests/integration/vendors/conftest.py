from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from dragoman_service.security.api_keys import new_key
from tests.integration.running_server import RunningServer, http_client, running_server, write_callers

TBX = """<tbx><conceptEntry><langSec xml:lang="en"><term>file</term></langSec>
<langSec xml:lang="fr"><term>fichier</term></langSec></conceptEntry></tbx>"""


@pytest.fixture(scope="module")
async def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningServer]:
    """A server with all vendor APIs, the glossary `it` from English to German, and `both` with two directions."""
    directory = tmp_path_factory.mktemp("glossaries")
    (directory / "it.tsv").write_text("en\tde\nbicycle\tVelo\nDragoman\n")
    (directory / "both.tbx").write_text(TBX)
    settings = {"grpc__google_translation": True, "models__glossaries_directory": directory}
    async with running_server(tiny_model, **settings) as server:
        yield server


@pytest.fixture(scope="module")
async def http(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(server) as client:
        yield client


@pytest.fixture(scope="module")
def key() -> str:
    """The API key of the only caller of `guarded`."""
    return new_key()


@pytest.fixture(scope="module")
async def guarded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, key: str) -> AsyncIterator[RunningServer]:
    """A server with all vendor APIs that requires an API key."""
    callers = write_callers(tmp_path_factory.mktemp("callers"), {"shop": key})
    async with running_server(tiny_model, grpc__google_translation=True, access__callers_file=callers) as server:
        yield server
