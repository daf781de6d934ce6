import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.generator.calls import Outcome
from loadtests.generator.records import CallRecord, Percentiles, percentile, summarize, write_records
from loadtests.generator.slo import parse_slo
from tests.unit.loadtests.fake_calls import record, summary_of

STAGES = {"queue_s": 0.1, "encode_s": 0.2, "decode_s": 0.3, "text_s": 0.15}
ANSWERED = record(Outcome.ANSWERED, lag_s=0.1, latency_s=1.0, num_source_tokens=7, num_target_tokens=9, **STAGES)


def test_records_are_written_a_line_each(tmp_path: Path) -> None:
    path, least = tmp_path / "new" / "calls.jsonl", record(Outcome.ERROR)
    write_records(path, [ANSWERED, least])

    kept = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [CallRecord(**{**one, "outcome": Outcome(one["outcome"])}) for one in kept] == [ANSWERED, least]


def test_a_percentile_is_one_of_the_values_by_nearest_rank() -> None:
    assert [percentile(range(20, 0, -1), share) for share in (0.5, 0.95, 0.01, 1.0)] == [10, 19, 1, 20]


def test_every_call_is_counted_once() -> None:
    summary = summarize([record(kind) for kind in Outcome for _ in range(2)], duration_s=4.0)

    counts = (summary.answered, summary.rejected, summary.late, summary.left, summary.errors)
    assert (summary.offered, counts) == (10, (2, 2, 2, 2, 2))
    assert summary.statuses == {f"Translate {kind.name}": 2 for kind in sorted(Outcome, key=lambda kind: kind.name)}
    assert (summary.offered_per_s, summary.goodput_per_s) == (2.5, 0.5)
    assert summary.goodput == 1 / 4  # of the callers who meant to wait


def test_late_calls_count_as_latency_and_rejected_ones_do_not() -> None:
    told = {Outcome.ANSWERED: 1.0, Outcome.LATE: 5.0, Outcome.REJECTED: 0.001}
    summary = summarize([record(kind, latency_s=latency_s) for kind, latency_s in told.items()], duration_s=1.0)

    assert summary.latency == Percentiles(1000.0, 5000.0, 5000.0, 5000.0, 5000.0)
    assert summary_of(num_rejected=3).latency is None


def test_stages_are_those_of_the_answers_and_what_they_leave() -> None:
    summary = summarize([ANSWERED], duration_s=2.0)
    untold = summarize([replace(ANSWERED, encode_s=None, decode_s=None)], duration_s=2.0)

    p50 = {name: None if stage is None else round(stage.p50_ms) for name, stage in summary.stages.items()}
    assert p50 == {"client": 1000, "queue": 100, "encode": 200, "decode": 300, "text": 150, "beyond": 250}
    assert (summary.source_tokens, summary.target_tokens, summary.tokens_per_s) == (7, 9, 4.5)
    assert untold.stages["beyond"] is untold.stages["decode"] is None


def test_a_generator_that_is_late_is_seen_and_hides_no_waiting() -> None:
    summary = summarize([record(Outcome.ANSWERED, latency_s=0.5, lag_s=0.03)], duration_s=10.0)

    assert summary.generator_lagged
    assert summary.generator_lag.p99_ms == pytest.approx(30.0)
    assert summary.latency is not None
    assert summary.latency.p50_ms == pytest.approx(500.0)  # from the planned moment, the lag included


def test_nothing_has_no_figures() -> None:
    for records, duration_s in (([], 1.0), ([record(Outcome.ERROR)], 0.0)):
        with pytest.raises(ValueError, match="nothing to summarise"):
            summarize(records, duration_s=duration_s)
    for values, share in (([], 0.5), ([1.0], 0.0), ([1.0], 1.1)):
        with pytest.raises(ValueError, match="no percentile"):
            percentile(values, share)


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ("p50<=100ms, p90 <= 0.5s, late<=0%, goodput>=9/s, goodput>90%", []),
        ("p95<400ms", ["p95 is 500ms, the limit is < 400ms"]),
        ("p50<1ms,max<.4s", ["p50 is 100ms, the limit is < 1ms", "max is 0.5s, the limit is < 0.4s"]),
        ("errors<0.1%,rejected<1%", ["errors is 0.9524%, the limit is < 0.1%", "rejected is 3.81%, the limit is < 1%"]),
    ],
)
def test_each_broken_bound_is_told_with_its_figure_and_limit(bounds: str, told: list[str]) -> None:
    summary = summary_of(latencies_s=[0.1] * 90 + [0.5] * 10, num_errors=1, num_rejected=4)

    assert parse_slo(bounds).broken(summary) == told


def test_where_no_call_was_taken_no_latency_was_held() -> None:
    told = ["p95 is not known, as the server took no call; the limit is < 1s"]
    assert parse_slo("p95<1s").broken(summary_of(num_errors=1)) == told
