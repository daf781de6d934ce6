"""What `train` refuses before it reads any text."""

import argparse
from pathlib import Path

import pytest

from dragoman_export.__main__ import main
from dragoman_export.cli.train import add_arguments, new_config
from dragoman_export.data.reader import ParallelFiles
from dragoman_export.model.config import PRESETS
from dragoman_export.training.config import TRAINING_PRESETS, DataConfig, RunConfig
from dragoman_export.training.run_folder import RunFolder
from tests.unit.export.data.tiny_text import tiny_vocabulary, write_tsv


def store_settings(path: Path) -> RunFolder:
    files = (ParallelFiles(source=path / "absent.tsv"),)
    config = RunConfig(
        model=PRESETS["tiny"], training=TRAINING_PRESETS["tiny"], data=DataConfig(train=files, dev=files)
    )
    folder = RunFolder(path)
    folder.write_settings(config.to_dict())
    return folder


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--d-model", "128"], "d_model is 64 there, 128 asked for"),
        (
            ["--norm", "post", "--heads", "4"],
            "num_heads is 2 there, 4 asked for; norm is 'pre' there, 'post' asked for",
        ),
        (["--vocabulary-size", "999"], "vocabulary_size is 1000 there, 999 asked for"),
        (["--optimizer", "muon"], "optimizer is 'adam' there, 'muon' asked for"),
    ],
)
def test_another_architecture_or_optimizer_cannot_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    settings = store_settings(tmp_path).read_settings()

    status = main(["train", "--resume", "--output", str(tmp_path), *flags])

    assert status == 1
    assert capsys.readouterr().err == f"error: the checkpoint was trained otherwise: {told}\n"
    assert RunFolder(tmp_path).read_settings() == settings


@pytest.mark.parametrize(
    "flags",
    [
        ["--dropout", "0.3", "--d-model", "64", "--optimizer", "adam"],
        ["--batch-tokens", "9", "--max-steps", "9", "--max-malformed", "0.5"],
    ],
)
def test_what_may_change_passes_on_to_reading_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    store_settings(tmp_path)

    main(["train", "--resume", "--output", str(tmp_path), *flags])

    assert "absent.tsv: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value"), [("--preset", "tiny"), ("--vocabulary", "a.model"), ("--normalization", "identity")]
)
def test_flags_that_mean_nothing_to_a_resumed_run_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    store_settings(tmp_path)

    status = main(["train", "--resume", "--output", str(tmp_path), flag, value])

    assert status == 1
    assert capsys.readouterr().err == f"error: {flag} is {value!r}: expected nothing with --resume\n"


@pytest.mark.parametrize("damage", ["missing", "unknown"])
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    settings = store_settings(tmp_path).read_settings()
    if damage == "missing":
        del settings["model"]["d_model"]
    else:
        settings["training"]["colour"] = "red"
    RunFolder(tmp_path).write_settings(settings)

    assert main(["train", "--resume", "--output", str(tmp_path)]) == 1
    assert "cannot use the settings of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "cooldown"),
    [([], 3000), (["--max-steps", "500"], 50), (["--max-steps", "500", "--cooldown-steps", "7"], 7)],
)
def test_the_cooldown_of_a_preset_shrinks_with_the_steps(flags: list[str], cooldown: int) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    text = ["--output", "run", "--train", "a.tsv", "--dev", "b.tsv"]

    config = new_config(parser.parse_args([*text, "--preset", "small", *flags]))

    assert config.training.cooldown_steps == cooldown


def test_a_folder_that_is_no_run_cannot_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", "--output", str(tmp_path)]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_placeholders_need_a_vocabulary_that_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, vocabulary = write_tsv(tmp_path / "a.tsv", 20), tmp_path / "v.model"
    vocabulary.write_bytes(tiny_vocabulary().model)
    flags = ["--train", str(text), "--dev", str(text), "--vocabulary", str(vocabulary), "--placeholders", "0.1"]

    assert main(["train", "--preset", "tiny", "--output", str(tmp_path / "run"), *flags]) == 1
    assert "the vocabulary has no pieces ⟦1⟧ ⟦2⟧" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "--train is None: expected one or more files"),
        (["--train", "a.tsv"], "--dev is None: expected one or more files"),
        (["--train-source", "a.en"], "to be given together with --train-target"),
        (["--train", "a.tsv", "--dev", "a.tsv", "--batch-tokens", "0"], "batch_tokens is 0: expected at least 1"),
        (["--train", "a.tsv", "--dev", "a.tsv", "--max-malformed", "2"], "max_malformed is 2.0: expected from 0 to 1"),
    ],
)
def test_a_run_without_text_or_with_impossible_settings_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    assert main(["train", "--output", str(tmp_path / "run"), *flags]) == 1
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
