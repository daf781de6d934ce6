import json
from pathlib import Path

from loadtests.soak.access_log import AccessLog
from loadtests.soak.report import Soak, line, progress_line, write
from loadtests.soak.verdict import summarize
from tests.unit.loadtests.soak.fake_soak import SETTINGS, book, observations, samples


def soak(*broken: str) -> Soak:
    found, notes = observations(), book()
    summary = summarize(found, notes, AccessLog(logged=(), complaints=()), SETTINGS)
    return Soak(settings=SETTINGS, found=found, book=notes, summary=summary, broken=broken)


def test_the_line_ends_with_the_verdict() -> None:
    told = line(soak().summary, [])

    assert told == (
        "soak seconds=181 calls=5 unanswered=0 twice=0 ledger_difference=10 rss_slope_mb_per_h=0.0 rss_noise=0.0 "
        "threads_left=0 fds_left=0 tasks_left=0 slots_left=0 swaps=30 wrong=0 errors=0 verdict=held"
    )
    assert line(soak().summary, ["a promise"]).endswith("verdict=broken")


def test_the_json_holds_the_whole_run_and_the_picture_is_one(tmp_path: Path) -> None:
    write(tmp_path / "new", soak("a promise"))

    record = json.loads((tmp_path / "new" / "soak.json").read_text(encoding="utf-8"))
    assert record["broken_promises"] == ["a promise"]
    assert len(record["samples"]) == len(samples())
    assert {"kind": "usual Translate", "status": "OK", "count": 1} in record["calls"]
    assert (tmp_path / "new" / "soak.png").read_bytes().startswith(b"\x89PNG")


def test_progress_says_how_far_it_is() -> None:
    told = progress_line(samples()[60], SETTINGS)

    assert told == "60 of 180 s: calls=600 swaps=10 rss_mb=250 threads=16 fds=14"
