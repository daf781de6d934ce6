"""Prometheus' API: what Grafana asks, and what its own pages show."""

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_TIMEOUT_S: Final = 30.0


class QueryError(Exception):
    """Prometheus refused a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a panel."""

    labels: dict[str, str]
    points: Sequence[tuple[float, float]]
    """Unix time and value; none that is no number."""


class Prometheus:
    """Asks a server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def at(self, expr: str, time_s: float) -> list[Series]:
        """Return the series of an expression at one moment; QueryError if it is wrong."""
        found = self._post("query", query=expr, time=f"{time_s:.3f}")
        if found["resultType"] == "scalar":
            return _series([{"metric": {}, "values": [found["result"]]}])
        return _series([{"metric": each["metric"], "values": [each["value"]]} for each in found["result"]])

    def over(self, expr: str, *, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """Return the series of an expression over a time; QueryError if it is wrong."""
        times = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        return _series(self._post("query_range", query=expr, **times)["result"])

    def num_exemplars(self, expr: str, *, start_s: float, end_s: float) -> int:
        """Return how many points of an expression's histograms lead to a trace."""
        times = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}"}
        found = self._post("query_exemplars", query=expr, **times)
        return sum("trace_id" in exemplar["labels"] for series in found for exemplar in series["exemplars"])

    def label_values(self, label: str, series: str) -> list[str]:
        """Return the values that a label of some series has."""
        found: list[str] = self._get(f"label/{label}/values?{urllib.parse.urlencode({'match[]': series})}")
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules with their state and health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> dict[str, list[str]]:
        """Return the health of the targets of each job."""
        health: dict[str, list[str]] = {}
        for target in self._get("targets")["activeTargets"]:
            health.setdefault(target["labels"]["job"], []).append(target["health"])
        return health

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"}

    def _get(self, path: str) -> Any:
        return self._ask(urllib.request.Request(f"{self._url}/api/v1/{path}"))  # noqa: S310 - http, ours

    def _post(self, path: str, **form: str) -> Any:
        body = urllib.parse.urlencode(form).encode()
        return self._ask(urllib.request.Request(f"{self._url}/api/v1/{path}", body))  # noqa: S310 - http, ours

    def _ask(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 - http, ours
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise QueryError(error.read().decode()) from error


def _series(result: Sequence[Any]) -> list[Series]:
    found = (
        Series(
            labels=each["metric"],
            points=[(at_s, number) for at_s, text in each["values"] if math.isfinite(number := float(text))],
        )
        for each in result
    )
    return [series for series in found if series.points]
