"""Dashboards, rules and autoscalers query metrics and labels that exist; every alert is documented and tested."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, Histogram

from dragoman_service.observability.metrics import Metrics, observe_process

CHECKOUT = Path(__file__).resolve().parents[3]
DEPLOY = CHECKOUT / "deploy"
RULES = DEPLOY / "prometheus" / "rules"
COMPONENTS = DEPLOY / "kubernetes" / "components"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
RUNBOOK = "docs/operations/runbook.md"

TARGET_LABELS = frozenset({"job", "instance", "namespace", "pod"})
ENVOY_CLUSTER = TARGET_LABELS | {"envoy_cluster_name"}
OTHER_METRICS = {
    "up": TARGET_LABELS,
    "ALERTS": TARGET_LABELS | {"alertname", "alertstate", "severity", "slo"},
    "envoy_cluster_membership_healthy": ENVOY_CLUSTER,
    "envoy_cluster_membership_total": ENVOY_CLUSTER,
    "envoy_cluster_upstream_rq_total": ENVOY_CLUSTER,
    "envoy_cluster_upstream_rq_retry": ENVOY_CLUSTER,
    "envoy_http_downstream_cx_active": TARGET_LABELS | {"envoy_http_conn_manager_prefix"},
}


def load_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


GROUPS = [group for path in sorted(RULES.glob("*.yaml")) for group in load_yaml(path)["groups"]]
ALL_RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in ALL_RULES if "alert" in rule}
SCALED_OBJECT = load_yaml(COMPONENTS / "autoscaling-keda" / "scaled-object.yaml")
ADAPTER_RULES = load_yaml(COMPONENTS / "autoscaling-hpa" / "prometheus-adapter.yaml")["rules"]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the origin and the text of every PromQL expression in deploy/."""
    for rule in ALL_RULES:
        yield rule.get("alert") or rule["record"], rule["expr"]
    for path in DASHBOARDS:
        board = load_yaml(path)
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.name}: {panel['title']}", target["expr"]
        for annotation in board["annotations"]["list"]:
            yield f"{path.name}: {annotation['name']}", annotation["expr"]
        for variable in board["templating"]["list"]:
            if match := re.fullmatch(r"label_values\((.+), \w+\)", variable.get("definition", "")):
                yield f"{path.name}: ${variable['name']}", match[1]
    for trigger in SCALED_OBJECT["spec"]["triggers"]:
        yield f"KEDA: {trigger['name']}", trigger["metadata"]["query"]
    for rule in ADAPTER_RULES:
        yield rule["name"]["as"], rule["seriesQuery"]
        yield rule["name"]["as"], rule["metricsQuery"]


def known_metrics() -> Mapping[str, frozenset[str]]:
    """Return the labels of every metric: of the service, of its process, of other programs and of recording rules."""
    known = dict(OTHER_METRICS)
    for row in Metrics.TABLE.values():
        suffixes = ("_bucket", "_sum", "_count") if row.kind is Histogram else ("",)
        known |= {f"{row.exposed_name}{suffix}": TARGET_LABELS | {*row.labels} for suffix in suffixes}
        if row.kind is Histogram:
            known[f"{row.exposed_name}_bucket"] |= {"le"}
    observe_process(process := CollectorRegistry())
    known |= {
        sample.name: TARGET_LABELS | {*sample.labels} for family in process.collect() for sample in family.samples
    }
    # The name of a recording rule begins with its labels: level:metric:operation.
    records = [rule["record"] for rule in ALL_RULES if "record" in rule]
    return known | {name: frozenset(name.partition(":")[0].split("_")) for name in records}


KNOWN = known_metrics()


def faults(expr: str) -> list[str]:
    """Return unknown metrics and labels of an expression; ValueError if it is not PromQL."""
    for variable, value in (("$__rate_interval", "1m"), ("<<.LabelMatchers>>", 'job="a"'), ("<<.GroupBy>>", "job")):
        expr = expr.replace(variable, value)
    selectors, groupings = [], []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            selectors.append(node.vector_selector)
        elif isinstance(node, promql_parser.VectorSelector):
            selectors.append(node)
        elif isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            groupings.extend(node.modifier.labels)

    promql_parser.walk(promql_parser.parse(expr), visit)
    unknown = [f"no metric {selector.name}" for selector in selectors if selector.name not in KNOWN]
    labels = {label for selector in selectors for label in KNOWN.get(selector.name or "", ())}
    unknown += [
        f"{selector.name} has no label {matcher.name}"
        for selector in selectors
        for matcher in selector.matchers.matchers
        if matcher.name not in KNOWN.get(selector.name or "", {matcher.name})
    ]
    return unknown + [f"grouped by {label}, which no metric has" for label in groupings if label not in labels]


def test_every_expression_queries_existing_metrics_and_labels() -> None:
    assert [(origin, fault) for origin, expr in expressions() for fault in faults(expr)] == []


@pytest.mark.parametrize(
    "expr", ["rate(dragoman_nothing_total[1m])", 'dragoman_ready{color="red"}', "sum by (stage) (dragoman_ready)"]
)
def test_wrong_metrics_and_labels_are_detected(expr: str) -> None:
    assert faults(expr)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_can_be_linked_and_its_panels_query_the_chosen_datasource(path: Path) -> None:
    board = load_yaml(path)

    assert board["uid"] == f"dragoman-{path.stem}"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["type"] == "row" or panel["targets"], panel["title"]
        assert panel.get("datasource", {}).get("uid", "${datasource}") == "${datasource}"


def test_alerts_have_severity_and_a_section_of_the_runbook() -> None:
    page = (CHECKOUT / RUNBOOK).read_text(encoding="utf-8")

    assert re.findall(r"^## (Dragoman\w+)$", page, re.MULTILINE) == list(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOK}#{name.lower()}"


def test_every_alert_is_tested_firing_and_silent() -> None:
    tests = [test for path in (RULES / "tests").glob("*.yaml") for test in load_yaml(path)["tests"]]
    cases = [case for test in tests for case in test["alert_rule_test"]]

    assert {case["alertname"] for case in cases if case["exp_alerts"]} == set(ALERTS)
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == set(ALERTS)


def test_jobs_and_inhibited_alerts_exist() -> None:
    jobs = {job["job_name"] for job in load_yaml(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]}
    alertmanager = (DEPLOY / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8")
    inhibited = set(re.findall(r'alertname!?="(\w+)"', alertmanager))

    assert set(re.findall(r'job="(\w+)"', " ".join(rule["expr"] for rule in ALL_RULES))) <= jobs
    assert inhibited
    assert inhibited <= set(ALERTS)


def test_prometheus_rule_holds_the_groups_of_all_files() -> None:
    names = [group["name"] for group in GROUPS]

    assert load_yaml(COMPONENTS / "monitoring" / "prometheus-rule.yaml")["spec"]["groups"] == GROUPS
    assert len(set(names)) == len(names)


def test_autoscalers_scale_on_queued_work_with_the_same_thresholds() -> None:
    scaler = load_yaml(COMPONENTS / "autoscaling-hpa" / "horizontal-pod-autoscaler.yaml")
    pods = [metric["pods"] for metric in scaler["spec"]["metrics"]]
    triggers = [trigger["metadata"] for trigger in SCALED_OBJECT["spec"]["triggers"]]

    assert "dragoman_queue_" in triggers[0]["query"]
    assert [metric["metric"]["name"] for metric in pods] == [rule["name"]["as"] for rule in ADAPTER_RULES]
    assert [metric["target"]["averageValue"] for metric in pods] == [trigger["threshold"] for trigger in triggers]
