import json
from dataclasses import replace

import numpy as np
import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.capacity import SearchPlan, find_capacities
from loadtests.peers.load_comparison import Plan, Side, measure_load
from loadtests.peers.load_report import Agreement, Comparison, Trial, agreement_of, picture, record_of, trial_line
from loadtests.slo import parse_slo
from tests.unit.loadtests.fake_system import FakeSystem

_AGREEMENT = Agreement(num_texts=100, identical=0.7, bleu=78.0, tokens_ratio=0.99)
_PLAN = Plan(
    run_s=10.0,
    trial_s=10.0,
    num_repetitions=2,
    loads=(0.3, 0.9),
    search=SearchPlan(closed_loop_s=10.0, probe_s=10.0, resolution=0.01),
)


@pytest.fixture
def compared() -> Comparison:
    systems: dict[Side, FakeSystem] = {
        "ours": FakeSystem("ours", [], capacity_per_s=160.0, service_s=0.05),
        "theirs": FakeSystem("theirs", [], capacity_per_s=100.0, service_s=0.1),
    }
    capacities = find_capacities(systems, parse_slo("p95<1s"), _PLAN.search, note=lambda *_: None)
    return Comparison(
        model="shipped",
        peer="ctranslate2",
        objective="p95<1s",
        settings="2x1,b32,w0",
        trials=(Trial(settings="2x1,b32,w0", runs=(), closed_loop_per_s=100.0),),
        agreement=_AGREEMENT,
        our_capacity=capacities["ours"],
        their_capacity=capacities["theirs"],
        points=tuple(measure_load(systems, load, capacities["theirs"].per_s, _PLAN) for load in _PLAN.loads),
    )


def test_a_line_for_each_load_is_what_scripts_read(compared: Comparison) -> None:
    lines = list(compared.lines())

    assert lines[0] == (
        "peers agreement=yes vs=ctranslate2 model=shipped identical=0.70 bleu=78.0 tokens_ratio=0.990 texts=100"
    )
    assert lines[1].startswith("peers capacity_ratio=1.6")
    assert lines[2].startswith("peers load=30% vs=ctranslate2 model=shipped p50_ratio=0.50 p95_ratio=0.50")
    assert lines[3].endswith("repetitions=2 targets=p50:reached,p95:reached,capacity:reached")


def test_missed_targets_are_said(compared: Comparison) -> None:
    (point, _) = compared.points
    slower = replace(compared, our_capacity=compared.their_capacity)
    later = replace(point, ours=point.theirs)

    assert slower.reached(point) == {"p50": True, "p95": True, "capacity": False}
    assert compared.reached(later) == {"p50": False, "p95": False, "capacity": True}
    assert "targets=p50:missed,p95:missed,capacity:missed" in list(replace(slower, points=(later,)).lines())[-1]


def test_the_record_holds_every_run_and_the_verdict(compared: Comparison) -> None:
    record = record_of([compared], {"cores": 2}, "python -m loadtests peers load")

    (read,) = json.loads(json.dumps(record, allow_nan=False))["comparisons"]
    assert [len(point["ours"]) for point in read["points"]] == [2, 2]
    assert read["points"][0]["reached"] == {"p50": True, "p95": True, "capacity": True}
    assert read["trials"][0]["settings"] == "2x1,b32,w0"
    assert len(read["their_capacity"]["probes"]) == len(compared.their_capacity.probes)
    trial = Trial(settings="2x1,b8,w5", runs=compared.points[0].theirs)
    assert trial_line(trial, peer="ctranslate2", model="base").startswith(
        "peers trial=2x1,b8,w5 vs=ctranslate2 model=base p95_ms=100.0/100.0 rate="
    )


def test_the_picture_has_a_column_for_each_comparison(compared: Comparison) -> None:
    figure = picture([compared, replace(compared, model="base")])

    assert [axes.get_ylabel() for axes in figure.axes] == ["p50, ms", "p50, ms", "p95, ms", "p95, ms"]
    ours = figure.axes[0].lines[0]
    assert np.asarray(ours.get_xdata()).tolist() == [30.0, 90.0]
    assert np.asarray(ours.get_ydata()).tolist() == pytest.approx([50.0, 50.0])


def _answers(*texts: str, num_tokens: int = 10) -> list[pb.TranslateResponse]:
    return [
        pb.TranslateResponse(
            translations=[pb.Translation(hypotheses=[pb.Hypothesis(text=text)])], num_target_tokens=num_tokens
        )
        for text in texts
    ]


def test_servers_agree_that_say_about_the_same_at_the_same_length() -> None:
    said, other = ["Das Wetter ist heute sehr schön."], ["Zwei Hunde spielen im tiefen Schnee."]

    same = agreement_of(_answers(*said), _answers(*said), has_meaning=True)

    assert same.holds
    assert (same.identical, same.tokens_ratio) == (1.0, 1.0)
    assert same.bleu == pytest.approx(100.0)
    assert not agreement_of(_answers(*said), _answers(*other), has_meaning=True).holds
    assert agreement_of(_answers(*said), _answers(*other), has_meaning=False).holds
    assert not agreement_of(_answers(*said, num_tokens=12), _answers(*other), has_meaning=False).holds
