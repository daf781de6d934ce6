import re
from typing import Any

import pytest
import yaml

from tests.unit.deploy.promql import DEPLOY, RULES, catalogue, faults, rules

ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
PAGE = "docs/operations/runbook.md"
KNOWN = catalogue()


def cases() -> list[dict[str, Any]]:
    files = sorted((RULES / "tests").glob("*.yaml"))
    tests = [test for path in files for test in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]]
    return [case for test in tests for case in test["alert_rule_test"]]


def loaded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_rule_asks_for_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    assert faults(rule["expr"], KNOWN) == []


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_says_how_bad_it_is_and_where_to_read_on(name: str) -> None:
    rule = ALERTS[name]

    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert {"summary", "description", "runbook_url"} == set(rule["annotations"])
    assert rule["annotations"]["runbook_url"] == f"{PAGE}#{name.lower()}"


def test_the_runbook_has_a_chapter_for_each_alert_and_no_other() -> None:
    page = (DEPLOY.parent / PAGE).read_text(encoding="utf-8")

    assert re.findall(r"^## (Dragoman\w+)$", page, re.MULTILINE) == list(ALERTS)


def test_every_alert_is_tested_when_it_must_speak_and_when_it_must_be_silent() -> None:
    speaks = {case["alertname"] for case in cases() if case["exp_alerts"]}
    is_silent = {case["alertname"] for case in cases() if not case["exp_alerts"]}

    assert speaks == is_silent == set(ALERTS)


def test_jobs_that_rules_name_are_scraped() -> None:
    named = set(re.findall(r'job="(\w+)"', " ".join(rule["expr"] for rule in rules())))

    assert named <= {job["job_name"] for job in loaded("prometheus/prometheus.yml")["scrape_configs"]}


def test_what_alertmanager_holds_back_exists() -> None:
    matchers = [
        matcher
        for rule in loaded("alertmanager/alertmanager.yml")["inhibit_rules"]
        for matcher in (*rule["source_matchers"], *rule["target_matchers"])
    ]
    named = {match[1] for matcher in matchers if (match := re.fullmatch(r'alertname!?="(\w+)"', matcher))}

    assert named
    assert named <= set(ALERTS)


def test_no_address_of_a_webhook_is_in_the_repository() -> None:
    (receiver,) = loaded("alertmanager/alertmanager.yml")["receivers"]

    assert all("url" not in hook and hook["url_file"] for hook in receiver["webhook_configs"])
