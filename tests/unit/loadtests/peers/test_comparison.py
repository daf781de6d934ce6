from dataclasses import replace
from typing import Any

import pytest

from loadtests.peers.bench_report import pair_line
from loadtests.peers.cases import Case, fixed_length, random_sources
from loadtests.peers.comparison import CaseResult, Pairing, Plan, compare, setups
from loadtests.peers.systems import Peer, SystemSettings
from tests.unit.loadtests.peers.fake_runner import FakeRunner

_PLAN = Plan(mode="full", num_repetitions=4, thread_counts=(1, 2), isas=("",))
_PAIRING = Pairing(ours="int8", peer="ctranslate2", theirs="int8")
_CASE = Case(
    model="base", name="batch8", sources=random_sources(8, vocabulary_size=100, eos_id=2), search=fixed_length(8)
)


def _duration_s(settings: SystemSettings) -> float:
    """Twice as fast with two streams; CTranslate2 needs half as long again."""
    return (1.5 if settings.peer == "ctranslate2" else 1.0) / settings.num_streams


def _compare(case: Case, runner: FakeRunner) -> CaseResult:
    return compare(runner, case, [_PAIRING], _PLAN, judge=lambda outputs, _: float(len(outputs)))


def test_each_system_is_compared_at_its_best_setup_for_the_cores_it_may_use() -> None:
    result = _compare(_CASE, FakeRunner(_duration_s))

    assert [(pair.num_threads, pair.ours.settings.num_streams) for pair in result.pairs] == [(1, 1), (2, 2)]
    assert [pair.ratio for pair in result.pairs] == [1.5, 1.5]


def test_repetitions_alternate_between_the_systems() -> None:
    runner = FakeRunner(_duration_s)

    result = _compare(replace(_CASE, kind="growth"), runner)

    names = [settings.peer for settings in runner.asked[-8:]]
    assert names == ["dragoman", "ctranslate2", "ctranslate2", "dragoman"] * 2
    assert {len(measurement.elapsed_s) for measurement in result.measurements} == {4}


def test_lone_sentences_are_compared_by_latency() -> None:
    (pair, _) = _compare(replace(_CASE, sources_per_call=1), FakeRunner(_duration_s)).pairs

    assert pair.ratio == 1.5
    assert pair.ours.latency_s(0.5) == pytest.approx(1 / 8)
    assert "p50_ms=125/188" in pair_line(pair)


def test_agreement_is_looked_at_once() -> None:
    runner = FakeRunner(_duration_s)

    (pair,) = _compare(replace(_CASE, kind="agreement", has_meaning=True), runner).pairs

    assert len(pair.ours.elapsed_s) == 1
    assert "identical=1.00" in pair_line(pair)
    assert "ratio" not in pair_line(pair)


def test_a_line_is_what_scripts_read() -> None:
    pair = _compare(replace(_CASE, references=("r",) * 8), FakeRunner(_duration_s)).pairs[-1]

    assert pair_line(pair) == (
        "bench model=base case=batch8 threads=2 vs=ctranslate2-int8 ratio=1.50 ours=int8@2x1,b4 best=int8@2x1,b4"
        " tokens_per_s=384 theirs=256 bleu=8.00 bleu_delta=0.00"
    )


_BATCH_32 = replace(_CASE, name="batch32", sources=random_sources(32, vocabulary_size=100, eos_id=2))


def _setups(case: Case, peer: Peer) -> list[SystemSettings]:
    return setups(case, peer, "int8", replace(_PLAN, isas=("", "AVX2")))


def _layouts(found: list[SystemSettings]) -> set[tuple[int, int]]:
    return {(settings.num_streams, settings.num_threads) for settings in found}


@pytest.mark.parametrize(
    ("changes", "peer", "layouts"),
    [
        ({}, "ctranslate2", {(1, 1), (1, 2), (2, 1)}),  # cut for several streams, or given to all threads
        ({"sources_per_call": 1}, "dragoman", {(1, 1), (1, 2)}),
        ({}, "pytorch", {(1, 1), (1, 2)}),
        ({"kind": "agreement"}, "ctranslate2", {(1, 2)}),
    ],
)
def test_streams_and_threads_are_tried_as_far_as_a_system_and_a_case_have_them(
    changes: dict[str, Any], peer: Peer, layouts: set[tuple[int, int]]
) -> None:
    assert _layouts(_setups(replace(_BATCH_32, **changes), peer)) == layouts


def test_many_cores_are_tried_in_powers_of_two() -> None:
    found = setups(_BATCH_32, "dragoman", "int8", replace(_PLAN, thread_counts=(1, 6), mode="short"))

    assert _layouts(found) == {(1, 1), (1, 2), (1, 4), (1, 6), (2, 1), (2, 2), (4, 1), (6, 1)}


def test_batch_sizes_and_instruction_sets_are_tried_where_they_matter() -> None:
    theirs, ours = _setups(_BATCH_32, "ctranslate2"), _setups(_BATCH_32, "dragoman")
    many = _setups(replace(_BATCH_32, sources=random_sources(200, vocabulary_size=100, eos_id=2)), "dragoman")

    assert {settings.isa for settings in theirs} == {"", "AVX2"}
    assert {settings.isa for settings in ours} == {""}
    assert {settings.batch_size for settings in theirs if settings.num_streams == 2} == {16, 32}
    assert {settings.batch_size for settings in many} == {16, 32, 64}
    assert len(_setups(replace(_BATCH_32, kind="agreement"), "ctranslate2")) == 1
