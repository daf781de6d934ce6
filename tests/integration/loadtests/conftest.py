"""A server for load tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman_service.cli.server_process import ServerProcess
from tests.integration.real_process import START_S


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"DRAGOMAN_ACCESS__ALLOW_UNAUTHENTICATED": "true"}
    log = tmp_path_factory.mktemp("server") / "server.log"
    with ServerProcess("--models", str(tiny_model), log=log, environment=settings) as server:
        server.wait_until_ready(timeout_s=START_S)
        yield server
