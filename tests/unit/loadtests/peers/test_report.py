import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtests.machine import describe_machine
from loadtests.peers.__main__ import main
from loadtests.peers.bench_report import RESULTS_NAME, growth_picture, ratios_picture, record_of, table, write_bench
from loadtests.peers.cases import Case, fixed_length, random_sources
from loadtests.peers.comparison import Pairing, Plan, compare
from tests.unit.loadtests.peers.fake_runner import FakeRunner

_CASE = Case(
    model="base", name="batch8", sources=random_sources(8, vocabulary_size=100, eos_id=2), search=fixed_length(10)
)


@pytest.fixture
def record() -> dict[str, Any]:
    plan = Plan(mode="short", num_repetitions=2, thread_counts=(1,), isas=("",))
    runner = FakeRunner(lambda settings: 2.0 if settings.peer == "ctranslate2" else 1.0)
    cases = [
        replace(_CASE, references=("r",) * 8),
        replace(_CASE, name="length10", kind="growth"),
        replace(_CASE, name="said", kind="agreement", has_meaning=True),
    ]
    pairing = Pairing(ours="int8", peer="ctranslate2", theirs="int8")
    results = [compare(runner, case, [pairing], plan, judge=lambda *_: 30.0) for case in cases]
    return record_of(results, describe_machine(), "python -m loadtests peers bench")


def test_every_pair_is_a_row_of_the_table(record: dict[str, Any]) -> None:
    rows = table(record)

    assert "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |" in rows
    assert "| base | batch8 | 1 | ctranslate2-int8 | 2.00 | 192 tokens/s | 96 tokens/s | +0.00 |" in rows
    assert "| base | length10 |" in rows
    assert "| said | int8@1x1,b16 / ctranslate2-int8 | 100.0 % |" in rows


def test_a_comparison_is_kept_and_its_table_can_be_printed_again(
    record: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bench(tmp_path, record)

    assert main(["table", "--output", str(tmp_path)]) == 0

    assert capsys.readouterr().out == table(record)
    read = json.loads((tmp_path / RESULTS_NAME).read_text())
    assert [len(measurement["elapsed_s"]) for measurement in read["cases"][0]["measurements"]] == [2, 2]
    assert read["machine"]["cores"] >= 1
    assert read["command"] == "python -m loadtests peers bench"
    assert {path.name for path in tmp_path.iterdir()} == {RESULTS_NAME, "table.md", "ratios.png", "growth.png"}


def test_a_pair_is_a_bar_beside_the_line_of_equal_speed(record: dict[str, Any]) -> None:
    (axes,) = ratios_picture([(record["cases"][0], record["cases"][0]["pairs"][0])]).axes

    (bar,) = axes.patches
    assert (bar.get_width(), np.asarray(axes.lines[0].get_xdata()).tolist()) == (2.0, [1.0, 1.0])  # type: ignore[attr-defined]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["base batch8 @1 vs ctranslate2-int8"]


def test_growth_is_a_line_of_seconds_over_length_for_each_side(record: dict[str, Any]) -> None:
    (axes,) = growth_picture(record["cases"][1:2]).axes

    ours, theirs = [(str(line.get_label()), np.asarray(line.get_xydata()).tolist()) for line in axes.lines]
    assert ours == ("dragoman-int8", [[10.0, pytest.approx(80 / 192)]])
    assert theirs == ("ctranslate2-int8", [[10.0, pytest.approx(80 / 96)]])
