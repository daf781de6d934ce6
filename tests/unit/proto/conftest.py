from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.proto.scripted_server import BLOCKING_ADMINS, BLOCKING_CLIENTS, ScriptedService, running


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
def connect(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Both kinds of translation clients, called in the same way."""
    return BLOCKING_CLIENTS[request.param]


@pytest.fixture(params=["sync", "async"])
def connect_admin(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Both kinds of admin clients, called in the same way."""
    return BLOCKING_ADMINS[request.param]
