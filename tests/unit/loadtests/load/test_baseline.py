import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.load.baseline import (
    BaselineError,
    Change,
    changes,
    differing_machine,
    parse_share,
    read_baseline,
    require_same,
    table,
)
from loadtests.load.run import as_json, settings_of
from tests.unit.loadtests.load.fake_runs import MACHINE, run_of


def kept(path: Path, **changed: Any) -> Path:
    path.write_text(json.dumps({**as_json(run_of()), **changed}), encoding="utf-8")
    return path


def test_the_same_run_has_not_changed(tmp_path: Path) -> None:
    baseline = read_baseline(kept(tmp_path / "run.json"))

    require_same(baseline, settings_of(run_of().load))
    found = changes(baseline, run_of().figures)

    assert {change.share for change in found} == {0.0, None}
    assert [change.regression(0.0) for change in found] == [None] * len(found)
    assert differing_machine(baseline, MACHINE) is None


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
    assert (Change(name=name, before=before, now=now).regression(0.1) is not None) is is_worse


def test_a_regression_is_told_with_figure_baseline_and_limit() -> None:
    assert Change(name="p95_ms", before=100.0, now=125.0).regression(0.1) == (
        "p95_ms is 125, the baseline has 100: worse by 25.0%, the limit is 10.0%"
    )


@pytest.mark.parametrize(
    ("name", "value"), [("rate_per_s", 2.0), ("profile", "chat"), ("workload", []), ("arrivals", "constant")]
)
def test_another_load_is_refused(tmp_path: Path, name: str, value: object) -> None:
    settings = settings_of(run_of().load)
    baseline = read_baseline(kept(tmp_path / "run.json", settings={**settings, name: value}))

    with pytest.raises(BaselineError, match=f"of another load: {name} "):
        require_same(baseline, settings)


def test_another_machine_is_told(tmp_path: Path) -> None:
    baseline = read_baseline(kept(tmp_path / "run.json", machine={**MACHINE, "cores": 64}))

    assert "Abacus <1> with 64 cores" in str(differing_machine(baseline, MACHINE))


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"format": 0}', '{"format": 1, "settings": {}}'])
def test_a_file_that_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="utf-8")

    with pytest.raises(BaselineError, match=r"run\.json: "):
        read_baseline(tmp_path / "run.json")
    with pytest.raises(BaselineError, match="no run of a load test"):
        read_baseline(tmp_path / "missing.json")


def test_the_table_shows_every_figure_and_stars_those_that_are_judged() -> None:
    shown = [Change(name="p95_ms", before=100.0, now=125.0), Change(name="late", before=0.0, now=None)]

    assert [row.split() for row in table(shown).splitlines()] == [
        ["figure", "baseline", "now", "change"],
        ["p95_ms", "*", "100", "125", "+25.0%"],
        ["late", "0", "none"],
    ]


def test_a_share_is_a_number_or_a_percentage() -> None:
    assert [parse_share(text) for text in ("10%", "0.1", " 5 % ", "0")] == pytest.approx([0.1, 0.1, 0.05, 0.0])
    for text in ("", "ten", "-1%", "nan", "inf"):
        with pytest.raises(ValueError, match=r"expected|could not"):
            parse_share(text)
