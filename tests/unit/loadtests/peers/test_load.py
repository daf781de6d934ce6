"""With servers that answer in a time of their own, without running any."""

import argparse
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.flags import add_workload_flags, workload_of
from loadtests.benchmarks import load, report
from loadtests.benchmarks.__main__ import main
from loadtests.benchmarks.serve import BatchingSettings
from loadtests.benchmarks.systems import ModelFiles
from loadtests.generator.workload import Workload
from tests.unit.loadtests.fake_calls import FakeSystem
from tests.unit.loadtests.benchmarks.tiny_files import write_test_set

Capture = pytest.CaptureFixture[str]
_SAID, _OTHER = "Das Wetter ist heute sehr schön.", "Zwei Hunde spielen im tiefen Schnee."
_BEST = "2x1,b16,w0"


class Servers:
    """Ours answers in half the time; the other one likes two streams, batches of 16 and no wait."""

    def __init__(self) -> None:
        self.ours = {"answer": _SAID, "num_tokens": 20, "capacity_per_s": 160.0, "service_s": 0.05}
        self.started, self.offered = list[BatchingSettings | None](), list[tuple[str, float, int]]()

    @contextmanager
    def serving(self, *_: object, log: Path, other: BatchingSettings | None = None) -> Iterator[FakeSystem]:
        self.started.append(other)
        is_: dict[str, Any] = self.ours
        if other is not None:
            service_s = 0.1 + other.max_wait_ms / 1000 + abs(other.batch_size - 16) / 1000
            capacity_per_s = 100.0 if other.num_streams == 2 else 50.0
            is_ = {"answer": _SAID, "num_tokens": 20, "capacity_per_s": capacity_per_s, "service_s": service_s}
        speed = {"capacity_per_s": is_["capacity_per_s"], "service_s": is_["service_s"]}
        server: Any = FakeSystem("theirs" if other else "ours", self.offered, **speed)
        answer = pb.TranslateResponse(num_target_tokens=is_["num_tokens"])
        answer.translations.add().hypotheses.add(text=is_["answer"])
        server.answers = lambda *, count: [answer] * count
        yield server


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers()
    monkeypatch.setattr(load, "num_cores", lambda: 2)
    monkeypatch.setattr(load, "serving", servers.serving)
    monkeypatch.setattr(load, "prepare_model", lambda path, *_, **__: ModelFiles(path))
    return servers


def _load(directory: Path, *flags: str) -> int:
    return main(["load", f"--output={directory}", "--slo=p95<1s", "--against=ctranslate2", *flags])


def test_the_other_server_is_set_up_as_it_does_best(servers: Servers, tmp_path: Path, capsys: Capture) -> None:
    assert _load(tmp_path, "--model=base", "--against=ctranslate2,transformers") == 0

    told = "".join(capsys.readouterr())
    assert "peers trial=2x1,b32,w0 vs=ctranslate2 model=base p95_ms=116.0/116.0 rate=30.0/90.0\n" in told
    first, second = json.loads((tmp_path / report.LOAD_NAME).read_text())["comparisons"]
    names = [trial["settings"] for trial in first["trials"] if trial["runs"]]
    assert len(names) == len(set(names)) == 7
    assert [trial["closed_loop_per_s"] for trial in first["trials"][:2]] == [100.0, 50.0]
    assert (first["settings"], second["settings"]) == (_BEST, "1x2,b16,w0")  # Transformers has one stream only
    assert {one.setup.partition(",")[0] for one in servers.started if one} == {"int8@2x1", "int8@1x2", "fp32@1x2"}


_SHORTER = {"answer": _SAID.removesuffix("."), "num_tokens": 19}
_AGREED = "*agreement=yes vs=ctranslate2 model="


@pytest.mark.parametrize(
    ("ours", "flags", "said"),
    [
        ({}, "", f"{_AGREED}shipped identical=1.00 bleu=100.00 tokens_ratio=1.000 texts=400\n*"),
        ({}, "", "*\npeers capacity_ratio=1.6* slo=p95<1s *\npeers load=30%*\npeers load=60%*\npeers load=90%*"),
        ({}, "", "* p50_ratio=0.50 p95_ratio=0.50 *repetitions=3 targets=p50:reached,p95:reached,capacity:reached\n*"),
        (_SHORTER, "", f"{_AGREED}shipped identical=0.00 bleu=84.65 tokens_ratio=0.950 *"),  # 100 * exp(1 - 7 / 6)
        ({"answer": _OTHER}, "", "*same work on the shipped model: *'tokens_ratio': 1.0, 'holds': False}\n"),
        ({"answer": _OTHER}, "--model=base", f"{_AGREED}base identical=0.00 tokens_ratio=1.000 texts=400\n*"),
        ({"num_tokens": 23}, "--model=base", "*same work on the base model: *'tokens_ratio': 1.15, 'holds': False}\n"),
        ({"capacity_per_s": 100.0}, "", "*targets=p50:reached,p95:reached,capacity:missed\n*"),
        ({"service_s": 0.1}, "", "*targets=p50:missed,p95:missed,capacity:reached\n*"),
        ({}, "--slo=p95<1ms", "*p95<1ms holds at no rate that was tried*"),
    ],
)
def test_what_both_say_and_which_targets_are_missed_is_told(
    ours: dict[str, Any], flags: str, said: str, servers: Servers, tmp_path: Path, capsys: Capture
) -> None:
    servers.ours |= ours

    exit_code = _load(tmp_path, "--model=shipped", f"--settings={_BEST}", *flags.split())

    told = capsys.readouterr()
    assert fnmatchcase(told.out + told.err, said)
    assert exit_code == ("loadtests peers: " in told.err)
    assert [one and one.name for one in servers.started] == [None, _BEST]


def test_both_get_the_same_arrivals_in_turn_and_every_run_is_kept_and_drawn(servers: Servers, tmp_path: Path) -> None:
    assert _load(tmp_path, "--model=both", f"--settings={_BEST}", "--loads=30,90") == 0

    read = json.loads((tmp_path / report.LOAD_NAME).read_text())
    comparisons = read["comparisons"]
    assert read["targets"] == {"max_latency_ratio": 0.6, "min_capacity_ratio": 1.5}
    assert len(comparisons[1]["their_capacity"]["probes"]) > 1
    assert [len(point["ours"]) for point in comparisons[1]["points"]] == [3, 3]
    rate_per_s = 0.9 * comparisons[1]["their_capacity"]["per_s"]
    turns = (("ours", 1), ("theirs", 1), ("theirs", 2), ("ours", 2), ("ours", 3), ("theirs", 3))
    assert servers.offered[-6:] == [(side, rate_per_s, seed) for side, seed in turns]

    assert (tmp_path / report.PICTURE_NAME).stat().st_size > 0
    axes = report.load_picture(comparisons).axes  # a column for each
    assert [one.get_ylabel() for one in axes] == ["p50, ms", "p50, ms", "p95, ms", "p95, ms"]
    assert np.asarray(axes[0].lines[0].get_xydata()).tolist() == [[30.0, pytest.approx(50)], [90.0, pytest.approx(50)]]


@pytest.mark.parametrize(
    ("model", "lengths", "options"),
    [
        ("shipped", {7, 2}, pb.DecodingOptions(early_stopping=True)),  # as far as the others search
        ("base", {8, 3}, pb.DecodingOptions(early_stopping=True, repetition_guard=False)),
    ],
)
def test_prepare_prints_flags_by_which_a_call_is_one_sentence(
    model: str, lengths: set[int], options: pb.DecodingOptions, capsys: Capture, tmp_path: Path
) -> None:
    texts = ("Two dogs are playing in the snow.", "Nobody knew.", "It rains. It pours.")
    write_test_set(tmp_path, zip(texts, "ABC", strict=True))

    assert main(["prepare", f"--model={model}", f"--data={tmp_path}", f"--output={tmp_path}"]) == 0

    models, *flags = shlex.split(capsys.readouterr().out)
    add_workload_flags(parser := argparse.ArgumentParser(), Workload())
    calls = islice(workload_of(parser.parse_args(flags)).calls(seed=1), 20)
    requests = [pb.TranslateRequest.FromString(call.messages[0]) for call in calls]
    assert models == f"--model-dir={tmp_path}/models/{model}/served"
    assert {len(text.split()) for request in requests for text in request.texts} == lengths
    assert all(len(request.texts) == 1 and request.options == options for request in requests)
