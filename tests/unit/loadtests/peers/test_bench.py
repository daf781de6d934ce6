"""With processes that take as long as a script says, without running anything."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtests.machine import describe_machine
from loadtests.peers.__main__ import main
from loadtests.peers.bench import INT8, Plan, compare, setups
from loadtests.peers.report import BENCH_NAME, bench_table, growth_picture, pair_lines, ratios_picture, write_bench
from loadtests.peers.systems import ModelFiles, Output, Peer, SystemSettings, Work, WorkDone, Workers
from loadtests.peers.work import Case, fixed_length, random_sources

_PLAN = Plan(mode="full", num_repetitions=4, thread_counts=(1, 2), isas=("",))
_SOURCES = random_sources(200, vocabulary_size=100, eos_id=2)
_CASE = Case(model="base", name="batch8", sources=_SOURCES[:8], search=fixed_length(10))
_BATCH_32 = replace(_CASE, name="batch32", sources=_SOURCES[:32])
_SAID = "Das ist ein ganzer Satz ."


class FakeWorkers(Workers):
    """Answers each source with its own token ids and remembers who was asked."""

    def __init__(self, duration_s: Callable[[SystemSettings], float]) -> None:
        super().__init__(ModelFiles(Path()))
        self.asked: list[SystemSettings] = []
        self._duration_s = duration_s

    def run(self, settings: SystemSettings, work: Work) -> WorkDone:
        self.asked.append(settings)
        latencies_s = (self._duration_s(settings) / len(work.calls()),) * len(work.calls())
        return WorkDone(latencies_s, tuple(Output(source, score=0.0) for source in work.sources))


@pytest.fixture
def workers() -> FakeWorkers:
    """Twice as fast with two streams; CTranslate2 needs half as long again."""
    return FakeWorkers(lambda settings: (1.5 if settings.peer == "ctranslate2" else 1.0) / settings.num_streams)


def _compare(workers: Workers, case: Case, plan: Plan = _PLAN) -> dict[str, Any]:
    return compare(workers, case, [INT8], plan, decode=lambda _: _SAID)


@pytest.fixture
def record() -> dict[str, Any]:
    plan = replace(_PLAN, mode="short", num_repetitions=2, thread_counts=(1,))
    workers = FakeWorkers(lambda settings: 2.0 if settings.peer == "ctranslate2" else 1.0)
    cases = [
        replace(_CASE, references=(_SAID,) * 8),
        replace(_CASE, name="length10", kind="growth"),
        replace(_CASE, name="said", kind="agreement", has_meaning=True),
    ]
    compared = [_compare(workers, case, plan) for case in cases]
    return {"machine": describe_machine(), "command": "python -m loadtests peers bench", "cases": compared}


def test_each_system_is_compared_at_its_best_setup_for_the_cores_it_may_use(workers: FakeWorkers) -> None:
    pairs = _compare(workers, replace(_CASE, references=(_SAID,) * 8))

    assert [(pair["threads"], pair["ours"]["num_streams"], pair["ratio"]) for pair in pairs["pairs"]] == [
        (1, 1, 1.5),
        (2, 2, 1.5),
    ]
    assert list(pair_lines(pairs))[-1] == (
        "bench model=base case=batch8 threads=2 vs=ctranslate2-int8 ratio=1.50 ours=int8@2x1,b4 best=int8@2x1,b4"
        " tokens_per_s=384 theirs=256 bleu=100.00 bleu_delta=0.00"
    )


def test_repetitions_alternate_between_the_systems(workers: FakeWorkers) -> None:
    (pair,) = _compare(workers, replace(_CASE, kind="growth"))["pairs"]

    names = [settings.peer for settings in workers.asked[-8:]]
    assert names == ["dragoman", "ctranslate2", "ctranslate2", "dragoman"] * 2
    assert [len(pair[side]["elapsed_s"]) for side in ("ours", "theirs")] == [4, 4]


def test_lone_sentences_are_compared_by_latency(workers: FakeWorkers) -> None:
    compared = _compare(workers, replace(_CASE, sources_per_call=1))

    assert compared["pairs"][0]["ratio"] == 1.5
    assert compared["pairs"][0]["ours"]["p50_s"] == pytest.approx(1 / 8)
    assert "p50_ms=125/188" in next(pair_lines(compared))


def test_agreement_is_looked_at_once(workers: FakeWorkers) -> None:
    compared = _compare(workers, replace(_CASE, kind="agreement", has_meaning=True))

    (line,) = pair_lines(compared)
    assert len(compared["pairs"][0]["ours"]["elapsed_s"]) == 1
    assert "identical=1.00" in line
    assert "ratio" not in line


def _setups(case: Case, peer: Peer, **plan: Any) -> list[SystemSettings]:
    return setups(case, (peer, "int8"), replace(_PLAN, isas=("", "AVX2"), **plan))


@pytest.mark.parametrize(
    ("changes", "peer", "layouts"),
    [
        ({}, "ctranslate2", {(1, 1), (1, 2), (2, 1)}),  # cut for several streams, or given to all threads
        ({"sources_per_call": 1}, "dragoman", {(1, 1), (1, 2)}),
        ({}, "pytorch", {(1, 1), (1, 2)}),
        ({"kind": "agreement"}, "ctranslate2", {(1, 2)}),
        ({"name": "many cores"}, "dragoman", {(1, 1), (1, 2), (1, 4), (1, 6), (2, 1), (2, 2), (4, 1), (6, 1)}),
    ],
)
def test_streams_and_threads_are_tried_as_far_as_a_system_and_a_case_have_them(
    changes: dict[str, Any], peer: Peer, layouts: set[tuple[int, int]]
) -> None:
    most = 6 if "name" in changes else 2
    found = _setups(replace(_BATCH_32, **changes), peer, thread_counts=(1, most))

    assert {(settings.num_streams, settings.num_threads) for settings in found} == layouts


def test_batch_sizes_and_instruction_sets_are_tried_where_they_matter() -> None:
    theirs, ours = _setups(_BATCH_32, "ctranslate2"), _setups(_BATCH_32, "dragoman")
    many = _setups(replace(_BATCH_32, sources=_SOURCES), "dragoman")

    assert {settings.isa for settings in theirs} == {"", "AVX2"}
    assert {settings.isa for settings in ours} == {""}
    assert {settings.batch_size for settings in theirs if settings.num_streams == 2} == {16, 32}
    assert {settings.batch_size for settings in many} == {16, 32, 64}
    assert len(_setups(replace(_BATCH_32, kind="agreement"), "ctranslate2")) == 1


def test_a_comparison_is_kept_with_a_table_that_can_be_printed_again(
    record: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bench(tmp_path, record)

    assert main(["table", "--output", str(tmp_path)]) == 0

    table = capsys.readouterr().out
    assert table == bench_table(record) == (tmp_path / "table.md").read_text()
    assert "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |" in table
    assert "| base | batch8 | 1 | ctranslate2-int8 | 2.00 | 192 tokens/s | 96 tokens/s | +0.00 |" in table
    assert "| base | length10 |" in table
    assert "| said | int8@1x1,b16 / ctranslate2-int8 | 100.0 % |" in table
    read = json.loads((tmp_path / BENCH_NAME).read_text())
    assert len(read["cases"][0]["pairs"][0]["theirs"]["elapsed_s"]) == 2
    assert read["machine"]["cores"] >= 1
    assert read["command"] == "python -m loadtests peers bench"
    assert {path.name for path in tmp_path.iterdir()} == {BENCH_NAME, "table.md", "ratios.png", "growth.png"}


def test_a_pair_is_a_bar_beside_the_line_of_equal_speed(record: dict[str, Any]) -> None:
    (axes,) = ratios_picture(record["cases"][:1]).axes

    (bar,) = axes.patches
    assert (bar.get_width(), np.asarray(axes.lines[0].get_xdata()).tolist()) == (2.0, [1.0, 1.0])  # type: ignore[attr-defined]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["base batch8 @1 vs ctranslate2-int8"]


def test_growth_is_a_line_of_seconds_over_length_for_each_side(record: dict[str, Any]) -> None:
    (axes,) = growth_picture(record["cases"][1:2]).axes

    ours, theirs = [(str(line.get_label()), np.asarray(line.get_xydata()).tolist()) for line in axes.lines]
    assert ours == ("dragoman-int8", [[10.0, pytest.approx(80 / 192)]])
    assert theirs == ("ctranslate2-int8", [[10.0, pytest.approx(80 / 96)]])
