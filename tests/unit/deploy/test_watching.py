import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.ci import shipped
from deploy.ci.prometheus import RequestReader

TARGETS = {"dragoman": ["127.0.0.1:1"], "envoy": ["127.0.0.1:2"], "alertmanager": ["127.0.0.1:3"]}
ALERT = "DragomanRefusingCalls"


def written(folder: Path, **shortened: str) -> dict[str, Any]:
    path = shipped.write_prometheus(folder, own_port=9, targets=TARGETS, shortened=shortened)
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def rules_in(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.yaml"))
    groups = [group for path in files for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def test_only_addresses_and_times_differ_from_what_ships(tmp_path: Path) -> None:
    config = written(tmp_path / "prometheus")
    ships = yaml.safe_load((shipped.PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))

    for job in (*ships["scrape_configs"][:2], *ships["alerting"]["alertmanagers"]):
        del job["dns_sd_configs"]
    ships["scrape_configs"][2]["static_configs"] = [{"targets": ["127.0.0.1:9"]}]
    assert {**config, "global": None} == {**ships, "global": None}
    assert set(config["global"]) == set(ships["global"])


def test_only_the_wait_of_the_alert_differs_from_the_rules_that_ship(tmp_path: Path) -> None:
    written(tmp_path / "prometheus", **{ALERT: "2s"})

    pairs = zip(rules_in(tmp_path / "prometheus" / "rules"), shipped.rules(), strict=True)
    changed = [(rule, ships) for rule, ships in pairs if rule != ships]
    assert [ships["alert"] for _, ships in changed] == [ALERT]
    assert changed[0][0] == {**changed[0][1], "for": "2s"}


def test_an_alert_that_does_not_exist_is_not_shortened(tmp_path: Path) -> None:
    with pytest.raises(shipped.ShippedConfigError, match="Nothing"):
        written(tmp_path / "prometheus", Nothing="1s")


def test_the_url_of_the_webhook_goes_into_a_file(tmp_path: Path) -> None:
    path = shipped.write_alertmanager(tmp_path / "alertmanager.yml", webhook="http://127.0.0.1:1/x")
    hook = yaml.safe_load(path.read_text(encoding="utf-8"))["receivers"][0]["webhook_configs"][0]

    assert Path(hook["url_file"]).read_text(encoding="utf-8") == "http://127.0.0.1:1/x"


def test_variables_are_resolved_one_after_the_other() -> None:
    asked: list[str] = []

    def find(label: str, series: str) -> list[str]:
        asked.append(series)
        return [f"{label}-1", f"{label}-2"]

    values = shipped.choose_variables("15s", find)

    assert values["job"] == "job-1|job-2"
    assert 'dragoman_build_info{job=~"job-1|job-2"}' in asked
    assert not any("$" in query.expr for query in shipped.queries(values))


def test_a_variable_without_values_is_an_error() -> None:
    with pytest.raises(shipped.EmptyVariableError, match="job"):
        shipped.choose_variables("15s", lambda _label, _series: [])


def test_the_receiver_keeps_what_it_is_sent() -> None:
    alert = {"status": "firing", "labels": {"alertname": ALERT}}
    with RequestReader() as receiver:
        body = json.dumps({"alerts": [alert]}).encode()
        urllib.request.urlopen(receiver.url, body).close()  # noqa: S310 - http, ours

        assert receiver.wait_for(ALERT, timeout_s=5) == alert
        assert receiver.wait_for("Another", timeout_s=0) is None
