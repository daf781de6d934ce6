import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.generator.calls import Outcome
from loadtests.generator.slo import parse_slo
from loadtests.report.report import figures_line
from loadtests.scenarios.load import compare, parse_share, read_baseline, settings_of
from tests.unit.loadtests.fake_calls import BEGAN_S, MACHINE, answered, record, reported, run_of, sample

SETTINGS = settings_of(run_of().load)


def test_a_run_is_kept_as_strict_json() -> None:
    report = reported(run_of(samples=list(map(sample, range(11)))))

    kept = json.loads(json.dumps(report.values, allow_nan=False))
    assert {"p50_ms": 500.0, "server_cores": 0.5, "generator_cores": 0.05}.items() <= kept["figures"].items()
    assert kept["settings"]["rate_per_s"] == 1.0
    assert {series["name"] for series in kept["series"]} >= {"queue", "offered", "decode p95", "memory"}


def test_the_line_has_what_a_script_wants() -> None:
    calls = [answered(index, 0.1) for index in range(8)]

    report = reported(run_of([*calls, record(Outcome.REJECTED, planned_s=BEGAN_S)]))

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


def baseline(path: Path, **changed: Any) -> Path:
    path.write_text(json.dumps({**reported().values, **changed}), encoding="utf-8")
    return path


def test_the_same_run_is_no_change_another_machine_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = reported(kept=read_baseline(baseline(tmp_path / "run.json"), SETTINGS), max_regression=0.0)

    assert (same.broken, capsys.readouterr().err) == ([], "")
    assert {row.split(" | ")[-1] for row in same.table.splitlines()[2:]} == {"+0.0% |", " |"}
    elsewhere = baseline(tmp_path / "run.json", machine={**MACHINE, "cores": 64})
    assert reported(kept=read_baseline(elsewhere, SETTINGS)).broken == []
    assert "Abacus <1> with 64 cores" in capsys.readouterr().err


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
def test_figures_may_be_worse(name: str, before: float | None, fine: list[float], worse: list[float | None]) -> None:
    others = dict.fromkeys(("p50_ms", "p95_ms", "goodput_per_s", "tokens_per_s"), 1.0)

    told = [compare({**others, name: before}, {**others, name: now}, 0.1)[1] for now in (*fine, *worse)]

    assert [len(sentences) for sentences in told] == [0] * len(fine) + [1] * len(worse)


def test_a_regression_is_told_and_shown_with_figure_baseline_and_limit() -> None:
    kept = reported().values

    report = reported(kept={**kept, "figures": {**kept["figures"], "p95_ms": 800.0, "late": None, "gone": 1.0}})

    assert report.broken == ["p95_ms is 1000, the baseline has 800: worse by 25.0%, the limit is 10.0%"]
    rows = report.table.splitlines()
    assert rows[0] == "| figure | baseline | now | change |"
    assert {"| p95_ms * | 800 | 1000 | +25.0% |", "| late | none | 0 |  |"} < set(rows)
    page = report.page()
    assert all(cell in page for cell in ("p95_ms *", "+25.0%"))


OTHERS = {"rate_per_s": 2.0, "profile": "chat", "workload": [], "arrivals": "constant"}
NO_RUN = "no run of a load test"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        *(({"settings": {**SETTINGS, name: value}}, f"of another load: {name} ") for name, value in OTHERS.items()),
        ({"format": 0}, "is of format 0, expected 1"),
        *((text, NO_RUN) for text in ("", "{}", "[]", "nonsense", '{"format": 0}', '{"format": 1, "settings": {}}')),
    ],
)
def test_what_is_no_run_of_the_same_load_is_refused(tmp_path: Path, changed: Any, message: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(changed if isinstance(changed, str) else baseline(path, **changed).read_text(), encoding="utf-8")

    with pytest.raises(ValueError, match=message):
        read_baseline(path, SETTINGS)


def test_a_share_is_a_number_or_a_percentage() -> None:
    assert [parse_share(text) for text in ("10%", "0.1", " 5 % ", "0")] == pytest.approx([0.1, 0.1, 0.05, 0])
