"""Prometheus' HTTP API, a receiver of alerts, and the shipped monitoring configuration adapted to one machine."""

import json
import math
import re
import shutil
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

import yaml

from tests.e2e.tools import DEPLOY, get

PROMETHEUS: Final = DEPLOY / "prometheus"
ALERTMANAGER: Final = DEPLOY / "alertmanager" / "alertmanager.yml"
RULE_FILES: Final = sorted((PROMETHEUS / "rules").glob("*.yaml"))
DASHBOARDS: Final[Mapping[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
}
_INTERVAL: Final = "1s"  # between two scrapes
_VARIABLE: Final = re.compile(r"label_values\((?P<series>.+), (?P<label>\w+)\)")


@dataclass(frozen=True, slots=True)
class Prometheus:
    """The HTTP API of a Prometheus server; an invalid query fails the test."""

    url: str

    def fetch(self, path: str, **parameters: object) -> Any:
        """Return the data of a response of the API."""
        status, body = get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        assert status == 200, (parameters, body)
        return json.loads(body)["data"]

    def query(self, expr: str, time_s: float) -> list[dict[str, str]]:
        """Return the labels of each series with a finite value at one moment."""
        answer = self.fetch("query", query=expr, time=time_s)
        if answer["resultType"] == "scalar":
            return [{}]
        return [series["metric"] for series in answer["result"] if math.isfinite(float(series["value"][1]))]

    def query_range(self, expr: str, start_s: float, end_s: float) -> list[dict[str, str]]:
        """Return the labels of each series with a finite value at some second."""
        answer = self.fetch("query_range", query=expr, start=start_s, end=end_s, step=1)
        return [
            series["metric"]
            for series in answer["result"]
            if any(math.isfinite(float(value)) for _, value in series["values"])
        ]

    def has_exemplars(self, expr: str, start_s: float, end_s: float) -> bool:
        """Return whether exemplars link the histograms of an expression to traces."""
        answer = self.fetch("query_exemplars", query=expr, start=start_s, end=end_s)
        return any("trace_id" in exemplar["labels"] for series in answer for exemplar in series["exemplars"])

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules with their state and health."""
        return [rule for group in self.fetch("rules")["groups"] for rule in group["rules"]]

    def jobs_down(self) -> set[str]:
        """Return the jobs with a target that is not scraped."""
        targets = self.fetch("targets")["activeTargets"]
        return {target["labels"]["job"] for target in targets if target["health"] != "up"}


class AlertReceiver(ThreadingHTTPServer):
    """A webhook on a free port that stores the firing alerts that Alertmanager sends, by name."""

    def __init__(self) -> None:
        alerts: dict[str, dict[str, Any]] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"]
                alerts.update(
                    {alert["labels"]["alertname"]: alert for alert in received if alert["status"] == "firing"}
                )
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Log nothing."""

        super().__init__(("127.0.0.1", 0), Handler)
        self.alerts = alerts
        self.url = f"http://127.0.0.1:{self.server_port}/alerts"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, name="alert-receiver", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


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
    for name, board in DASHBOARDS.items():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                match = _VARIABLE.fullmatch(variable["definition"])
                assert match, variable["definition"]
                options = label_values(match["label"], substitute(match["series"], values))
                assert options, f"variable {variable['name']} of {name} has no values"
                values[variable["name"]] = "|".join(options)
    return values


def substitute(expr: str, variables: Mapping[str, str]) -> str:
    """Return an expression of a dashboard with its variables replaced."""
    for name, value in variables.items():
        expr = re.sub(rf"\${name}\b", value, expr)
    return expr


def panel_targets() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the definition of each query of a panel."""
    for name, board in DASHBOARDS.items():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{name}, {panel['title']}: {target['expr']}", target


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


def _rules_in(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [rule for group in content["groups"] for rule in group["rules"]]


def _load(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def _dump(content: Any, path: Path) -> Path:
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path
