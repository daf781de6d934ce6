import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtests.bad_inputs import report
from loadtests.bad_inputs.growth import Growth
from loadtests.bad_inputs.verdict import Promises, Record, Run, broken_promises, line, slowest, summarize


def record(index: int, **fields: Any) -> Record:
    values = {"kind": "nul", "method": "unary", "num_characters": 2000, "status": "OK", "seconds": 0.02, **fields}
    return Record(index=index, **values)


GROWTH = Growth(shape="dots", method="Translate", num_characters=10_000, half_s=0.4, whole_s=0.9)
GOOD = Run(
    records=[record(0), record(1, status="INVALID_ARGUMENT"), record(2, status="LEFT", kind="megabytes")],
    memory_mb=[100.0, 130.0, 120.0],
    bystander_latencies_s=[0.1, 0.2],
    bystander_alone_s=[0.1],
    look_latencies_s=[0.01],
    growths=[GROWTH],
    elapsed_s=1.5,
)


def broken(run: Run) -> list[str]:
    return broken_promises(run, summarize(run, Promises()), Promises(), seed=7)


def test_a_run_that_holds_has_its_figures_in_the_line() -> None:
    assert broken(GOOD) == []
    assert line(summarize(GOOD, Promises()), is_held=True) == (
        "bad_inputs inputs=3 kinds=2 ok=1 refused=1 left=1 internal=0 hangs=0 lost=0 rss_growth_mb=30.0 slowest_ms=20 "
        "p99_us_per_character=10.0 bystander_p99_ms=200.0 look_p99_ms=10.0 look_max_ms=10.0 worst_growth=2.2 "
        "inputs_per_s=2 verdict=held"
    )


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"records": [record(5, faults=("no hypothesis",))]}, "no hypothesis (--seed 7 --only nul --index 5, unary)"),
        ({"memory_mb": [100.0, 400.0, 120.0]}, "the server grew by 300 MB, more than 256"),
        ({"server_faults": ["the server says that it does not serve"]}, "the server says that it does not serve"),
        ({"bystander_failures": ["INTERNAL: x", "y"]}, "2 calls of bystanders failed, the first: INTERNAL: x"),
        ({"bystander_latencies_s": [11.0]}, "translations of bystanders took 11000 ms at p99, more than 10000"),
        ({"look_latencies_s": [1.5]}, "calls that need the event loop only took 1500 ms at p99, more than 1000"),
        ({"growths": [replace(GROWTH, whole_s=1.6)]}, "Translate of dots took 4.0 times as long for twice the text"),
    ],
)
def test_each_promise_can_be_broken(changed: dict[str, Any], sentence: str) -> None:
    (found,) = broken(replace(GOOD, **changed))

    assert sentence in found


def test_what_is_fast_is_too_noisy_to_grow() -> None:
    assert broken(replace(GOOD, growths=[replace(GROWTH, half_s=0.001, whole_s=0.1)])) == []


@pytest.mark.parametrize(
    ("status", "figure"),
    [("INTERNAL", "internal"), ("UNKNOWN", "internal"), ("DEADLINE_EXCEEDED", "hangs"), ("UNAVAILABLE", "lost")],
)
def test_failures_are_no_refusals(status: str, figure: str) -> None:
    summary = summarize(replace(GOOD, records=[record(0, status=status)]), Promises())

    assert (getattr(summary, figure), summary.refused, summary.ok) == (1, 0, 0)


def test_of_many_faults_the_first_are_told() -> None:
    records = [record(index, faults=("wrong",)) for index in range(50)]

    found = broken(replace(GOOD, records=records))

    assert len(found) == 21
    assert found[-1] == "30 more faults of this sort are in the report"


def test_the_slowest_come_first() -> None:
    records = [record(index, seconds=index / 10) for index in range(30)]

    assert [one.index for one in slowest(records)] == list(range(29, 19, -1))


def test_the_report_has_the_faults_and_the_slowest(tmp_path: Path) -> None:
    run = replace(GOOD, records=[record(0, faults=("wrong",)), record(1, num_characters=0)])

    report.write(tmp_path, run, summarize(run, Promises()), settings={"seed": "7"}, broken=broken(run))

    written = json.loads((tmp_path / "bad_inputs.json").read_text(encoding="utf-8"))
    assert [fault["index"] for fault in written["faults"]] == [0]
    assert written["statuses_by_kind"] == {"nul": {"OK": 2}}
    assert len(written["slowest"]) == 2
    assert (tmp_path / "bad_inputs.png").stat().st_size > 0
