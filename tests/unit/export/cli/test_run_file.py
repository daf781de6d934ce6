import argparse
import json
from pathlib import Path

import pytest

from dragoman_export.__main__ import main
from dragoman_export.cli.flags import actions_of
from dragoman_export.cli.run_file import read_run_file
from dragoman_export.cli.train import add_arguments, new_config
from tests.unit.export.tiny_training import write_tsv

YAML = """\
output: runs/one
preset: tiny
data:
  train: [a.tsv, b.tsv]
  dev: [c.tsv]
training:
  max_steps: 7
  lr-factor: 0.5
bf16: false
"""
TOML = """\
output = "runs/one"
preset = "tiny"
bf16 = false
[data]
train = ["a.tsv", "b.tsv"]
dev = ["c.tsv"]
[training]
max_steps = 7
lr-factor = 0.5
"""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A folder with run.yaml, whose run takes three steps."""
    text = {"train": [str(write_tsv(tmp_path / "a.tsv", 60))], "dev": [str(write_tsv(tmp_path / "b.tsv", 9, seed=1))]}
    settings = {"vocabulary-size": 320, "max-steps": 3, "bleu-sentences": 0, "workers": 0, "placeholders": 0.1}
    content = {"output": str(tmp_path / "run"), "preset": "tiny", "data": text, "training": settings}
    (tmp_path / "run.yaml").write_text(json.dumps(content))  # JSON is YAML
    return tmp_path


@pytest.mark.parametrize(("name", "content"), [("run.yaml", YAML), ("run.toml", TOML)])
def test_keys_are_flags(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content)

    args = read_run_file(path, add_arguments)

    assert args.output == Path("runs/one")
    assert args.train == [Path("a.tsv"), Path("b.tsv")]
    config = new_config(args)
    assert (config.training.max_steps, config.training.lr_factor, config.training.bf16) == (7, 0.5, False)
    assert config.model.d_model == 64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read run file"),
        ("{", "cannot read run file"),
        ("- a", "has no keys"),
        ("colour: red", "colour is not a flag of `dragoman export train`"),
        ("resume: true", "resume is not a flag"),
        ("bf16: 1", "bf16 is 1: expected true or false"),
        ("max_steps: true", "max_steps is True: expected no boolean"),
        ("max_steps: many", "argument --max-steps: invalid int value: 'many'"),
        ("preset: huge", "argument --preset: invalid choice: 'huge'"),
    ],
)
def test_invalid_run_files_are_rejected(
    tmp_path: Path, content: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_text(content)

    assert main(["train", str(path), "--output", str(tmp_path / "run")]) == 1

    assert message in capsys.readouterr().err


def test_dumped_run_file_has_the_same_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, again = tmp_path / "run.yaml", tmp_path / "again.yaml"
    path.write_text(YAML)

    assert main(["train", str(path), "--dump", "--max-steps", "9", "--no-compile"]) == 0

    again.write_text(capsys.readouterr().out)
    expected = read_run_file(path, add_arguments)
    expected.max_steps = 9
    assert new_config(read_run_file(again, add_arguments)) == new_config(expected)


def test_flags_override_the_run_file(run_folder: Path) -> None:
    assert main(["train", str(run_folder / "run.yaml"), "--max-steps", "2", "--output", str(run_folder / "other")]) == 0

    log = [json.loads(line) for line in (run_folder / "other" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["step"] == 2
    assert not (run_folder / "run").exists()


def test_same_run_file_trains_the_same_weights(run_folder: Path) -> None:
    for name in ("one", "two"):
        assert main(["train", str(run_folder / "run.yaml"), "--output", str(run_folder / name)]) == 0

    one, two = ((run_folder / name / "checkpoints" / "best.pt").read_bytes() for name in ("one", "two"))
    assert one == two
    environment = json.loads((run_folder / "one" / "environment.json").read_text())
    assert environment["sha256"].keys() == {str(run_folder / "a.tsv"), str(run_folder / "b.tsv")}


def test_dry_run_writes_nothing(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(run_folder.iterdir())

    assert main(["train", str(run_folder / "run.yaml"), "--dry-run"]) == 0

    printed = capsys.readouterr().err
    for text in ("parameters: 1", "an epoch: ", "padding", "\n    "):
        assert text in printed
    assert sorted(run_folder.iterdir()) == before


def test_dev_text_inside_the_training_text_is_reported(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = str(run_folder / "a.tsv")

    assert main(["train", str(run_folder / "run.yaml"), "--dry-run", "--dev", text]) == 0

    assert "dev sources are in the training text" in capsys.readouterr().err


def test_run_needs_an_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--train", "a.tsv", "--dev", "b.tsv"]) == 1

    assert "--output is None: expected a folder" in capsys.readouterr().err


def test_every_flag_can_be_in_a_run_file(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    path = tmp_path / "run.yaml"
    for action in actions_of(parser):
        if action.option_strings and action.dest not in {"help", "resume", "dump", "dry_run"}:
            is_switch = isinstance(action, argparse.BooleanOptionalAction)
            value = True if is_switch else next(iter(action.choices or ())) if action.choices else "1"
            path.write_text(f"{action.option_strings[0][2:]}: {json.dumps(value)}")

            assert hasattr(read_run_file(path, add_arguments), action.dest)


@pytest.mark.parametrize("path", sorted(Path("deploy/models/recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_are_valid(path: Path) -> None:
    config = new_config(read_run_file(path, add_arguments))

    assert config.model.vocabulary_size == (10_000 if path.stem == "multi30k" else 8000)
    assert config.training.max_steps
