from loadtests.loadtest.baseline import Change
from loadtests.loadtest.verdict import broken_promises
from loadtests.slo import parse_slo
from tests.unit.loadtests.fake_calls import summary_of

SLOWER = [Change(name="p95_ms", before=100.0, now=125.0)]


def test_a_run_that_held_everything_is_not_blamed() -> None:
    summary = summary_of(latencies_s=[0.1], lag_s=0.02)

    assert broken_promises(summary, SLOWER, slo=parse_slo("p95<1s"), max_regression=0.3, max_lag_ms=25.0) == []
    assert broken_promises(summary, [], slo=None, max_regression=0.0, max_lag_ms=25.0) == []


def test_objective_baseline_and_generator_are_each_told() -> None:
    summary = summary_of(latencies_s=[0.1], lag_s=0.03)

    assert broken_promises(summary, SLOWER, slo=parse_slo("p95<50ms"), max_regression=0.1, max_lag_ms=25.0) == [
        "generator_lag_p99_ms is 30.0, the limit is 25: the run does not count",
        "p95 is 100ms, the limit is < 50ms",
        "p95_ms is 125, the baseline has 100: worse by 25.0%, the limit is 10.0%",
    ]
