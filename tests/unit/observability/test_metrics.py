import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_text

from dragoman_service.observability.metrics import Metrics, observe_process

CATALOGUE = [metric for metric in vars(Metrics(CollectorRegistry())).values() if isinstance(metric, MetricWrapperBase)]
NOT_BASE_UNITS = {"ms", "milliseconds", "us", "microseconds", "minutes", "hours", "kb", "mb", "kib", "mib", "percent"}
UNBOUNDED = {"request_id", "caller", "peer", "client", "user", "key", "language", "source_language", "target_language"}
"""Names of labels whose values callers could choose."""

every_metric = pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric._name)


@every_metric
def test_metric_name_follows_prometheus_conventions(metric: MetricWrapperBase) -> None:
    words = metric._name.split("_")

    assert re.fullmatch(r"dragoman(_[a-z0-9]+)+", metric._name)
    assert not NOT_BASE_UNITS & set(words)
    assert not ({"count", "sum", "bucket", "total"} & set(words[-1:]))
    assert metric._type not in words


@every_metric
def test_help_text_is_one_sentence(metric: MetricWrapperBase) -> None:
    assert re.fullmatch(r"[A-Z0-9][^\n]*\.", metric._documentation)


@every_metric
def test_times_are_seconds_and_no_metric_is_a_summary(metric: MetricWrapperBase) -> None:
    words = metric._name.split("_")

    assert not {"duration", "wait", "latency"} & set(words) or words[-1] == "seconds"
    assert metric._type != "summary"


@every_metric
def test_labels_are_few_and_bounded(metric: MetricWrapperBase) -> None:
    assert len(metric._labelnames) <= 4
    assert not UNBOUNDED & set(metric._labelnames)


def test_metric_names_are_unique() -> None:
    names = [metric._name for metric in CATALOGUE]

    assert sorted(names) == sorted(set(names))


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    observe_process(registry)
    metrics.requests.labels("Translate", "OK").inc()
    metrics.request_seconds.labels("Translate").observe(0.1, {"trace_id": "0" * 32})
    return registry


def test_only_counters_end_in_total(registry: CollectorRegistry) -> None:
    text = generate_latest(registry).decode()
    openmetrics = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call]

    strict = text_string_to_metric_families(openmetrics)  # type: ignore[no-untyped-call]
    for exposition in (parse_text(text), strict):
        for family in exposition:
            assert {sample.name.endswith("_total") for sample in family.samples} <= {family.type == "counter"}
            assert family.documentation


def test_no_created_series_are_exposed(registry: CollectorRegistry) -> None:
    assert b"_created" not in generate_latest(registry)


def test_build_and_process_metrics_are_exposed(registry: CollectorRegistry) -> None:
    exposition = generate_latest(registry).decode()

    assert re.search(r'^dragoman_build_info\{onnxruntime="[0-9.]+",version="[^"]+"\} 1.0$', exposition, re.MULTILINE)
    for name in ("process_resident_memory_bytes", "process_open_fds", "python_info", "python_gc_collections_total"):
        assert f"# HELP {name} " in exposition


@pytest.mark.parametrize("name", ["rejected_requests", "deadline_misses", "segments", "cancelled_segments"])
def test_series_of_alerts_are_exposed_before_the_first_count(name: str) -> None:
    metrics = Metrics(CollectorRegistry())

    samples = [sample.value for family in getattr(metrics, name).collect() for sample in family.samples]

    assert samples
    assert not any(samples[::2])  # counts; between them, when they began


@pytest.mark.parametrize("amount", [0.0, 0.05, 0.3, 1.0, 7.5])
def test_observe_times_equals_repeated_observe(amount: float) -> None:
    at_once, one_by_one = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())

    at_once.step_padding_share.labels("rows").observe_times(amount, 4)
    for _ in range(4):
        one_by_one.step_padding_share.labels("rows").observe(amount)

    assert generate_latest(at_once.registry) == generate_latest(one_by_one.registry)
