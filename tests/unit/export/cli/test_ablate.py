"""Rows of `ablate`, which trains each model once, and their results."""

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman_export.__main__ import main
from dragoman_export.cli import ablate, train
from dragoman_export.cli.ablate import Variant, chosen_rows, complete_row, variants
from dragoman_export.data.reader import ParallelFiles
from dragoman_export.errors import SettingError
from dragoman_export.model.config import PRESETS
from dragoman_export.training.checkpoint import checkpoint_path, load_checkpoint
from dragoman_export.training.config import TRAINING_PRESETS, DataConfig, RunConfig
from dragoman_export.training.report import read_log
from tests.unit.export.tiny_training import tiny_vocabulary, write_tsv
from tests.waiting import wait_until

_TEXT = (ParallelFiles(source=Path("absent.tsv")),)
_BASE = RunConfig(model=PRESETS["base"], training=TRAINING_PRESETS["base"], data=DataConfig(train=_TEXT, dev=_TEXT))


def test_variants_include_table_3_of_the_paper() -> None:
    changes = [dict(variant.changes) for variant in variants(_BASE)]

    for row in (
        *({}, {"seed": 2}, {"seed": 3}),
        *({"num_heads": count} for count in (1, 2, 4)),
        *({"key_dim": size} for size in (16, 32)),
        *({"d_model": 256}, {"d_model": 1024}, {"ffn_size": 1024}, {"ffn_size": 4096}),
        *({"dropout": 0.0}, {"dropout": 0.3}, {"label_smoothing": 0.0}),
        {"positions": "learned", "max_positions": 256},
    ):
        assert row in changes
    assert {"num_heads": 8} not in changes
    assert {"dropout": 0.1} not in changes


@pytest.mark.parametrize("preset", PRESETS)
def test_variants_are_valid_and_unique(preset: str) -> None:
    base = RunConfig(model=PRESETS[preset], training=TRAINING_PRESETS[preset], data=_BASE.data)

    found = list(variants(base))

    assert len({variant.name for variant in found}) == len(found) > 20
    for variant in found:
        type(base.model)(**{**base.model.to_dict(), **_of_model(dict(variant.changes))})


def _of_model(changes: dict[str, object]) -> dict[str, object]:
    return {field: value for field, value in changes.items() if field in PRESETS["base"].to_dict()}


def test_rows_are_groups_and_names() -> None:
    bases = ["base", "base-seed-2", "base-seed-3"]

    assert [row.name for row in chosen_rows(_BASE, ["base"])] == bases
    assert [row.name for row in chosen_rows(_BASE, ["B", "F-norm-pre"])] == [
        *bases,
        "B-key_dim-16",
        "B-key_dim-32",
        "F-norm-pre",
    ]
    with pytest.raises(SettingError, match=r"--rows is 'norm,Z': expected some of A, .*F-norm-pre"):
        chosen_rows(_BASE, ["A", "norm", "Z"])


def _command(folder: Path, *flags: str, max_steps: int = 3) -> list[str]:
    dev, vocabulary = write_tsv(folder / "dev.tsv", 8, seed=1), folder / "given.model"
    vocabulary.write_bytes(tiny_vocabulary().model)
    text = ["--train", str(write_tsv(folder / "train.tsv", 60)), "--dev", str(dev), "--vocabulary", str(vocabulary)]
    small = ["--preset", "tiny", "--d-model", "16", "--ffn-size", "16", "--heads", "1", "--batch-tokens", "128"]
    short = ["--max-steps", str(max_steps), "--eval-interval", "3", "--log-interval", "1", "--bleu-sentences", "2"]
    schedule = ["--cooldown-steps", "0", "--checkpoint-interval", "1", "--max-tokens", "20"]
    own = ["--output", str(folder / "ablation"), "--test", str(dev), "--limit", "4", "--beam", "1", *flags]
    return ["ablate", *own, "--", *text, *small, *short, *schedule]


def _parsed(command: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    ablate.add_arguments(parser)
    return parser.parse_args(command[1:])


def _state(folder: Path) -> Any:
    return load_checkpoint(checkpoint_path(folder / "checkpoints", 6))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"dropout": 0.3}, {"key_dim": 4}])
def test_interrupted_row_equals_an_uninterrupted_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    row, (begun, whole) = Variant(name="X", changes=changes), (tmp_path / name for name in ("begun", "whole"))
    for folder in (begun, whole):
        folder.mkdir()
    short = _parsed(_command(begun, max_steps=4))
    flags = [part for name, value in changes.items() for part in (train.flag_of(name), str(value))]
    main(["train", "--output", str(begun / "ablation" / "X"), *short.training, *flags])

    complete_row(_parsed(_command(begun, max_steps=6)), row)
    complete_row(_parsed(_command(whole, max_steps=6)), row)

    continued, expected = (_state(folder / "ablation" / "X") for folder in (begun, whole))
    for name, weights in expected["model"].items():
        assert torch.equal(continued["model"][name], weights), name
    results = [json.loads((folder / "ablation" / "X" / "ablation.json").read_text()) for folder in (begun, whole)]
    assert results[0]["steps"] == 6
    assert [results[0][name] for name in ("bleu", "num_parameters")] == [
        results[1][name] for name in ("bleu", "num_parameters")
    ]
    assert results[0]["perplexity"] == pytest.approx(results[1]["perplexity"])
    assert len((begun / "ablation" / "X" / "translations.txt").read_text().splitlines()) == 4


@pytest.mark.slow
def test_failed_row_is_repeated_without_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = ["base", "base-seed-2", "base-seed-3", "E-positions-none"]
    command, output = _command(tmp_path, "--rows", names[-1], "--workers", "2"), tmp_path / "ablation"
    output.mkdir()
    (output / "base-seed-2").touch()  # no folder can be created

    assert main(command) == 1
    assert "| base-seed-2 | unfinished |" in (output / "table.md").read_text()
    (output / "base-seed-2").unlink()
    capfd.readouterr()
    assert main(command) == 0

    assert capfd.readouterr().out.count("training\n") == 1
    lines = (output / "table.md").read_text().splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:6]] == names
    results = json.loads((output / "results.json").read_text())
    assert [row["status"] for row in results["rows"]] == ["done"] * 4
    low, high = results["rows"][3]["interval"]
    assert low <= results["rows"][3]["difference"] <= high
    assert results["base"]["bleu"]["min"] <= results["base"]["bleu"]["mean"]
    assert (output / "E-positions-none" / "output.log").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -9)])
def test_signal_ends_all_trainings_and_they_continue(tmp_path: Path, number: int, status: int) -> None:
    endless = _command(tmp_path, "--rows", "base", "--workers", "2", max_steps=10**6)
    base = tmp_path / "ablation" / "base"
    with subprocess.Popen(
        [sys.executable, "-m", "dragoman_export", *endless], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        wait_until(lambda: process.poll() is not None or list((base / "checkpoints").glob("step-*.pt")))
        process.send_signal(number)
        process.communicate()

    assert process.returncode == status
    wait_until(lambda: _reasons(base))
    assert not (base / "ablation.json").exists()
    assert main(_command(tmp_path, "--rows", "base", max_steps=3)) == 0
    assert _reasons(base) == ["SIGTERM", "max-steps"]


def _reasons(folder: Path) -> list[str]:
    return [record["reason"] for record in read_log(folder / "log.jsonl") if record["event"] == "stop"]
