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
"""Names of labels whose values anyone could make up."""

every_metric = pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric._name)


@every_metric
def test_a_metric_is_named_by_the_rules(metric: MetricWrapperBase) -> None:
    words = metric._name.split("_")

    assert re.fullmatch(r"dragoman(_[a-z0-9]+)+", metric._name)
    assert not NOT_BASE_UNITS & set(words)
    assert not ({"count", "sum", "bucket", "total"} & set(words[-1:]))
    assert metric._type not in words


@every_metric
def test_a_metric_explains_itself_in_one_sentence(metric: MetricWrapperBase) -> None:
    assert re.fullmatch(r"[A-Z0-9][^\n]*\.", metric._documentation)


@every_metric
def test_times_are_seconds_and_times_of_work_have_buckets(metric: MetricWrapperBase) -> None:
    words = metric._name.split("_")

    assert not {"duration", "wait", "latency"} & set(words) or words[-1] == "seconds"
    assert metric._type != "summary"


@every_metric
def test_labels_are_few_and_callers_cannot_choose_their_values(metric: MetricWrapperBase) -> None:
    assert len(metric._labelnames) <= 4
    assert not UNBOUNDED & set(metric._labelnames)


def test_no_two_attributes_are_one_metric_and_no_two_metrics_share_a_name() -> None:
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


def test_counters_end_in_total_in_both_formats_and_nothing_else_does(registry: CollectorRegistry) -> None:
    text = generate_latest(registry).decode()
    openmetrics = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call]

    strict = text_string_to_metric_families(openmetrics)  # type: ignore[no-untyped-call]
    for exposition in (parse_text(text), strict):
        for family in exposition:
            assert {sample.name.endswith("_total") for sample in family.samples} <= {family.type == "counter"}
            assert family.documentation


def test_there_is_no_time_of_creation_beside_each_series(registry: CollectorRegistry) -> None:
    assert b"_created" not in generate_latest(registry)


def test_the_build_and_the_process_are_told(registry: CollectorRegistry) -> None:
    exposition = generate_latest(registry).decode()

    assert re.search(r'^dragoman_build_info\{onnxruntime="[0-9.]+",version="[^"]+"\} 1.0$', exposition, re.MULTILINE)
    for name in ("process_resident_memory_bytes", "process_open_fds", "python_info", "python_gc_collections_total"):
        assert f"# HELP {name} " in exposition


@pytest.mark.parametrize("name", ["rejected_requests", "deadline_misses", "segments", "cancelled_segments"])
def test_what_alerts_go_by_is_shown_before_it_is_counted(name: str) -> None:
    metrics = Metrics(CollectorRegistry())

    samples = [sample.value for family in getattr(metrics, name).collect() for sample in family.samples]

    assert samples
    assert not any(samples[::2])  # counts; between them, when they began


@pytest.mark.parametrize("amount", [0.0, 0.05, 0.3, 1.0, 7.5])
def test_equal_observations_at_once_are_exposed_like_one_after_the_other(amount: float) -> None:
    at_once, one_by_one = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())

    at_once.step_padding_share.labels("rows").observe_times(amount, 4)
    for _ in range(4):
        one_by_one.step_padding_share.labels("rows").observe(amount)

    assert generate_latest(at_once.registry) == generate_latest(one_by_one.registry)
