"""With processes that take as long as a script says, without running anything."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtests.machine import describe_machine
from loadtests.peers import report
from loadtests.peers.__main__ import main
from loadtests.peers.bench import INT8, Plan, compare, setups
from loadtests.peers.systems import ModelFiles, Output, Peer, SystemSettings, Work, WorkDone, Workers
from loadtests.peers.work import Case, fixed_length, random_sources

_PLAN = Plan(mode="full", num_repetitions=4, thread_counts=(1, 2), isas=("",))
_SOURCES = random_sources(200, vocabulary_size=100, eos_id=2)
_CASE = Case(model="base", name="batch8", sources=_SOURCES[:8], search=fixed_length(10))
_SAID = "Das ist ein ganzer Satz ."


class FakeWorkers(Workers):
    """Answers each source with its own token ids, twice as fast with two streams; others need half as long again."""

    def __init__(self) -> None:
        super().__init__(ModelFiles(Path()))
        self.asked: list[Peer] = []

    def run(self, settings: SystemSettings, work: Work) -> WorkDone:
        self.asked.append(settings.peer)
        count, elapsed_s = len(work.calls()), (1.0 if settings.peer == "dragoman" else 1.5) / settings.num_streams
        return WorkDone((elapsed_s / count,) * count, tuple(Output(source, score=0.0) for source in work.sources))


@pytest.fixture
def workers() -> FakeWorkers:
    return FakeWorkers()


def _compare(workers: Workers, plan: Plan = _PLAN, **changes: Any) -> dict[str, Any]:
    return compare(workers, replace(_CASE, **changes), [INT8], plan, decode=lambda _: _SAID)


def test_each_system_is_compared_at_its_best_setup_for_the_cores_it_may_use(workers: FakeWorkers) -> None:
    compared = _compare(workers, references=(_SAID,) * 8)

    found = [(pair["threads"], pair["ours"]["num_streams"], pair["ratio"]) for pair in compared["pairs"]]
    assert found == [(1, 1, 1.5), (2, 2, 1.5)]
    assert list(report.pair_lines(compared))[-1] == (
        "bench model=base case=batch8 threads=2 vs=ctranslate2-int8 ratio=1.50 ours=int8@2x1,b4 best=int8@2x1,b4"
        " tokens_per_s=384 theirs=256 bleu=100.00 bleu_delta=0.00"
    )


def test_repetitions_alternate_between_the_systems(workers: FakeWorkers) -> None:
    (pair,) = _compare(workers, kind="growth")["pairs"]

    assert workers.asked[-8:] == ["dragoman", "ctranslate2", "ctranslate2", "dragoman"] * 2
    assert len(pair["ours"]["elapsed_s"]) == len(pair["theirs"]["elapsed_s"]) == 4


def test_lone_sentences_are_compared_by_latency(workers: FakeWorkers) -> None:
    compared = _compare(workers, sources_per_call=1)

    assert (compared["pairs"][0]["ratio"], compared["pairs"][0]["ours"]["p50_s"]) == (1.5, 1 / 8)
    assert "p50_ms=125/188" in next(report.pair_lines(compared))


def test_agreement_is_looked_at_once(workers: FakeWorkers) -> None:
    compared = _compare(workers, kind="agreement", has_meaning=True)

    (line,) = report.pair_lines(compared)
    assert len(compared["pairs"][0]["ours"]["elapsed_s"]) == 1
    assert "identical=1.00" in line
    assert "ratio" not in line


_CUT = {(1, 1), (1, 2), (2, 1)}
_WHOLE = {(1, 1), (1, 2)}


@pytest.mark.parametrize(
    ("peer", "num_sources", "changes", "cores", "layouts", "sizes", "isas"),
    [
        ("ctranslate2", 32, {}, 2, _CUT, {16, 32}, {"", "AVX2"}),  # for several streams, or given to all threads
        ("dragoman", 32, {}, 2, _CUT, {16, 32}, {""}),
        ("dragoman", 32, {}, 6, _CUT | {(1, 4), (1, 6), (2, 2), (4, 1), (6, 1)}, {6, 8, 16, 32}, {""}),
        ("dragoman", 200, {}, 2, _CUT, {16, 32, 64}, {""}),
        ("dragoman", 32, {"sources_per_call": 1}, 2, _WHOLE, {1}, {""}),
        ("pytorch", 32, {}, 2, _WHOLE, {32}, {""}),
        ("ctranslate2", 32, {"kind": "agreement"}, 2, {(1, 2)}, {16}, {""}),
    ],
)
def test_streams_threads_batches_and_instruction_sets_are_tried_where_they_matter(
    peer: Peer,
    num_sources: int,
    changes: dict[str, Any],
    cores: int,
    layouts: set[tuple[int, int]],
    sizes: set[int],
    isas: set[str],
) -> None:
    case = replace(_CASE, sources=_SOURCES[:num_sources], **changes)

    found = setups(case, (peer, "int8"), replace(_PLAN, thread_counts=(1, cores), isas=("", "AVX2")))

    assert {(settings.num_streams, settings.num_threads) for settings in found} == layouts
    assert {settings.batch_size for settings in found} == sizes
    assert {settings.isa for settings in found} == isas


def test_a_comparison_is_kept_with_a_table_that_can_be_printed_again_and_pictures(
    workers: FakeWorkers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = replace(_PLAN, mode="short", num_repetitions=2, thread_counts=(1,))
    compared = [
        _compare(workers, plan, references=(_SAID,) * 8),
        _compare(workers, plan, name="length10", kind="growth"),
        _compare(workers, plan, name="said", kind="agreement", has_meaning=True),
    ]
    record = {"machine": describe_machine(), "command": "python -m loadtests peers bench", "cases": compared}

    report.write_bench(tmp_path, record)

    assert main(["table", "--output", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert table == (tmp_path / "table.md").read_text()
    assert "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |" in table
    assert "| base | batch8 | 1 | ctranslate2-int8 | 1.50 | 192 tokens/s | 128 tokens/s | +0.00 |" in table
    assert "| base | length10 |" in table
    assert "| said | int8@1x1,b16 / ctranslate2-int8 | 100.0 % |" in table
    assert json.loads((tmp_path / report.BENCH_NAME).read_text()) == json.loads(json.dumps(record))
    assert {path.name for path in tmp_path.iterdir()} == {report.BENCH_NAME, "table.md", "ratios.png", "growth.png"}

    (axes,) = report.ratios_picture(compared[:1]).axes
    (bar,) = axes.patches
    assert (bar.get_width(), np.asarray(axes.lines[0].get_xdata()).tolist()) == (1.5, [1.0, 1.0])  # type: ignore[attr-defined]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["base batch8 @1 vs ctranslate2-int8"]
    (axes,) = report.growth_picture(compared[1:2]).axes
    lines = [(str(line.get_label()), np.asarray(line.get_xydata()).tolist()) for line in axes.lines]
    assert lines == [
        ("dragoman-int8", [[10.0, pytest.approx(80 / 192)]]),  # seconds over length
        ("ctranslate2-int8", [[10.0, pytest.approx(80 / 128)]]),
    ]
