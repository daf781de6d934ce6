from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.proto.scripted_server import BLOCKING_ADMINS, BLOCKING_CLIENTS, Connect, ScriptedService, running


@pytest.fixture
def service() -> ScriptedService:
    """Script and recorded calls of the server."""
    return ScriptedService()


@pytest.fixture
def target(service: ScriptedService) -> Iterator[str]:
    """Address of a server that plays `service`."""
    with running(service) as address:
        yield address


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Both kinds of translation clients, called in the same way."""
    return BLOCKING_CLIENTS[request.param]


@pytest.fixture
def client(target: str, connect: Connect) -> Iterator[Any]:
    """A client of the server, of both kinds."""
    with connect(target) as client:
        yield client


@pytest.fixture(params=["sync", "async"])
def admin(target: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client that manages the models of the server, of both kinds."""
    with BLOCKING_ADMINS[request.param](target) as admin:
        yield admin
