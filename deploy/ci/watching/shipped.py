"""The configuration that ships, with what a test on one machine must have otherwise: addresses and waits, no more.

Everything that is replaced must be where it is expected; else the test would be of something else than what ships.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

DEPLOY: Final = Path(__file__).resolve().parents[2]
PROMETHEUS: Final = DEPLOY / "prometheus"
ALERTMANAGER: Final = DEPLOY / "alertmanager" / "alertmanager.yml"

_EVERY: Final = "1s"


class ShippedConfigError(Exception):
    """A file is not as the test expects it."""


def write_prometheus(
    folder: Path, *, own_port: int, targets: Mapping[str, Sequence[str]], shortened: Mapping[str, str]
) -> Path:
    """Write Prometheus' files into a folder; return the configuration.

    Names are looked up nowhere: targets come from the files that the configuration reads beside DNS.

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
    config["global"] = {**config["global"], "scrape_interval": _EVERY, "scrape_timeout": _EVERY}
    config["global"]["evaluation_interval"] = _EVERY
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    for finder in (*config["alerting"]["alertmanagers"], *(jobs[job] for job in ("dragoman", "envoy"))):
        if not finder.pop("dns_sd_configs", None) or "file_sd_configs" not in finder:
            raise ShippedConfigError("prometheus.yml: targets must come from DNS and from files")
    jobs["prometheus"]["static_configs"] = [{"targets": [f"127.0.0.1:{own_port}"]}]
    _write_rules(folder / "rules", shortened)
    return _dump(config, folder / "prometheus.yml")


def write_alertmanager(path: Path, *, webhook: str) -> Path:
    """Write Alertmanager's configuration, and the file with the URL of the webhook beside it; return the former."""
    url_file = path.with_suffix(".url")
    url_file.write_text(webhook, encoding="utf-8")
    config = _load(ALERTMANAGER)
    for route in (config["route"], *config["route"]["routes"]):
        route["group_wait"] = _EVERY
    (receiver,) = config["receivers"]
    (hook,) = receiver["webhook_configs"]
    if not hook.get("url_file", "").startswith("/run/secrets/"):
        raise ShippedConfigError("alertmanager.yml: the webhook's URL must come from a secret")
    hook["url_file"] = str(url_file)
    return _dump(config, path)


def rule_files() -> list[Path]:
    """Return the files of rules that ship."""
    return sorted((PROMETHEUS / "rules").glob("*.yaml"))


def rules() -> list[dict[str, Any]]:
    """Return all rules that ship."""
    return [rule for path in rule_files() for group in _load(path)["groups"] for rule in group["rules"]]


def _write_rules(folder: Path, shortened: Mapping[str, str]) -> None:
    folder.mkdir()
    missing = set(shortened)
    for path in rule_files():
        content = _load(path)
        for rule in (rule for group in content["groups"] for rule in group["rules"]):
            if rule.get("alert") in shortened:
                missing.remove(rule["alert"])
                rule["for"] = shortened[rule["alert"]]
        _dump(content, folder / path.name)
    if missing:
        raise ShippedConfigError(f"no such alerts: {', '.join(sorted(missing))}")


def _load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def _dump(content: Mapping[str, Any], path: Path) -> Path:
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path
