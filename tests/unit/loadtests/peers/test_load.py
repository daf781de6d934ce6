import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.capacity import SearchPlan, find_capacities
from loadtests.peers.load import Plan, Side, agreement_of, best_settings, measure_load, tune
from loadtests.peers.report import LOAD_NAME, PICTURE_NAME, load_lines, load_picture, trial_line, write_load
from loadtests.peers.serve import BatchingSettings
from loadtests.peers.systems import Peer
from loadtests.slo import parse_slo
from tests.unit.loadtests.fake_system import FakeSystem

_SLO = parse_slo("p95<1s")
_PLAN = Plan(
    model="shipped",
    peer="ctranslate2",
    slo=_SLO,
    settings=None,
    run_s=10.0,
    trial_s=10.0,
    num_repetitions=2,
    loads=(0.3, 0.9),
    num_agreeing=1,
    search=SearchPlan(closed_loop_s=10.0, probe_s=10.0, resolution=0.01),
)
_Log = list[tuple[str, float, int]]


def _systems(log: _Log) -> dict[Side, FakeSystem]:
    return {
        "ours": FakeSystem("ours", log, capacity_per_s=160.0, service_s=0.05),
        "theirs": FakeSystem("theirs", log, capacity_per_s=100.0, service_s=0.1),
    }


@pytest.fixture
def compared() -> dict[str, Any]:
    systems = _systems([])
    capacities = find_capacities(systems, _SLO, _PLAN.search, note=lambda *_: None)
    per_s = capacities["ours"].per_s, capacities["theirs"].per_s
    return {
        "model": "shipped",
        "peer": "ctranslate2",
        "objective": "p95<1s",
        "settings": "2x1,b32,w0",
        "trials": [{"settings": "2x1,b32,w0", "runs": [], "p95_ms": [], "closed_loop_per_s": 100.0}],
        "agreement": {"num_texts": 100, "identical": 0.7, "bleu": 78.0, "tokens_ratio": 0.99, "holds": True},
        "our_capacity": asdict(capacities["ours"]),
        "their_capacity": asdict(capacities["theirs"]),
        "capacity_ratio": per_s[0] / per_s[1],
        "points": [measure_load(systems, load, per_s, _PLAN) for load in _PLAN.loads],
    }


def test_both_get_the_same_arrivals_in_turn_forwards_and_backwards() -> None:
    log: _Log = []

    point = measure_load(_systems(log), 0.6, (150.0, 100.0), replace(_PLAN, num_repetitions=3))

    sides = ("ours", "theirs", "theirs", "ours", "ours", "theirs")
    assert log == [(side, 60.0, seed) for side, seed in zip(sides, (1, 1, 2, 2, 3, 3), strict=True)]
    assert [point["p50_ratio"], point["p95_ratio"]] == pytest.approx([0.5, 0.5])


def test_a_line_for_each_load_is_what_scripts_read(compared: dict[str, Any]) -> None:
    lines = list(load_lines(compared))

    assert lines[0] == (
        "peers agreement=yes vs=ctranslate2 model=shipped identical=0.70 bleu=78.00 tokens_ratio=0.990 texts=100"
    )
    assert lines[1].startswith("peers capacity_ratio=1.6")
    assert lines[2].startswith("peers load=30% vs=ctranslate2 model=shipped p50_ratio=0.50 p95_ratio=0.50")
    assert lines[3].endswith("repetitions=2 targets=p50:reached,p95:reached,capacity:reached")


@pytest.mark.parametrize(
    ("ours", "capacities_per_s", "missed"),
    [
        ("ours", (100.0, 100.0), {"capacity"}),
        ("theirs", (150.0, 100.0), {"p50", "p95"}),
    ],
)
def test_missed_targets_are_said(
    compared: dict[str, Any], ours: Side, capacities_per_s: tuple[float, float], missed: set[str]
) -> None:
    systems: dict[Side, FakeSystem] = {"ours": _systems([])[ours], "theirs": _systems([])["theirs"]}

    point = measure_load(systems, 0.3, capacities_per_s, _PLAN)

    assert {name for name, is_so in point["reached"].items() if not is_so} == missed
    *_, line = load_lines({**compared, "points": [point]})
    assert all(f"{name}:missed" in line for name in missed)


def test_the_record_holds_every_run_and_the_verdict(compared: dict[str, Any], tmp_path: Path) -> None:
    write_load(tmp_path, {"machine": {"cores": 2}, "command": "", "comparisons": [compared]})

    read = json.loads((tmp_path / LOAD_NAME).read_text())
    (one,) = read["comparisons"]
    assert read["targets"] == {"max_latency_ratio": 0.6, "min_capacity_ratio": 1.5}
    assert [len(point["ours"]) for point in one["points"]] == [2, 2]
    assert one["points"][0]["reached"] == {"p50": True, "p95": True, "capacity": True}
    assert one["trials"][0]["settings"] == "2x1,b32,w0"
    assert len(one["their_capacity"]["probes"]) == len(compared["their_capacity"]["probes"]) > 0
    assert (tmp_path / PICTURE_NAME).stat().st_size > 0


def test_the_picture_has_a_column_for_each_comparison(compared: dict[str, Any]) -> None:
    figure = load_picture([compared, {**compared, "model": "base"}])

    assert [axes.get_ylabel() for axes in figure.axes] == ["p50, ms", "p50, ms", "p95, ms", "p95, ms"]
    ours = figure.axes[0].lines[0]
    assert np.asarray(ours.get_xdata()).tolist() == [30.0, 90.0]
    assert np.asarray(ours.get_ydata()).tolist() == pytest.approx([50.0, 50.0])


def _tune(peer: Peer, *, num_cores: int) -> tuple[list[dict[str, Any]], list[BatchingSettings]]:
    """Trials of a server that likes two streams, batches of 16 and no wait, and what was started."""
    asked: list[BatchingSettings] = []

    @contextmanager
    def start(settings: BatchingSettings) -> Iterator[FakeSystem]:
        asked.append(settings)
        capacity_per_s = 100.0 if settings.num_streams == 2 else 50.0
        service_s = 0.02 + settings.max_wait_ms / 1000 + abs(settings.batch_size - 16) / 1000
        yield FakeSystem(settings.name, [], capacity_per_s=capacity_per_s, service_s=service_s)

    return list(tune(start, replace(_PLAN, peer=peer), num_cores=num_cores)), asked


def test_the_other_server_is_set_up_as_it_does_best() -> None:
    trials, _ = _tune("ctranslate2", num_cores=2)

    assert best_settings(trials).name == "2x1,b16,w0"
    names = [trial["settings"] for trial in trials if trial["runs"]]
    assert len(names) == len(set(names)) == 7
    assert [trial["closed_loop_per_s"] for trial in trials[:2]] == [100.0, 50.0]
    line = trial_line(trials[2], peer="ctranslate2", model="base")
    assert line.startswith("peers trial=2x1,b32,w0 vs=ctranslate2 model=base p95_ms=36.0/36.0 rate=30.0/90.0")


def test_transformers_has_one_stream_only() -> None:
    _, asked = _tune("transformers", num_cores=4)

    assert {(settings.num_streams, settings.num_threads) for settings in asked} == {(1, 4)}


def _answers(text: str, *, num_tokens: int = 10) -> list[pb.TranslateResponse]:
    said = pb.Translation(hypotheses=[pb.Hypothesis(text=text)])
    return [pb.TranslateResponse(translations=[said], num_target_tokens=num_tokens)]


def test_servers_agree_that_say_about_the_same_at_the_same_length() -> None:
    said, other = "Das Wetter ist heute sehr schön.", "Zwei Hunde spielen im tiefen Schnee."

    same = agreement_of(_answers(said), _answers(said), has_meaning=True)

    assert same == {"num_texts": 1, "identical": 1.0, "bleu": pytest.approx(100), "tokens_ratio": 1.0, "holds": True}
    assert not agreement_of(_answers(said), _answers(other), has_meaning=True)["holds"]
    assert agreement_of(_answers(said), _answers(other), has_meaning=False)["holds"]
    assert not agreement_of(_answers(said, num_tokens=12), _answers(other), has_meaning=False)["holds"]
