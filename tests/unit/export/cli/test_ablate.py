"""Variants of `ablate`, which trains each model once."""

from pathlib import Path

import pytest

from dragoman_export.__main__ import main
from dragoman_export.cli.ablate import variants
from dragoman_export.data.reader import ParallelFiles
from dragoman_export.model.config import PRESETS
from dragoman_export.training.config import TRAINING_PRESETS, DataConfig, RunConfig
from tests.unit.export.tiny_training import write_tsv

_TEXT = (ParallelFiles(source=Path("absent.tsv")),)
_BASE = RunConfig(model=PRESETS["base"], training=TRAINING_PRESETS["base"], data=DataConfig(train=_TEXT, dev=_TEXT))


def test_variants_include_table_3_of_the_paper() -> None:
    changes = [dict(variant.changes) for variant in variants(_BASE, ["A", "B", "C", "D", "E"])]

    assert changes[0] == {}
    for row in (
        *({"num_heads": count} for count in (1, 4, 16, 32)),
        *({"head_dim": size} for size in (16, 32)),
        *({"d_model": 256}, {"d_model": 1024}, {"ffn_size": 1024}, {"ffn_size": 4096}),
        *({"dropout": 0.0}, {"dropout": 0.2}, {"label_smoothing": 0.0}, {"label_smoothing": 0.2}),
        {"positions": "learned", "max_positions": 256},
    ):
        assert row in changes


@pytest.mark.parametrize("preset", PRESETS)
def test_variants_are_valid_and_unique(preset: str) -> None:
    base = RunConfig(model=PRESETS[preset], training=TRAINING_PRESETS[preset], data=_BASE.data)

    found = list(variants(base, ["A", "B", "C", "D", "E", "F"]))

    assert len({variant.name for variant in found}) == len(found) > 20
    for variant in found:
        type(base.model)(**{**base.model.to_dict(), **_of_model(dict(variant.changes))})


def _of_model(changes: dict[str, object]) -> dict[str, object]:
    return {field: value for field, value in changes.items() if field in PRESETS["base"].to_dict()}


@pytest.mark.slow
def test_variants_are_trained_and_scored_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, dev = tmp_path / "ablation", write_tsv(tmp_path / "dev.tsv", 8, seed=1)
    text = ["--train", str(write_tsv(tmp_path / "train.tsv", 60)), "--dev", str(dev)]
    small = ["--preset", "tiny", "--vocabulary-size", "320", "--d-model", "16", "--ffn-size", "16", "--heads", "1"]
    short = ["--max-steps", "3", "--eval-interval", "3", "--log-interval", "1", "--bleu-sentences", "2"]
    flags = ["--output", str(output), "--test", str(dev), "--rows", "E", "--limit", "2", "--beam", "1"]
    command = ["ablate", *flags, "--", *text, *small, *short, "--max-tokens", "20"]

    assert main(command) == 0
    first = capsys.readouterr().out
    assert main(command) == 0

    names = ["base", "E-positions-learned-max_positions-20", "E-positions-rotary", "E-positions-none"]
    lines = (output / "table.md").read_text().splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == names
    assert first.count("training") == len(names)
    assert capsys.readouterr().out == "\n".join(lines) + "\n"
