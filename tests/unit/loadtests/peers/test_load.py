"""With servers that answer in a time of their own, without running any."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.capacity import SearchPlan
from loadtests.peers import load, report
from loadtests.peers.load import Plan, Side, agreement_of, measure_load
from loadtests.peers.serve import BatchingSettings
from loadtests.peers.systems import ModelFiles
from loadtests.slo import parse_slo
from loadtests.workload import Workload
from tests.unit.loadtests.fake_system import FakeSystem

_PLAN = Plan(
    model="shipped",
    peer="ctranslate2",
    slo=parse_slo("p95<1s"),
    settings=None,
    run_s=10.0,
    num_repetitions=2,
    loads=(0.3, 0.9),
    num_agreeing=1,
    search=SearchPlan(closed_loop_s=10.0, probe_s=10.0, resolution=0.01),
)


def _answers(text: str, *, num_tokens: int = 10) -> list[pb.TranslateResponse]:
    said = pb.Translation(hypotheses=[pb.Hypothesis(text=text)])
    return [pb.TranslateResponse(translations=[said], num_target_tokens=num_tokens)]


class FakeServer(FakeSystem):
    """Ours answers in half the time; the other one likes two streams, batches of 16 and no wait."""

    def __init__(self, other: BatchingSettings | None, log: list[tuple[str, float, int]]) -> None:
        if other is None:
            super().__init__("ours", log, capacity_per_s=160.0, service_s=0.05)
        else:
            capacity_per_s = 100.0 if other.num_streams == 2 else 50.0
            service_s = 0.1 + other.max_wait_ms / 1000 + abs(other.batch_size - 16) / 1000
            super().__init__("theirs", log, capacity_per_s=capacity_per_s, service_s=service_s)

    def answers(self, *, count: int) -> list[pb.TranslateResponse]:
        return count * _answers("Das Wetter ist heute sehr schön.")


_BEST = BatchingSettings(num_streams=2, batch_size=16, max_wait_ms=0.0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[BatchingSettings | None]:
    """What was started."""
    monkeypatch.setattr(load, "num_cores", lambda: 2)
    servers: list[BatchingSettings | None] = []

    @contextmanager
    def serving(*_: object, log: Path, other: BatchingSettings | None = None) -> Iterator[FakeServer]:
        servers.append(other)
        yield FakeServer(other, [])

    monkeypatch.setattr(load, "serving", serving)
    return servers


def _compare(**changes: Any) -> dict[str, Any]:
    return load.compare(replace(_PLAN, **changes), ModelFiles(Path()), Workload(), directory=Path())


def test_the_other_server_is_set_up_as_it_does_best(started: list[BatchingSettings | None]) -> None:
    found = _compare()

    assert found["settings"] == "2x1,b16,w0"
    assert started[-2:] == [None, _BEST]
    trials = found["trials"]
    names = [trial["settings"] for trial in trials if trial["runs"]]
    assert len(names) == len(set(names)) == 7
    assert [trial["closed_loop_per_s"] for trial in trials[:2]] == [100.0, 50.0]
    assert report.trial_line(trials[2], peer="ctranslate2", model="base") == (
        "peers trial=2x1,b32,w0 vs=ctranslate2 model=base p95_ms=116.0/116.0 rate=30.0/90.0"
    )


def test_transformers_has_one_stream_only(started: list[BatchingSettings | None]) -> None:
    _compare(peer="transformers")

    assert {(one.peer, one.num_streams, one.num_threads) for one in started if one} == {("transformers", 1, 2)}


def test_a_line_for_each_load_is_what_scripts_read_and_every_run_is_kept(
    started: list[BatchingSettings | None], tmp_path: Path
) -> None:
    found = _compare(settings=_BEST)
    lines = list(report.load_lines(found))
    report.write_load(tmp_path, {"comparisons": [found]})

    assert started == [None, _BEST]
    assert lines[0] == (
        "peers agreement=yes vs=ctranslate2 model=shipped identical=1.00 bleu=100.00 tokens_ratio=1.000 texts=1"
    )
    assert lines[1].startswith("peers capacity_ratio=1.6")
    assert lines[2].startswith("peers load=30% vs=ctranslate2 model=shipped p50_ratio=0.50 p95_ratio=0.50")
    assert lines[3].endswith("repetitions=2 targets=p50:reached,p95:reached,capacity:reached")
    read = json.loads((tmp_path / report.LOAD_NAME).read_text())
    (one,) = read["comparisons"]
    assert read["targets"] == {"max_latency_ratio": 0.6, "min_capacity_ratio": 1.5}
    assert [len(point["ours"]) for point in one["points"]] == [2, 2]
    assert len(one["their_capacity"]["probes"]) > 1
    assert (tmp_path / report.PICTURE_NAME).stat().st_size > 0
    figure = report.load_picture([found, {**found, "model": "base"}])  # a column for each
    assert [axes.get_ylabel() for axes in figure.axes] == ["p50, ms", "p50, ms", "p95, ms", "p95, ms"]
    drawn = np.asarray(figure.axes[0].lines[0].get_xydata())
    assert drawn.tolist() == [[30.0, pytest.approx(50)], [90.0, pytest.approx(50)]]


def test_both_get_the_same_arrivals_in_turn_forwards_and_backwards() -> None:
    log: list[tuple[str, float, int]] = []
    systems: dict[Side, FakeServer] = {"ours": FakeServer(None, log), "theirs": FakeServer(_BEST, log)}

    measure_load(systems, 0.6, (150.0, 100.0), replace(_PLAN, num_repetitions=3))

    sides = ("ours", "theirs", "theirs", "ours", "ours", "theirs")
    assert log == [(side, 60.0, seed) for side, seed in zip(sides, (1, 1, 2, 2, 3, 3), strict=True)]


@pytest.mark.parametrize(("ours", "per_s", "missed"), [(None, 100.0, {"capacity"}), (_BEST, 150.0, {"p50", "p95"})])
def test_missed_targets_are_said(
    started: list[BatchingSettings | None], ours: BatchingSettings | None, per_s: float, missed: set[str]
) -> None:
    systems: dict[Side, FakeServer] = {"ours": FakeServer(ours, []), "theirs": FakeServer(_BEST, [])}

    point = measure_load(systems, 0.3, (per_s, 100.0), _PLAN)

    assert {name for name, is_so in point["reached"].items() if not is_so} == missed
    *_, line = report.load_lines({**_compare(settings=_BEST), "points": [point]})
    assert all(f"{name}:missed" in line for name in missed)


def test_servers_agree_that_say_about_the_same_at_the_same_length() -> None:
    said, other = "Das Wetter ist heute sehr schön.", "Zwei Hunde spielen im tiefen Schnee."

    assert agreement_of(_answers(said), _answers(said), has_meaning=True)["holds"]
    assert not agreement_of(_answers(said), _answers(other), has_meaning=True)["holds"]
    assert agreement_of(_answers(said), _answers(other), has_meaning=False)["holds"]
    assert not agreement_of(_answers(said, num_tokens=12), _answers(other), has_meaning=False)["holds"]
