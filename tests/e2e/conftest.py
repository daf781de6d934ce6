import os
import shlex
from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.containers import Engine
from tests.e2e.tools import DEPLOY, run, run_or_skip

_SCRIPT: Final = DEPLOY / "ci" / "engine.sh"


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A container engine with the CPU image, started unless one runs; skip the test if none is available."""
    is_ours = run(_SCRIPT, "env", is_checked=False).returncode != 0
    lines = run_or_skip(_SCRIPT, "image").splitlines()
    exports = dict(word.split("=", 1) for line in lines for word in shlex.split(line)[1:])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
    try:
        yield Engine(
            client=exports["DRAGOMAN_DOCKER"],
            image=exports["DRAGOMAN_IMAGE"],
            base_image=exports["DRAGOMAN_BASE_IMAGE"],
            environment={**inherited, "DOCKER_HOST": exports["DOCKER_HOST"], "DOCKER_BUILDKIT": "1"},
        )
    finally:
        if is_ours:
            run(_SCRIPT, "stop")
