"""What expressions of Prometheus ask for, and what there is to be asked for."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from dragoman_service.observability.metrics import Metrics, observe_process

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "rules"

_FOUND_WITH = frozenset({"job", "instance"})
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
_ENVOY_CLUSTER = _FOUND_WITH | {"envoy_cluster_name"}
_OF_OTHERS = {
    "up": _FOUND_WITH,
    "ALERTS": _FOUND_WITH | {"alertname", "alertstate", "severity", "slo"},
    "envoy_cluster_membership_healthy": _ENVOY_CLUSTER,
    "envoy_cluster_membership_total": _ENVOY_CLUSTER,
    "envoy_cluster_upstream_rq_total": _ENVOY_CLUSTER,
    "envoy_cluster_upstream_rq_retry": _ENVOY_CLUSTER,
    "envoy_http_downstream_cx_active": _FOUND_WITH | {"envoy_http_conn_manager_prefix"},
}
"""Envoy's are asked for in the test with a real Envoy, too: `.ci/run watching`."""


def rules() -> list[dict[str, Any]]:
    """All recording and alert rules."""
    return [
        rule
        for path in sorted(RULES.glob("*.yaml"))
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]


def catalogue() -> Mapping[str, frozenset[str]]:
    """Every series that can be asked for, with its labels."""
    return {**_OF_OTHERS, **dict(_of_service()), **dict(_of_process()), **dict(_recorded())}


def faults(expr: str, known: Mapping[str, frozenset[str]]) -> list[str]:
    """What an expression asks for that does not exist; ValueError if it is no PromQL."""
    found: list[str] = []
    asked: set[str] = set()
    promql_parser.walk(promql_parser.parse(expr), lambda node: _look_at(node, known, found, asked))
    labels = frozenset().union(*(known[name] for name in asked if name in known))
    promql_parser.walk(promql_parser.parse(expr), lambda node: _look_at_grouping(node, labels, found))
    return found


def _look_at(node: promql_parser.Expr, known: Mapping[str, frozenset[str]], found: list[str], asked: set[str]) -> None:
    selector = node.vector_selector if isinstance(node, promql_parser.MatrixSelector) else node
    if not isinstance(selector, promql_parser.VectorSelector):
        return
    name = selector.name or ""
    asked.add(name)
    if name not in known:
        found.append(f"no metric {name}")
        return
    found.extend(
        f"{name} has no label {matcher.name}"
        for matcher in selector.matchers.matchers
        if matcher.name not in known[name]
    )


def _look_at_grouping(node: promql_parser.Expr, labels: frozenset[str], found: list[str]) -> None:
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        found.extend(f"grouped by {label}, which nothing has" for label in node.modifier.labels if label not in labels)


def _of_service() -> Iterator[tuple[str, frozenset[str]]]:
    for metric in vars(Metrics(CollectorRegistry())).values():
        if isinstance(metric, MetricWrapperBase):
            for suffix in _SUFFIXES[str(metric._type)]:
                bound = {"le"} if suffix == "_bucket" else set()
                yield f"{metric._name}{suffix}", _FOUND_WITH | set(metric._labelnames) | bound


def _of_process() -> Iterator[tuple[str, frozenset[str]]]:
    registry = CollectorRegistry()
    observe_process(registry)
    for family in registry.collect():
        for sample in family.samples:
            yield sample.name, _FOUND_WITH | set(sample.labels)


def _recorded() -> Iterator[tuple[str, frozenset[str]]]:
    """Names say which labels are left: `job_priority:dragoman_queue_wait_seconds:p90_5m`."""
    for rule in rules():
        if "record" in rule:
            yield rule["record"], frozenset(rule["record"].partition(":")[0].split("_"))
