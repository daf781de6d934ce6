import json
from pathlib import Path

from loadtests.overload import report
from loadtests.overload.verdict import summarize
from loadtests.wire import Outcome
from tests.unit.loadtests.fake_calls import record

RECORDS = [record(kind, planned_s=100.0 + second) for second in range(3) for kind in Outcome]


def storm() -> report.Storm:
    return report.Storm(
        began_s=100.0,
        summary=summarize(RECORDS, capacity_per_s=1.0, duration_s=3.0, rss_growth_mb=2.0),
        records=RECORDS,
        memory_mb=[(0.0, 100.0), (3.0, 102.0)],
        settings={"deadline_s": 2.0},
        broken=["one"],
    )


def test_the_line_has_the_promises_first() -> None:
    line = report.line(storm().summary)

    assert line.startswith("overload rejected_p99_ms=10.0 accepted_late=3 errors_other=3 rss_growth_mb=2.0 offered=15 ")


def test_a_figure_that_does_not_exist_is_called_none() -> None:
    summary = summarize(RECORDS[:1], capacity_per_s=1.0, duration_s=3.0, rss_growth_mb=2.0)

    assert "rejected_p99_ms=none" in report.line(summary)


def test_a_storm_is_kept_as_json_and_as_a_picture(tmp_path: Path) -> None:
    report.write(tmp_path / "new", storm())

    kept = json.loads((tmp_path / "new" / "overload.json").read_text(encoding="utf-8"))
    assert kept["calls"][-1] == [2.0, 0.0, 0.01, "ERROR"]
    assert kept["broken_promises"] == ["one"]
    assert (tmp_path / "new" / "overload.png").read_bytes().startswith(b"\x89PNG")
