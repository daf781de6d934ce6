"""A comparison under load as JSON: every run of both servers, every set-up tried, the machine, the command."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from loadtests.peers.under_load.results import MAX_LATENCY_RATIO, MIN_CAPACITY_RATIO, Rivalry, reached

RESULTS_NAME: Final = "load.json"


def record_of(rivalries: Sequence[Rivalry], machine: dict[str, Any], command: str) -> dict[str, Any]:
    """Return everything measured as JSON-ready values."""
    return {
        "machine": machine,
        "command": command,
        "targets": {"max_latency_ratio": MAX_LATENCY_RATIO, "min_capacity_ratio": MIN_CAPACITY_RATIO},
        "rivalries": [_rivalry(rivalry) for rivalry in rivalries],
    }


def _rivalry(rivalry: Rivalry) -> dict[str, Any]:
    fields = asdict(rivalry)
    for point, values in zip(rivalry.points, fields["points"], strict=True):
        values |= {"p50_ratio": point.p50_ratio, "p95_ratio": point.p95_ratio, "reached": reached(point, rivalry)}
    return {**fields, "capacity_ratio": rivalry.capacity_ratio, "agrees": rivalry.agreement.holds}
