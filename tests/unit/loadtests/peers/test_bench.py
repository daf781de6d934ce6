"""With processes that take as long as a script says, without running anything."""

import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.loadtests.benchmarks.tiny_files import write_test_set, write_tiny_model

from loadtests.benchmarks import bench, report
from loadtests.benchmarks.__main__ import main
from loadtests.benchmarks.systems import ModelFiles, Output, Peer, SystemSettings, Work, WorkDone, Workers
from loadtests.benchmarks.work import Case, fixed_length
from tests.tiny_bundle import SENTENCES


class FakeWorkers(Workers):
    """Answers each source with its own token ids, twice as fast with two streams; others need half as long again."""

    asked: list[Peer]

    def run(self, settings: SystemSettings, work: Work) -> WorkDone:
        self.asked.append(settings.peer)
        count, elapsed_s = len(work.calls()), (1.0 if settings.peer == "dragoman" else 1.5) / settings.num_streams
        return WorkDone((elapsed_s / count,) * count, tuple(Output(source, score=0.0) for source in work.sources))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_tiny_model(tmp_path_factory.mktemp("compared") / "tiny")


@pytest.fixture
def run_bench(files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Compares on two cores, with a test set whose translations are its sentences, and writes into the same folder."""
    monkeypatch.setattr(FakeWorkers, "asked", [], raising=False)
    for name, fake in {"prepare_model": lambda *_, **__: files, "Workers": FakeWorkers, "num_cores": lambda: 2}.items():
        monkeypatch.setattr(bench, name, fake)
    write_test_set(tmp_path / "data", zip(SENTENCES, SENTENCES, strict=True))
    return lambda *flags: main(["bench", f"--data={tmp_path / 'data'}", f"--output={tmp_path / 'out'}", *flags])


_BATCH8 = "bench model=base case=batch8 threads=1 vs=ctranslate2-int8 ratio=1.50 ours=int8@1x1,b8 best=int8@1x1,b8 *"
_BATCH8_ON_TWO = "*ratio=1.50 ours=int8@2x1,b4 best=int8@2x1,b4 tokens_per_s=384 theirs=256"
_BASE = [f"*model=base case=batch{size} *" for size in (1, 1, 8, 8, 8, 8, 32, 32)]


@pytest.mark.parametrize(
    ("mode", "cases", "expected"),
    [
        ("short", "batch8", [_BATCH8, _BATCH8_ON_TWO, "*threads=1 vs=transformers-fp32 ratio=1.50*", "*ratio=3.00*"]),
        ("short", "*-all", ["*case=tatoeba-all* bleu=100.00 bleu_delta=0.00 identical=1.00"] * 2),
        ("short", "none,batch1", ["*case=batch1 * ratio=1.50 * p50_ms=125/188 *"] * 2),  # latencies of lone sentences
        ("full", "length[12]*", [f"*=length{length} threads=2 *" for length in (10, 25, 100, 150, 200)]),
        ("full", "*-agreement", ["*case=tatoeba-agreement threads=2 vs=ctranslate2-fp32 ours=* identical=1.00"]),
        ("full", "batch9*,length", []),
        ("short", "*", [*_BASE, *(f"*case=tatoeba-{name} *" for name in ("1", "1", "all", "all"))]),
    ],
)
def test_the_cases_asked_for_are_compared_and_each_has_its_lines(
    mode: str, cases: str, expected: list[str], run_bench: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_bench(f"--mode={mode}", f"--cases={cases}") == (0 if expected else 2)

    said = capsys.readouterr()
    lines = said.out.splitlines()[:-1]  # the last one says where the results are
    assert len(lines) == len(expected)
    assert all(sum(fnmatchcase(line, pattern) for line in lines) >= expected.count(pattern) for pattern in expected)
    assert expected or f"no case is named {cases}" in said.err


_CUT = {(1, 1), (1, 2), (2, 1)}
_WHOLE = {(1, 1), (1, 2)}


@pytest.mark.parametrize(
    ("peer", "num_sources", "changes", "cores", "expected"),
    [  # streams and threads, sizes of batches, instruction sets
        ("ctranslate2", 32, {}, 2, (_CUT, {16, 32}, {"", "AVX2"})),  # for several streams, or given to all threads
        ("dragoman", 32, {}, 2, (_CUT, {16, 32}, {""})),
        ("dragoman", 32, {}, 6, (_CUT | {(1, 4), (1, 6), (2, 2), (4, 1), (6, 1)}, {6, 8, 16, 32}, {""})),
        ("dragoman", 200, {}, 2, (_CUT, {16, 32, 64}, {""})),
        ("dragoman", 32, {"sources_per_call": 1}, 2, (_WHOLE, {1}, {""})),
        ("pytorch", 32, {}, 2, (_WHOLE, {32}, {""})),
        ("ctranslate2", 32, {"kind": "agreement"}, 2, ({(1, 2)}, {16}, {""})),
    ],
)
def test_setups_are_tried_where_they_matter(
    peer: Peer, num_sources: int, changes: dict[str, Any], cores: int, expected: tuple[set[Any], ...]
) -> None:
    case = Case(model="base", name="batch", sources=((2,),) * num_sources, search=fixed_length(10), **changes)
    plan = bench.Plan(mode="full", num_repetitions=1, thread_counts=(1, cores), isas=("", "AVX2"))

    found = bench.setups(case, (peer, "int8"), plan)

    layouts = {(settings.num_streams, settings.num_threads) for settings in found}
    assert (layouts, {settings.batch_size for settings in found}, {settings.isa for settings in found}) == expected


def test_on_a_gpu_half_precision_is_compared_at_more_sources_and_with_a_second_batch_in_flight(
    run_bench: Callable[..., int], files: ModelFiles, tmp_path: Path
) -> None:
    assert run_bench("--models=base", "--gpu=cuda", "--repetitions=1") == 0
    cases = json.loads((tmp_path / "out" / report.BENCH_NAME).read_text())["cases"]

    assert [case["sources_per_call"] for case in cases] == [1, 8, 32, 64, 128, 512]
    pairs = {(pair["ours"]["name"], pair["theirs"]["name"]) for case in cases for pair in case["pairs"]}
    assert pairs == {("dragoman-fp16", "ctranslate2-fp16"), ("dragoman-fp16", "transformers-fp16")}
    assert {trial["device"] for case in cases for trial in case["trials"]} == {"cuda"}
    tried = [
        {(trial["num_streams"], trial["batch_size"]) for trial in case["trials"] if trial["peer"] == "dragoman"}
        for case in cases
    ]
    assert tried[0] == {(1, 1)}
    assert tried[4] == {(1, 128), (2, 64)}
    assert tried[5] == {(streams, size) for streams in (1, 2) for size in (64, 128, 256)}
    assert run_bench("--models=base", "--gpu=cpu", "--mode=short", f"--files={files.directory}") == 0
    cases = json.loads((tmp_path / "out" / report.BENCH_NAME).read_text())["cases"]
    assert {trial["precision"] for case in cases for trial in case["trials"]} == {"fp32"}


def test_repetitions_alternate_and_are_kept_with_a_table_that_can_be_printed_again_and_pictures(
    run_bench: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_bench("--cases=batch8,length10,*-32,*-agreement", "--repetitions=4", "--models=shipped,base") == 0

    out = tmp_path / "out"
    cases = json.loads((out / report.BENCH_NAME).read_text())["cases"]
    assert [len(case["pairs"][0]["theirs"]["elapsed_s"]) for case in cases] == [4, 1, 4, 4]
    assert FakeWorkers.asked[-8:] == ["dragoman", "ctranslate2", "ctranslate2", "dragoman"] * 2
    capsys.readouterr()
    assert main(["table", f"--output={out}"]) == 0
    table = capsys.readouterr().out
    assert table == (out / report.TABLE_NAME).read_text()
    rows = [
        "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |\n| shipped | tatoeba-32 | 1 |*tokens/s | +0.00 |",
        "| base | batch8 | 1 | ctranslate2-int8 | 1.50 | 192 tokens/s | 128 tokens/s |  |",
        "| base | length10 |",
        "| tatoeba-agreement | fp32@1x2,b16 / ctranslate2-fp32 | 100.0 % |",
    ]
    assert [row for row in rows if not fnmatchcase(table, f"*{row}*")] == []
    assert {path.name for path in out.iterdir()} == {report.BENCH_NAME, report.TABLE_NAME, "ratios.png", "growth.png"}

    *_, speed, growth = cases
    (axes,) = report.ratios_picture([speed]).axes
    assert [bar.get_width() for bar in axes.patches] == [pair["ratio"] for pair in speed["pairs"]]  # type: ignore[attr-defined]
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [1.0, 1.0]
    assert axes.get_yticklabels()[0].get_text() == "base batch8 @1 vs ctranslate2-int8"
    (axes,) = report.growth_picture([growth]).axes
    lines = {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in axes.lines}
    seconds = {"dragoman-int8": 80 / 384, "ctranslate2-int8": 80 / 256}
    assert lines == {name: [[10.0, pytest.approx(s)]] for name, s in seconds.items()}
