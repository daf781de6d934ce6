import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.generator.calls import Outcome
from loadtests.generator.records import CallRecord
from loadtests.generator.slo import parse_slo
from loadtests.report.report import Report
from loadtests.scenarios import overload
from loadtests.scenarios.load import compare, read_baseline, report_of, settings_of
from tests.unit.loadtests.samples import record, run_of

MACHINE = {"cpu": "Abacus", "cores": 2}
CALLS = [record(Outcome.ANSWERED, planned_s=index, latency_s=0.1, num_target_tokens=10) for index in range(8)]
REJECTED = record(Outcome.REJECTED, planned_s=8.0)
SETTINGS = settings_of(run_of(CALLS).load)


def reported(*records: CallRecord, **given: Any) -> Report:
    broken = given.pop("broken", [])
    baseline = given.pop("baseline", None)
    options = argparse.Namespace(**{"mode": "full", "slo": None, "max_lag": None, "max_regression": 0.1, **given})
    run = run_of(records or CALLS)
    return report_of(run, options, {"machine": MACHINE, "command": ""}, baseline=baseline, broken=broken)


def test_line_contains_the_figures() -> None:
    assert reported(*CALLS, REJECTED).line == (
        "loadtest profile=sentence rate=1 p50_ms=100.0 p95_ms=100.0 p99_ms=100.0 max_ms=100.0 goodput=0.8889 "
        "rejected=0.1111 errors=0.0000 tokens_per_s=8 generator_lag_p99_ms=0.0"
    )


def test_objective_lag_and_server_are_checked() -> None:
    late = record(Outcome.ANSWERED, latency_s=0.1, lag_s=0.03)

    report = reported(late, slo=parse_slo("p95<50ms"), max_lag=25.0, broken=["server exited with 1"])

    assert [sentence.partition(" ")[0] for sentence in report.failures] == ["server", "generator_lag_p99_ms", "p95"]
    assert reported(late, slo=parse_slo("p95<1s"), max_lag=30.1).failures == []
    assert len(reported(late).failures) == 1  # the default limit of the lag


@pytest.mark.parametrize(
    ("name", "before", "fine", "worse"),
    [
        ("p95_ms", 100.0, [109.9, 50.0], [110.1]),
        ("goodput_per_s", 20.0, [25.0], [17.9]),
        ("goodput_per_s", 0.0, [1.0], []),
        ("tokens_per_s", 100.0, [], [89.0]),
        ("server_memory_mb_max", 100.0, [900.0], []),
        ("p50_ms", 100.0, [], [None]),
        ("p50_ms", None, [100.0], []),
    ],
)
def test_regression_beyond_the_limit_is_found(
    name: str, before: float | None, fine: list[float], worse: list[float | None]
) -> None:
    others = dict.fromkeys(("p50_ms", "p95_ms", "goodput_per_s", "tokens_per_s"), 1.0)

    found = [compare({**others, name: before}, {**others, name: now}, 0.1)[1] for now in (*fine, *worse)]

    assert [len(sentences) for sentences in found] == [0] * len(fine) + [1] * len(worse)


OTHERS = {"rate_per_s": 2.0, "profile": "chat", "workload": [], "arrivals": "constant"}


@pytest.mark.parametrize(
    "changed",
    [
        *({"settings": {**SETTINGS, name: value}} for name, value in OTHERS.items()),
        {"format": 0},
        *("", "{}", "[]", "nonsense", '{"format": 1, "settings": {}}'),
    ],
)
def test_baseline_must_be_of_the_same_load(tmp_path: Path, changed: Any) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(reported().values), encoding="utf-8")
    assert reported(baseline=read_baseline(path, SETTINGS), max_regression=0.0).failures == []
    text = changed if isinstance(changed, str) else json.dumps({**reported().values, **changed})
    path.write_text(text, encoding="utf-8")

    with pytest.raises(ValueError, match=r"run\.json|baseline"):
        read_baseline(path, SETTINGS)


@pytest.mark.parametrize(
    ("records", "failed"),
    [
        ([], 0),
        ([record(Outcome.REJECTED, latency_s=0.06)] * 9, 1),
        ([record(Outcome.LATE)], 1),
        ([record(Outcome.ERROR)], 1),
        ([record(Outcome.ANSWERED, lag_s=0.03)], 1),
        ([record(Outcome.ANSWERED)] * 90, 0),
    ],
)
def test_overload_checks_rejections_deadlines_errors_and_lag(records: list[CallRecord], failed: int) -> None:
    options = argparse.Namespace(factor=10.0, max_rss_growth_mb=128.0)

    report = overload.report_of(run_of([*CALLS, REJECTED, *records]), options, capacity_per_s=1.0)

    assert len(report.failures) == failed
