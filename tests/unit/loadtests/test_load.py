import json

from loadtests.report import figures_line
from loadtests.slo import parse_slo
from loadtests.wire import Outcome
from tests.unit.loadtests.fake_calls import record
from tests.unit.loadtests.fake_runs import BEGAN_S, answered, reported, run_of, sample


def test_a_run_is_kept_as_strict_json() -> None:
    report = reported(run_of(samples=[sample(float(second)) for second in range(11)]))

    kept = json.loads(json.dumps(report.values, allow_nan=False))

    assert kept["figures"]["p50_ms"] == 500.0
    assert kept["figures"]["server_cores"] == 0.5
    assert kept["figures"]["generator_cores"] == 0.05
    assert kept["settings"]["rate_per_s"] == 1.0
    assert {series["name"] for series in kept["series"]} >= {"queue", "offered", "decode p95", "memory"}


def test_the_line_has_what_a_script_wants() -> None:
    records = [*(answered(index, 0.1) for index in range(8)), record(Outcome.REJECTED, planned_s=BEGAN_S)]

    report = reported(run_of(records))

    assert figures_line(report.name, report.figures) == (
        "loadtest profile=sentence rate=1 p50_ms=100.0 p95_ms=100.0 p99_ms=100.0 max_ms=100.0 goodput=0.8889 "
        "rejected=0.1111 errors=0.0000 tokens_per_s=10 generator_lag_p99_ms=1.0"
    )


def test_objective_generator_and_server_are_each_told() -> None:
    run = run_of([record(Outcome.ANSWERED, planned_s=BEGAN_S, latency_s=0.1, lag_s=0.03)])

    report = reported(run, slo=parse_slo("p95<50ms"), max_lag=25.0, broken=["the server ended with 1"])

    assert report.values["broken"] == report.broken
    assert report.broken == [
        "the server ended with 1",
        "generator_lag_p99_ms is 30.0, the limit is 25: the run does not count",
        "p95 is 100ms, the limit is < 50ms",
    ]
    assert reported(run, slo=parse_slo("p95<1s"), max_lag=30.1).broken == []
    assert reported(run, max_lag=30.1).broken == []
