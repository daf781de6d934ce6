"""A running scripted service and the address it listens on."""

from collections.abc import Iterator

import pytest

from tests.unit.proto.scripted_server import ScriptedService, running


@pytest.fixture
def service() -> ScriptedService:
    """The script and the log of the server."""
    return ScriptedService()


@pytest.fixture
def target(service: ScriptedService) -> Iterator[str]:
    """Address of a server that plays `service`."""
    with running(service) as address:
        yield address
