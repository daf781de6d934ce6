import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def default_hangup() -> Iterator[None]:
    """Let servers get SIGHUP, even if the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
