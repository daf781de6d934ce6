import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from dragoman_service.observability.metrics import Metrics, observe_process
from dragoman_service.scheduling.batch_connection import observe_all

CATALOGUE = [metric for metric in vars(Metrics(CollectorRegistry())).values() if isinstance(metric, MetricWrapperBase)]
NOT_BASE_UNITS = {"ms", "milliseconds", "us", "microseconds", "minutes", "hours", "kb", "mb", "kib", "mib", "percent"}
UNBOUNDED = {"request_id", "caller", "peer", "client", "user", "key", "language", "source_language", "target_language"}
"""Names of labels whose values callers could choose."""


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric._name)
def test_metric_follows_the_conventions_of_prometheus(metric: MetricWrapperBase) -> None:
    words = metric._name.split("_")

    assert re.fullmatch(r"dragoman(_[a-z0-9]+)+", metric._name)
    assert not NOT_BASE_UNITS & set(words)
    assert not ({"count", "sum", "bucket", "total"} & set(words[-1:]))
    assert not {"duration", "wait", "latency"} & set(words) or words[-1] == "seconds"
    assert metric._type not in words
    assert metric._type != "summary"
    assert re.fullmatch(r"[A-Z0-9][^\n]*\.", metric._documentation)
    assert len(metric._labelnames) <= 4
    assert not UNBOUNDED & set(metric._labelnames)


def test_build_and_process_metrics_are_exposed_without_created_series() -> None:
    metrics = Metrics(CollectorRegistry())
    observe_process(metrics.registry)
    metrics.requests.labels("Translate", "OK").inc()

    exposition = generate_latest(metrics.registry).decode()

    assert re.search(r'^dragoman_build_info\{onnxruntime="[0-9.]+",version="[^"]+"\} 1.0$', exposition, re.MULTILINE)
    for name in ("process_resident_memory_bytes", "process_open_fds", "python_info", "python_gc_collections_total"):
        assert f"# HELP {name} " in exposition
    assert "_created" not in exposition


def test_amounts_observed_together_count_like_single_ones() -> None:
    amounts = [0.0, 0.001, 0.0011, 0.0011, 60.0, 61.0]  # on, between and beyond the upper bounds of buckets
    together, single = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())

    observe_all(together.step_seconds, amounts)
    for amount in amounts:
        single.step_seconds.observe(amount)

    assert generate_latest(together.registry) == generate_latest(single.registry)


@pytest.mark.parametrize("name", ["rejected_requests", "deadline_misses", "segments", "cancelled_segments"])
def test_series_of_alerts_are_exposed_before_the_first_count(name: str) -> None:
    metrics = Metrics(CollectorRegistry())

    samples = [sample.value for family in getattr(metrics, name).collect() for sample in family.samples]

    assert samples
    assert not any(samples[::2])  # counts; between them, when they began
