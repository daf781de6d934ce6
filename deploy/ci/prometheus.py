"""Prometheus' API as Grafana and its own pages use it, and the webhook that Alertmanager calls."""

import json
import math
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

_TIMEOUT_S: Final = 30.0
_STEP_S: Final = 1


class QueryError(Exception):
    """Prometheus rejects a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a panel."""

    labels: dict[str, str]
    points: Sequence[tuple[float, float]]
    """Unix time and finite value."""


class Prometheus:
    """A server; every method that takes an expression raises QueryError if it is wrong."""

    def __init__(self, url: str) -> None:
        self._url = url

    def at(self, expr: str, time_s: float) -> list[Series]:
        """Return the series of an expression at one moment."""
        found = self._get("query", query=expr, time=time_s)
        if found["resultType"] == "scalar":
            return _series([{"metric": {}, "values": [found["result"]]}])
        return _series([{"metric": each["metric"], "values": [each["value"]]} for each in found["result"]])

    def over(self, expr: str, start_s: float, end_s: float) -> list[Series]:
        """Return the series of an expression, second by second."""
        return _series(self._get("query_range", query=expr, start=start_s, end=end_s, step=_STEP_S)["result"])

    def num_exemplars(self, expr: str, start_s: float, end_s: float) -> int:
        """Return how many points of an expression's histograms lead to a trace."""
        found = self._get("query_exemplars", query=expr, start=start_s, end=end_s)
        return sum("trace_id" in exemplar["labels"] for series in found for exemplar in series["exemplars"])

    def label_values(self, label: str, series: str) -> list[str]:
        """Return the values that a label of some series has."""
        return list(self._get(f"label/{label}/values", **{"match[]": series}))

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules with their state and health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def jobs_down(self) -> list[str]:
        """Return the jobs that have a target that is not scraped."""
        targets = self._get("targets")["activeTargets"]
        return sorted({target["labels"]["job"] for target in targets if target["health"] != "up"})

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"}

    def _get(self, path: str, **parameters: object) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310 - http, ours
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise QueryError(error.read().decode()) from error


class RequestReader:
    """A webhook on a free port of loopback, from within `with`; keeps what Alertmanager sends."""

    def __init__(self) -> None:
        self._alerts: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        receive = self._receive

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receive(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Where to send alerts."""
        return f"http://127.0.0.1:{self._server.server_port}/alerts"

    def wait_for(self, name: str, *, timeout_s: float) -> dict[str, Any] | None:
        """Return a firing alert of this name as soon as it has come; None if it does not come in time."""
        with self._changed:
            return self._changed.wait_for(partial(self._firing, name), timeout_s)

    def names(self) -> set[str]:
        """Return the names of all alerts that have come."""
        with self._changed:
            return {alert["labels"]["alertname"] for alert in self._alerts}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _firing(self, name: str) -> dict[str, Any] | None:
        matching = (alert for alert in self._alerts if alert["labels"]["alertname"] == name)
        return next((alert for alert in matching if alert["status"] == "firing"), None)

    def _receive(self, alerts: list[dict[str, Any]]) -> None:
        with self._changed:
            self._alerts.extend(alerts)
            self._changed.notify_all()


def _series(result: Sequence[Any]) -> list[Series]:
    """Return the series that have finite values."""
    found = []
    for each in result:
        points = [(time_s, value) for time_s, text in each["values"] if math.isfinite(value := float(text))]
        if points:
            found.append(Series(labels=each["metric"], points=points))
    return found
