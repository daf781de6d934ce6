from dataclasses import replace

import pytest

from loadtests.generator.calls import Outcome
from loadtests.generator.records import Percentiles, percentile, summarize
from loadtests.generator.slo import parse_slo
from tests.unit.loadtests.samples import record, summary_of


def test_percentiles_use_the_nearest_rank() -> None:
    assert [percentile(range(20, 0, -1), share) for share in (0.5, 0.95, 0.01, 1.0)] == [10, 19, 1, 20]


def test_summary_counts_each_call_once() -> None:
    summary = summarize([record(kind) for kind in Outcome for _ in range(2)], duration_s=4.0)

    counts = (summary.answered, summary.rejected, summary.late, summary.left, summary.errors)
    assert (summary.offered, counts) == (10, (2, 2, 2, 2, 2))
    assert summary.statuses == {f"Translate {kind.name}": 2 for kind in sorted(Outcome, key=lambda kind: kind.name)}
    assert (summary.offered_per_s, summary.goodput_per_s) == (2.5, 0.5)
    assert summary.goodput == 1 / 4  # without the calls that their clients cancelled


def test_latency_includes_late_calls_but_not_rejected_ones() -> None:
    latencies_s = {Outcome.ANSWERED: 1.0, Outcome.LATE: 5.0, Outcome.REJECTED: 0.001}
    summary = summarize([record(kind, latency_s=latency_s) for kind, latency_s in latencies_s.items()], duration_s=1.0)

    assert summary.latency == Percentiles(1000.0, 5000.0, 5000.0, 5000.0, 5000.0)
    assert summary_of(num_rejected=3).latency is None


def test_tokens_are_of_answered_calls() -> None:
    answered = record(Outcome.ANSWERED, latency_s=1.0, num_source_tokens=7, num_target_tokens=9)
    summary = summarize([answered, replace(answered, outcome=Outcome.LATE)], duration_s=2.0)

    assert (summary.source_tokens, summary.target_tokens, summary.tokens_per_s) == (7, 9, 4.5)


def test_generator_lag_is_reported_and_included_in_latency() -> None:
    summary = summarize([record(Outcome.ANSWERED, latency_s=0.5, lag_s=0.03)], duration_s=10.0)

    assert summary.generator_lagged
    assert summary.generator_lag.p99_ms == pytest.approx(30.0)
    assert summary.latency is not None
    assert summary.latency.p50_ms == pytest.approx(500.0)


def test_summary_and_percentile_need_values() -> None:
    for records, duration_s in (([], 1.0), ([record(Outcome.ERROR)], 0.0)):
        with pytest.raises(ValueError, match="nothing to summarize"):
            summarize(records, duration_s=duration_s)
    for values, share in (([], 0.5), ([1.0], 0.0), ([1.0], 1.1)):
        with pytest.raises(ValueError, match="no percentile"):
            percentile(values, share)


@pytest.mark.parametrize(
    ("bounds", "violations"),
    [
        ("p50<=100ms, p90 <= 0.5s, late<=0%, goodput>=9/s, goodput>90%", []),
        ("p95<400ms", ["p95 is 500ms, limit < 400ms"]),
        ("p50<1ms,max<.4s", ["p50 is 100ms, limit < 1ms", "max is 0.5s, limit < 0.4s"]),
        ("errors<0.1%,rejected<1%", ["errors is 0.9524%, limit < 0.1%", "rejected is 3.81%, limit < 1%"]),
    ],
)
def test_violation_contains_figure_and_limit(bounds: str, violations: list[str]) -> None:
    summary = summary_of(latencies_s=[0.1] * 90 + [0.5] * 10, num_errors=1, num_rejected=4)

    assert parse_slo(bounds).violations(summary.figures) == violations


def test_latency_bound_is_violated_without_accepted_calls() -> None:
    assert len(parse_slo("p95<1s").violations(summary_of(num_errors=1).figures)) == 1
