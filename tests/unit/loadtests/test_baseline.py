import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.__main__ import main
from loadtests.load import compare, parse_share, read_baseline, settings_of
from tests.unit.loadtests.fake_runs import MACHINE, reported, run_of

SETTINGS = settings_of(run_of().load)


def kept(path: Path, **changed: Any) -> Path:
    """A file with a run that was kept."""
    path.write_text(json.dumps({**reported().values, **changed}), encoding="utf-8")
    return path


def test_the_same_run_has_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_baseline(kept(tmp_path / "run.json"), SETTINGS)

    report = reported(kept=before, max_regression=0.0)

    assert report.broken == []
    assert {row.split(" | ")[-1] for row in report.table.splitlines()[2:]} == {"+0.0% |", " |"}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "before", "now", "is_worse"),
    [
        ("p95_ms", 100.0, 109.9, False),
        ("p95_ms", 100.0, 110.1, True),
        ("p95_ms", 100.0, 50.0, False),
        ("goodput_per_s", 20.0, 17.9, True),
        ("goodput_per_s", 20.0, 25.0, False),
        ("tokens_per_s", 100.0, 89.0, True),
        ("server_memory_mb_max", 100.0, 900.0, False),
        ("p50_ms", 100.0, None, True),
        ("p50_ms", None, 100.0, False),
        ("goodput_per_s", 0.0, 1.0, False),
    ],
)
def test_judged_figures_may_be_worse_by_so_much(
    name: str, before: float | None, now: float | None, is_worse: bool
) -> None:
    others = dict.fromkeys(("p50_ms", "p95_ms", "goodput_per_s", "tokens_per_s"), 1.0)

    _, sentences = compare({**others, name: before}, {**others, name: now}, 0.1)

    assert len(sentences) == is_worse


def test_a_regression_is_told_and_shown_with_figure_baseline_and_limit(tmp_path: Path) -> None:
    figures = {**reported().values["figures"], "p95_ms": 800.0, "late": None, "gone": 1.0}
    before = read_baseline(kept(tmp_path / "run.json", figures=figures), SETTINGS)

    report = reported(kept=before, max_regression=0.1)

    assert report.broken == ["p95_ms is 1000, the baseline has 800: worse by 25.0%, the limit is 10.0%"]
    rows = report.table.splitlines()
    assert rows[0] == "| figure | baseline | now | change |"
    assert {"| p95_ms * | 800 | 1000 | +25.0% |", "| late | none | 0 |  |"} < set(rows)
    assert all(cell in report.page for cell in ("p95_ms *", "+25.0%"))


@pytest.mark.parametrize(
    ("name", "value"), [("rate_per_s", 2.0), ("profile", "chat"), ("workload", []), ("arrivals", "constant")]
)
def test_another_load_is_refused(tmp_path: Path, name: str, value: object) -> None:
    path = kept(tmp_path / "run.json", settings={**SETTINGS, name: value})

    with pytest.raises(ValueError, match=f"of another load: {name} "):
        read_baseline(path, SETTINGS)


def test_the_command_refuses_a_baseline_of_another_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["load", "--rate", "2", "--baseline", str(kept(tmp_path / "run.json"))])

    assert caught.value.code == 2
    assert "rate_per_s 1.0, now 2.0" in capsys.readouterr().err


def test_another_machine_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = kept(tmp_path / "run.json", machine={**MACHINE, "cores": 64})

    assert reported(kept=read_baseline(path, SETTINGS)).broken == []
    assert "Abacus <1> with 64 cores" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"format": 0}', '{"format": 1, "settings": {}}'])
def test_a_file_that_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="utf-8")

    with pytest.raises(ValueError, match=r"run\.json: no run of a load test"):
        read_baseline(tmp_path / "run.json", SETTINGS)
    with pytest.raises(ValueError, match=r"is of format 0, expected 1"):
        read_baseline(kept(tmp_path / "run.json", format=0), SETTINGS)


def test_a_share_is_a_number_or_a_percentage() -> None:
    assert [parse_share(text) for text in ("10%", "0.1", " 5 % ", "0")] == pytest.approx([0.1, 0.1, 0.05, 0])
    for text in ("", "ten", "-1%", "nan", "inf"):
        with pytest.raises(ValueError, match=r"expected|could not"):
            parse_share(text)
