from collections.abc import Iterator

import pytest

from tests.e2e.containers import Engine, running_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with running_engine() as engine:
        yield engine
