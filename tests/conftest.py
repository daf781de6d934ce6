"""Configuration of all tests: Hypothesis, one PyTorch thread per worker, the checkout on the path of children."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Read when PyTorch is imported. Each worker of pytest-xdist would have a thread for every core, and they wait for each
# other by spinning: tests of training took four times the processor time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Programs that tests start in other directories import `tests` and `loadtests`.
_CHECKOUT = Path(__file__).resolve().parents[1]
_PATHS = (str(_CHECKOUT), os.environ.get("PYTHONPATH", ""))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATHS))

# A busy machine must not fail a property.
settings.register_profile(
    "dragoman",
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dragoman")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Trace no property tests for the coverage: tracing doubles their time, and other tests run the same lines."""
    for item in items:
        if item.path.parent.name in {"property", "fuzz"}:
            item.add_marker("no_cover")


def pytest_configure(config: pytest.Config) -> None:
    """Report why `pytest -m gpu` has run no test."""
    if config.option.markexpr == "gpu":
        config.option.reportchars += "s"
