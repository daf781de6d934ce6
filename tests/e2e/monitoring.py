"""Prometheus' HTTP API, a receiver of alerts, and the shipped monitoring configuration adapted to one machine."""

import json
import math
import re
import shutil
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

import yaml

from tests.e2e.tools import DEPLOY

PROMETHEUS: Final = DEPLOY / "prometheus"
ALERTMANAGER: Final = DEPLOY / "alertmanager" / "alertmanager.yml"
RULE_FILES: Final = sorted((PROMETHEUS / "rules").glob("*.yaml"))
_INTERVAL: Final = "1s"  # between two scrapes
_VARIABLE: Final = re.compile(r"label_values\((?P<series>.+), (?P<label>\w+)\)")


class Prometheus:
    """A Prometheus server; an invalid query raises HTTPError."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expr: str, time_s: float) -> list[dict[str, str]]:
        """Return the labels of each series with a finite value at one moment."""
        answer = self._get("query", query=expr, time=time_s)
        if answer["resultType"] == "scalar":
            return [{}]
        return [series["metric"] for series in answer["result"] if math.isfinite(float(series["value"][1]))]

    def query_range(self, expr: str, start_s: float, end_s: float) -> list[dict[str, str]]:
        """Return the labels of each series with a finite value at some second."""
        answer = self._get("query_range", query=expr, start=start_s, end=end_s, step=1)
        return [
            series["metric"]
            for series in answer["result"]
            if any(math.isfinite(float(value)) for _, value in series["values"])
        ]

    def num_exemplars(self, expr: str, start_s: float, end_s: float) -> int:
        """Return the number of exemplars that link the histograms of an expression to traces."""
        answer = self._get("query_exemplars", query=expr, start=start_s, end=end_s)
        return sum("trace_id" in exemplar["labels"] for series in answer for exemplar in series["exemplars"])

    def label_values(self, label: str, series: str) -> list[str]:
        """Return the values of a label of matching series."""
        return list(self._get(f"label/{label}/values", **{"match[]": series}))

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules with their state and health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def jobs_down(self) -> list[str]:
        """Return the jobs with a target that is not scraped."""
        targets = self._get("targets")["activeTargets"]
        return sorted({target["labels"]["job"] for target in targets if target["health"] != "up"})

    def firing(self) -> set[str]:
        """Return the names of the firing alerts."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"}

    def _get(self, path: str, **parameters: object) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - http, to ourselves
            return json.load(response)["data"]


class AlertReceiver:
    """A webhook on a free port that stores the alerts that Alertmanager sends."""

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
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts"

    def wait_for(self, name: str, *, timeout_s: float) -> dict[str, Any] | None:
        """Wait for a firing alert with this name; return None if it does not arrive in time."""
        with self._changed:
            return self._changed.wait_for(partial(self._firing, name), timeout_s)

    def names(self) -> set[str]:
        """Return the names of all received alerts."""
        with self._changed:
            return {alert["labels"]["alertname"] for alert in self._alerts}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="alert-receiver", daemon=True).start()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelQuery:
    """One expression of a dashboard panel, with every variable replaced."""

    board: str
    panel: str
    expr: str
    legend: str
    is_instant: bool
    has_exemplars: bool

    @property
    def legend_labels(self) -> set[str]:
        """Labels that the legend shows."""
        return set(re.findall(r"{{(\w+)}}", self.legend))


def rules() -> list[dict[str, Any]]:
    """Return all shipped rules."""
    return [rule for path in RULE_FILES for rule in _rules_in(_load(path))]


def choose_variables(rate_interval: str, label_values: Callable[[str, str], Sequence[str]]) -> dict[str, str]:
    """Return a pattern for each variable of the dashboards that selects all its values.

    Args:
        rate_interval: range of rates, such as `15s`.
        label_values: returns the values of a label of matching series.
    """
    values = {"__rate_interval": rate_interval}
    for board, content in _dashboards():
        for variable in content["templating"]["list"]:
            if variable["type"] == "query":
                match = _VARIABLE.fullmatch(variable["definition"])
                assert match, variable["definition"]
                options = label_values(match["label"], _substitute(match["series"], values))
                assert options, f"variable {variable['name']} of {board} has no values"
                values[variable["name"]] = "|".join(options)
    return values


def panel_queries(variables: Mapping[str, str]) -> list[PanelQuery]:
    """Return the expressions of all panels of all dashboards."""
    return [
        PanelQuery(
            board=board,
            panel=panel["title"],
            expr=_substitute(target["expr"], variables),
            legend=target["legendFormat"],
            is_instant=target.get("instant", False),
            has_exemplars=target.get("exemplar", False),
        )
        for board, content in _dashboards()
        for panel in content["panels"]
        for target in panel.get("targets", ())
    ]


def annotations(variables: Mapping[str, str]) -> list[str]:
    """Return the expressions that mark events in the panels."""
    return [
        _substitute(mark["expr"], variables) for _, content in _dashboards() for mark in content["annotations"]["list"]
    ]


def write_prometheus(
    folder: Path, *, own_port: int, targets: Mapping[str, Sequence[str]], hold_times: Mapping[str, str]
) -> Path:
    """Write the shipped configuration and rules with local targets; return the path of the configuration.

    Args:
        folder: is created.
        own_port: port of Prometheus.
        targets: `host:port` by job, `alertmanager` among them; they replace the DNS lookups.
        hold_times: by alert, the time for which its condition must hold.
    """
    shutil.copytree(PROMETHEUS, folder)
    (folder / "targets").mkdir()
    config = _load(PROMETHEUS / "prometheus.yml")
    config["global"] = dict.fromkeys(config["global"], _INTERVAL)
    replicas, envoy, itself = config["scrape_configs"]
    (alertmanager,) = config["alerting"]["alertmanagers"]
    for name, job in (("dragoman", replicas), ("envoy", envoy), ("alertmanager", alertmanager)):
        del job["dns_sd_configs"]
        (folder / "targets" / f"{name}.json").write_text(json.dumps([{"targets": list(targets[name])}]))
    itself["static_configs"] = [{"targets": [f"127.0.0.1:{own_port}"]}]
    changed = set()
    for path in RULE_FILES:
        content = _load(path)
        for rule in _rules_in(content):
            if (name := rule.get("alert", "")) in hold_times:
                rule["for"] = hold_times[name]
                changed.add(name)
        _dump(content, folder / "rules" / path.name)
    assert changed == set(hold_times), "an alert does not exist"
    return _dump(config, folder / "prometheus.yml")


def write_alertmanager(path: Path, *, webhook: str) -> Path:
    """Write the shipped configuration with short waits, and the URL of the webhook to a file; return the former."""
    config = _load(ALERTMANAGER)
    for route in (config["route"], *config["route"]["routes"]):
        route["group_wait"] = _INTERVAL
    ((hook,),) = [receiver["webhook_configs"] for receiver in config["receivers"]]
    assert hook["url_file"].startswith("/run/secrets/")
    hook["url_file"] = str(path.with_suffix(".url"))
    path.with_suffix(".url").write_text(webhook, encoding="utf-8")
    return _dump(config, path)


def _substitute(expr: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        expr = re.sub(rf"\${name}\b", value, expr)
    return expr


def _dashboards() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        yield path.stem, json.loads(path.read_text(encoding="utf-8"))


def _rules_in(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [rule for group in content["groups"] for rule in group["rules"]]


def _load(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def _dump(content: Any, path: Path) -> Path:
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path
