"""A few bad inputs of every kind against the server as a process, with a model that says nonsense."""

import json
from pathlib import Path

import pytest

from loadtests.stress.__main__ import main
from loadtests.stress.bad_inputs.kinds import KINDS
from tests.integration.real_process import CHECKOUT

NUM_INPUTS = 2 * len(KINDS)
OF_SPEED = {
    "translations of bystanders at p99",
    "calls that need the event loop only at p99",
    "work grows as the text does",
}
"""Promises that a busy machine may break: `python -m loadtests stress bad-inputs` judges them."""


@pytest.mark.slow
def test_every_kind_is_answered_as_it_should_be(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT / "proto"))

    flags = ["--mode", "short", "--count", str(NUM_INPUTS)]
    exit_code = main(["bad-inputs", *flags, "--model-dir", str(tiny_model), "--output", str(tmp_path)])

    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"bad_inputs inputs={NUM_INPUTS} kinds={len(KINDS)} ")
    told = json.loads((tmp_path / "bad_inputs.json").read_text(encoding="utf-8"))
    broken = {promise["name"]: promise["broken"] for promise in told["promises"] if not promise["held"]}
    assert {name: sentences for name, sentences in broken.items() if name not in OF_SPEED} == {}
    assert {promise["name"] for promise in told["promises"]} > OF_SPEED
    assert exit_code == bool(broken)
    figures = told["figures"]
    assert (figures["internal"], figures["hangs"], figures["lost"]) == (0, 0, 0)
    assert figures["ok"] > 0
    assert figures["refused"] > 0


def test_one_input_is_shown_and_sent_again(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT / "proto"))

    flags = ["--only", "bad-utf8", "--index", "3"]
    exit_code = main(["bad-inputs", *flags, "--model-dir", str(tiny_model), "--output", str(tmp_path)])

    printed = capsys.readouterr()
    assert exit_code == 0
    assert "expected: INVALID_ARGUMENT" in printed.out
    assert "answered: INVALID_ARGUMENT after" in printed.out
