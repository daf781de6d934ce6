import argparse
from pathlib import Path

import pytest

from dragoman_export.__main__ import main
from dragoman_export.cli.train import add_arguments, new_config, resumed_config
from dragoman_export.training.run_folder import RunFolder
from tests.unit.export.tiny_training import store_settings, tiny_vocabulary, write_tsv


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


def test_placeholders_require_reserved_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, vocabulary = write_tsv(tmp_path / "a.tsv", 20), tmp_path / "v.model"
    vocabulary.write_bytes(tiny_vocabulary().model)
    flags = ["--train", str(text), "--dev", str(text), "--vocabulary", str(vocabulary), "--placeholders", "0.1"]

    assert main(["train", "--preset", "tiny", "--output", str(tmp_path / "run"), *flags]) == 1
    assert "⟦1⟧ ⟦2⟧" in capsys.readouterr().err


def test_mixture_of_a_run_file_is_dumped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text("output: run\ndata:\n  train: [a.tsv, b.tsv]\n  dev: c.tsv\n  weights: [2.5, 1]\n")

    assert main(["train", str(run_file), "--dump"]) == 0

    dumped = capsys.readouterr().out
    assert "weights:\n  - 2.5\n  - 1.0\n" in dumped
    run_file.write_text(dumped)
    assert main(["train", str(run_file), "--dump"]) == 0
    assert capsys.readouterr().out == dumped


def test_weights_that_draw_nothing_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, vocabulary = write_tsv(tmp_path / "a.tsv", 20), tmp_path / "v.model"
    vocabulary.write_bytes(tiny_vocabulary().model)
    flags = ["--train", str(text), "--dev", str(text), "--vocabulary", str(vocabulary), "--weights", "0.01"]

    assert main(["train", "--preset", "tiny", "--output", str(tmp_path / "run"), *flags]) == 1
    assert "less than one pair per epoch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "fields"), [(["--weights", "2"], ((2.0,), None)), (["--temperature", "3"], ((), 3.0))]
)
def test_resume_replaces_the_mixture(tmp_path: Path, flags: list[str], fields: tuple[tuple[float, ...], float]) -> None:
    folder = store_settings(tmp_path)
    settings = folder.read_settings()
    settings["data"]["weights"] = [4.0]
    folder.write_settings(settings)
    parser = argparse.ArgumentParser()
    add_arguments(parser)

    data = resumed_config(parser.parse_args(["--output", str(tmp_path), "--resume", *flags]), folder).data

    assert (data.weights, data.temperature) == fields
