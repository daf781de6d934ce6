"""What ships for monitoring: Prometheus, its rules and Alertmanager as one machine can run them; dashboards as queries.

Only addresses and waits are replaced, and each must be where it is expected: else the test would test something else.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

DEPLOY: Final = Path(__file__).resolve().parents[1]
PROMETHEUS: Final = DEPLOY / "prometheus"
ALERTMANAGER: Final = DEPLOY / "alertmanager" / "alertmanager.yml"

_INTERVAL: Final = "1s"
_INSTANT_KINDS: Final = frozenset({"stat", "table"})
_VARIABLE: Final = re.compile(r"label_values\((?P<series>.+), (?P<label>\w+)\)")


class ShippedConfigError(Exception):
    """A file is not as the test expects it."""


class EmptyVariableError(Exception):
    """A variable of a dashboard has no values to choose among."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelQuery:
    """One expression of a panel."""

    board: str
    """Name of its file."""
    panel: str
    """Title."""
    kind: str
    """Grafana's type of the panel."""
    expr: str
    """With every variable replaced."""
    legend: str
    unit: str
    has_exemplars: bool

    @property
    def is_instant(self) -> bool:
        """Whether one moment is asked for."""
        return self.kind in _INSTANT_KINDS

    @property
    def legend_labels(self) -> set[str]:
        """Labels that the legend shows."""
        return set(re.findall(r"{{(\w+)}}", self.legend))

    def __str__(self) -> str:
        """Return where it is, for messages."""
        return f"{self.board} / {self.panel}: {self.expr}"


def write_prometheus(
    folder: Path, *, own_port: int, targets: Mapping[str, Sequence[str]], shortened: Mapping[str, str]
) -> Path:
    """Write Prometheus' files into a folder; return the configuration.

    No name is looked up: targets come from the files that the configuration reads beside DNS.

    Args:
        folder: is made anew.
        own_port: of Prometheus.
        targets: `host:port` by job; `alertmanager` is one, too.
        shortened: by alert, for how long its condition must hold.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "targets").mkdir(parents=True)
    for job, addresses in targets.items():
        (folder / "targets" / f"{job}.json").write_text(json.dumps([{"targets": list(addresses)}]), encoding="utf-8")
    config = _load(PROMETHEUS / "prometheus.yml")
    config["global"] |= dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), _INTERVAL)
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    for finder in (*config["alerting"]["alertmanagers"], jobs["dragoman"], jobs["envoy"]):
        if not finder.pop("dns_sd_configs", None) or "file_sd_configs" not in finder:
            raise ShippedConfigError("prometheus.yml: targets must come from DNS and from files")
    jobs["prometheus"]["static_configs"] = [{"targets": [f"127.0.0.1:{own_port}"]}]
    _write_rules(folder / "rules", shortened)
    return _dump(config, folder / "prometheus.yml")


def write_alertmanager(path: Path, *, webhook: str) -> Path:
    """Write Alertmanager's configuration, and the file with the URL of the webhook beside it; return the former."""
    config = _load(ALERTMANAGER)
    for route in (config["route"], *config["route"]["routes"]):
        route["group_wait"] = _INTERVAL
    ((hook,),) = [receiver["webhook_configs"] for receiver in config["receivers"]]
    if not hook.get("url_file", "").startswith("/run/secrets/"):
        raise ShippedConfigError("alertmanager.yml: the webhook's URL must come from a secret")
    hook["url_file"] = str(path.with_suffix(".url"))
    path.with_suffix(".url").write_text(webhook, encoding="utf-8")
    return _dump(config, path)


def rule_files() -> list[Path]:
    """Return the files of rules that ship."""
    return sorted((PROMETHEUS / "rules").glob("*.yaml"))


def rules() -> list[dict[str, Any]]:
    """Return all rules that ship."""
    return [rule for path in rule_files() for rule in _rules_in(_load(path))]


def choose_variables(rate_interval: str, find: Callable[[str, str], Sequence[str]]) -> dict[str, str]:
    """Return the value of each variable of the dashboards, with everything chosen.

    Args:
        rate_interval: what rates are taken over.
        find: returns the values that a label of some series has.

    Raises:
        EmptyVariableError: if there is nothing to choose among.
    """
    values = {"__rate_interval": rate_interval}
    for board, content in _boards():
        for variable in content["templating"]["list"]:
            if variable["type"] != "query":
                continue
            match = _VARIABLE.fullmatch(variable["definition"])
            found = find(match["label"], _replaced(match["series"], values)) if match else ()
            if not found:
                raise EmptyVariableError(f"variable {variable['name']} of {board} has no values")
            values[variable["name"]] = "|".join(found)
    return values


def queries(variables: Mapping[str, str]) -> list[PanelQuery]:
    """Return what all panels of all dashboards ask."""
    return [
        PanelQuery(
            board=board,
            panel=panel["title"],
            kind=panel["type"],
            expr=_replaced(target["expr"], variables),
            legend=target["legendFormat"],
            unit=panel["fieldConfig"]["defaults"]["unit"],
            has_exemplars=target["exemplar"],
        )
        for board, content in _boards()
        for panel in content["panels"]
        for target in panel.get("targets", ())
    ]


def annotations(variables: Mapping[str, str]) -> list[str]:
    """Return what is marked in the panels of all dashboards."""
    return [_replaced(mark["expr"], variables) for _, content in _boards() for mark in content["annotations"]["list"]]


def _replaced(expr: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        expr = re.sub(rf"\${name}\b", value, expr)
    return expr


def _boards() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        yield path.stem, json.loads(path.read_text(encoding="utf-8"))


def _write_rules(folder: Path, shortened: Mapping[str, str]) -> None:
    folder.mkdir()
    missing = set(shortened)
    for path in rule_files():
        content = _load(path)
        for rule in _rules_in(content):
            if rule.get("alert") in shortened:
                missing.remove(rule["alert"])
                rule["for"] = shortened[rule["alert"]]
        _dump(content, folder / path.name)
    if missing:
        raise ShippedConfigError(f"no such alerts: {', '.join(sorted(missing))}")


def _rules_in(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [rule for group in content["groups"] for rule in group["rules"]]


def _load(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def _dump(content: Mapping[str, Any], path: Path) -> Path:
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path
