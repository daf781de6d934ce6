from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadtests.sampler import Footprint
from loadtests.stress.__main__ import main
from loadtests.stress.soak.ledger import Entry, Notes
from loadtests.stress.soak.scenario import Idle, Observations, Sample, Settings, details, summarize
from loadtests.stress.verdict import Summary

SETTINGS = Settings(duration_s=180.0, growth_limit_mb=16.0)
ENDS = ("OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND")
ENTRIES = [Entry(status, "Translate", frozenset({status})) for status in ENDS]
BROKEN_VERSION = '{"event": "model could not be loaded", "level": "error"}'
METRICS = {
    **{f'mt_requests_total{{method="Translate",status="{status}"}}': 1.0 for status in ENDS},
    'mt_segments_total{outcome="ok"}': 5.0,
    'mt_model_swaps_total{model="m"}': 30.0,
    'mt_ready{model="m",version="7"}': 1.0,
}


def idle(
    metrics: Mapping[str, float] | None = None, *, without: str = "nothing", threads: int = 16, fds: int = 14
) -> Idle:
    kept = {name: value for name, value in METRICS.items() if without not in name}
    return Idle(footprint=Footprint(250.0, threads, fds), metrics={**kept, **(metrics or {})})


def samples(mb_per_s: float = 0.0) -> list[Sample]:
    """One a second; memory falls after the warm-up and then grows as asked."""
    sizes = [500.0 if at_s < 60 else 250.0 + mb_per_s * at_s for at_s in range(181)]
    return [{"at_s": at_s, "rss_mb": size, "swaps": at_s // 6} for at_s, size in enumerate(sizes)]


def notes(*, last: str = ENDS[-1], **changed: Any) -> Notes:
    """One call of each status; the last of them may end otherwise than the server says."""
    ends = Counter(("usual Translate", status) for status in (*ENDS[:-1], last))
    return Notes(ends=ends, entries=ENTRIES, num_sentences=5, **changed)


def observations(**changed: Any) -> Observations:
    seen = {"settings": SETTINGS, "notes": notes(), "samples": samples(), "before": idle(), "after": idle()}
    fields = {**seen, "capacity_per_s": 20.0, "elapsed_s": 181.0, "num_swaps": 30, "num_broken_versions": 1}
    return Observations(**{**fields, **changed})


def summary(
    *, logged: list[Entry] = ENTRIES, complaints: tuple[str, ...] = (BROKEN_VERSION,), exit_code: int = 0, **found: Any
) -> Summary:
    return summarize(observations(**found), logged, complaints, exit_code=exit_code)


FIGURES = "rss_slope_mb_per_h=0.0 rss_noise=0.0 threads_left=0 fds_left=0 tasks_left=0 slots_left=0 swaps=30 wrong=0"


@pytest.mark.parametrize(
    ("changed", "ending"),
    [
        ({}, f"ledger_difference=0 {FIGURES} errors=0 verdict=held"),
        ({"after": idle(threads=12, fds=10)}, f"ledger_difference=0 {FIGURES} errors=0 verdict=held"),
        ({"logged": []}, f"ledger_difference=10 {FIGURES} errors=0 verdict=broken"),
    ],
)
def test_a_soak_in_which_everything_held_keeps_every_promise(changed: dict[str, Any], ending: str) -> None:
    assert summary(**changed).line == f"soak seconds=181 calls=5 unanswered=0 twice=0 {ending}"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"samples": samples(mb_per_s=0.5)}, "memory does not grow: it grows by 1800.0 MB/h"),
        ({"after": idle(threads=18)}, "nothing is left: 2 threads"),
        ({"after": idle(fds=15)}, "nothing is left: 1 fds"),
        ({"after": idle({"mt_open_streams": 3.0})}, "nothing is left: 3 tasks"),
        ({"after": idle({"mt_queue_tokens": 9.0})}, "nothing is left: 1 slots"),
        ({"after": idle({'mt_ready{model="m",version="6"}': 1.0})}, "nothing is left: 1 slots"),
        ({"after": idle({'mt_model_swaps_total{model="m"}': 31.0})}, "30 were made, the server counted 31"),
        ({"num_swaps": 0, "after": idle(without="swaps")}, "everything is met: run longer: 0 swaps"),
        ({"after": idle({'mt_segments_total{outcome="ok"}': 4.0})}, "got 5 sentences, the server counted 4 segments"),
        ({"after": idle({'mt_segments_total{outcome="error"}': 2.0})}, "not provoked: 2 segments failed"),
        ({"num_broken_versions": 0}, "no error that was not provoked"),
        ({"after": idle(without="requests")}, "clients and server know the same calls: "),
        ({"logged": ENTRIES[1:]}, "expected OK, the server says UNSEEN"),
        ({"notes": notes(unanswered=["a", "b"])}, "each request is answered: a; b"),
        ({"notes": notes(twice=["a"])}, "no request is answered twice: a"),
        ({"notes": notes(wrong=["a"])}, "each answer is right: a"),
        ({"notes": notes(errors=["a"])}, "no error that was not provoked: a"),
        ({"notes": notes(last="OK")}, "no call ended with ['NOT_FOUND']"),
        ({"complaints": (BROKEN_VERSION, "Traceback")}, "no error that was not provoked: Traceback"),
        ({"exit_code": -9}, "the server drains: it ended with exit code -9"),
    ],
)
def test_each_promise_can_be_broken_alone(changed: dict[str, Any], sentence: str) -> None:
    (broken,) = summary(**changed).broken

    assert sentence in broken.sentence


def test_the_json_holds_the_whole_run() -> None:
    record = details(observations())

    assert record["samples"] == samples()
    assert record["offered_calls_per_s"] == 13.0
    assert {"kind": "usual Translate", "status": "OK", "count": 1} in record["calls"]


def test_a_directory_without_a_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--model-dir", str(tmp_path / "nowhere"), "--output", str(tmp_path)]) == 1

    assert "nowhere" in capsys.readouterr().err
