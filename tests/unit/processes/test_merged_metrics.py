from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from dragoman_service.processes.merged_metrics import Families, MergedRegistry, added, summable, without_gauges


class Process:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter("calls", "Calls.", ["method"], registry=self.registry)
        self.times = Histogram("times", "Times.", buckets=(1.0, 2.0), registry=self.registry)
        self.in_flight = Gauge("dragoman_requests_in_flight", "Calls in progress.", registry=self.registry)
        self.ready = Gauge("ready", "Whether it is ready.", registry=self.registry)


def test_counters_histograms_and_some_gauges_are_summed() -> None:
    owner, front_ends = Process(), [Process(), Process()]
    for number, process in enumerate((owner, *front_ends)):
        process.calls.labels("Translate").inc(number)
        process.times.observe(number)
        process.in_flight.inc()
        process.ready.set(1)
    front_ends[1].calls.labels("Detect").inc(5)
    front_ends[1].times.observe(0.5, {"trace_id": "abc"})

    merged = MergedRegistry(owner.registry, lambda: [summable(process.registry) for process in front_ends])

    assert merged.get_sample_value("calls_total", {"method": "Translate"}) == 3
    assert merged.get_sample_value("calls_total", {"method": "Detect"}) == 5
    assert merged.get_sample_value("times_bucket", {"le": "1.0"}) == 3
    assert (merged.get_sample_value("times_count"), merged.get_sample_value("times_sum")) == (4, 3.5)
    assert merged.get_sample_value("dragoman_requests_in_flight") == 3
    assert merged.get_sample_value("ready") == 1
    assert b'calls_total{method="Detect"} 5.0' in generate_latest(merged)
    page = generate_openmetrics(merged).decode()  # type: ignore[no-untyped-call]
    assert list(text_string_to_metric_families(page))  # type: ignore[no-untyped-call]
    assert '# {trace_id="abc"} 0.5' in page
    names = [metric.name for metric in merged.restricted_registry(["ready"]).collect()]
    assert names == ["ready"]


def test_counters_of_an_ended_process_stay_and_its_gauges_do_not() -> None:
    owner, ended, successor = Process(), Process(), Process()
    ended.calls.labels("Translate").inc(4)
    ended.in_flight.inc()
    kept: Families = added([{}, without_gauges(summable(ended.registry))])
    successor.calls.labels("Translate").inc(1)

    merged = MergedRegistry(owner.registry, lambda: [kept, summable(successor.registry)])

    assert merged.get_sample_value("calls_total", {"method": "Translate"}) == 5
    assert merged.get_sample_value("dragoman_requests_in_flight") == 0
