"""Checks of `train` before it reads text."""

import argparse
from pathlib import Path

import pytest

from dragoman_export.__main__ import main
from dragoman_export.cli.train import add_arguments, new_config
from dragoman_export.data.reader import ParallelFiles
from dragoman_export.model.config import PRESETS
from dragoman_export.training.config import TRAINING_PRESETS, DataConfig, RunConfig
from dragoman_export.training.run_folder import RunFolder
from tests.unit.export.tiny_training import tiny_vocabulary, write_tsv


def store_settings(path: Path) -> RunFolder:
    files = (ParallelFiles(source=path / "absent.tsv"),)
    config = RunConfig(
        model=PRESETS["tiny"], training=TRAINING_PRESETS["tiny"], data=DataConfig(train=files, dev=files)
    )
    folder = RunFolder(path)
    folder.write_settings(config.to_dict())
    return folder


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--d-model", "128"], "d_model is 64, requested 128"),
        (["--norm", "post", "--heads", "4"], "num_heads is 2, requested 4; norm is 'pre', requested 'post'"),
        (["--vocabulary-size", "999"], "vocabulary_size is 1000, requested 999"),
        (["--optimizer", "muon"], "optimizer is 'adam', requested 'muon'"),
    ],
)
def test_resume_rejects_changed_architecture_or_optimizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    settings = store_settings(tmp_path).read_settings()

    status = main(["train", "--resume", "--output", str(tmp_path), *flags])

    assert status == 1
    assert capsys.readouterr().err == f"error: settings differ from the checkpoint: {message}\n"
    assert RunFolder(tmp_path).read_settings() == settings


@pytest.mark.parametrize(
    "flags",
    [
        ["--dropout", "0.3", "--d-model", "64", "--optimizer", "adam"],
        ["--batch-tokens", "9", "--max-steps", "9", "--max-malformed", "0.5"],
    ],
)
def test_resume_accepts_other_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    store_settings(tmp_path)

    main(["train", "--resume", "--output", str(tmp_path), *flags])

    assert "absent.tsv: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value"), [("--preset", "tiny"), ("--vocabulary", "a.model"), ("--normalization", "identity")]
)
def test_resume_rejects_flags_of_new_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    store_settings(tmp_path)

    status = main(["train", "--resume", "--output", str(tmp_path), flag, value])

    assert status == 1
    assert capsys.readouterr().err == f"error: {flag} is {value!r}: expected no value with --resume\n"


@pytest.mark.parametrize("damage", ["missing", "unknown"])
def test_resume_rejects_invalid_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    settings = store_settings(tmp_path).read_settings()
    if damage == "missing":
        del settings["model"]["d_model"]
    else:
        settings["training"]["colour"] = "red"
    RunFolder(tmp_path).write_settings(settings)

    assert main(["train", "--resume", "--output", str(tmp_path)]) == 1
    assert "invalid settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "cooldown"),
    [([], 3000), (["--max-steps", "500"], 50), (["--max-steps", "500", "--cooldown-steps", "7"], 7)],
)
def test_preset_cooldown_scales_with_max_steps(flags: list[str], cooldown: int) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    text = ["--output", "run", "--train", "a.tsv", "--dev", "b.tsv"]

    config = new_config(parser.parse_args([*text, "--preset", "small", *flags]))

    assert config.training.cooldown_steps == cooldown


def test_resume_requires_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", "--output", str(tmp_path)]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_placeholders_require_reserved_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, vocabulary = write_tsv(tmp_path / "a.tsv", 20), tmp_path / "v.model"
    vocabulary.write_bytes(tiny_vocabulary().model)
    flags = ["--train", str(text), "--dev", str(text), "--vocabulary", str(vocabulary), "--placeholders", "0.1"]

    assert main(["train", "--preset", "tiny", "--output", str(tmp_path / "run"), *flags]) == 1
    assert "⟦1⟧ ⟦2⟧" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--train is None: expected one or more files"),
        (["--train", "a.tsv"], "--dev is None: expected one or more files"),
        (["--train-source", "a.en"], "--train-target"),
        (["--train", "a.tsv", "--dev", "a.tsv", "--batch-tokens", "0"], "batch_tokens is 0: expected at least 1"),
        (["--train", "a.tsv", "--dev", "a.tsv", "--max-malformed", "2"], "max_malformed is 2.0: expected from 0 to 1"),
    ],
)
def test_invalid_run_settings_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["train", "--output", str(tmp_path / "run"), *flags]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
