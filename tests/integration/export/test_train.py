"""`dragoman export train` on an invented language pair, from text to weights."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman_export.__main__ import main
from dragoman_export.training.checkpoint import list_checkpoints
from dragoman_export.training.report import Record, read_log
from tests.unit.export.tiny_training import write_tsv

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]

SHAPE = (
    *("--preset", "tiny", "--vocabulary-size", "320", "--d-model", "32", "--ffn-size", "64"),
    *("--encoder-layers", "1", "--decoder-layers", "1", "--dropout", "0.2"),
)

SETTINGS = (
    *("--batch-tokens", "256", "--concatenate", "0.3", "--warmup-steps", "20", "--lr-factor", "0.2", "--threads", "1"),
    *("--eval-interval", "10", "--checkpoint-interval", "20", "--log-interval", "5", "--bleu-sentences", "5"),
)

STOPS_WITHIN_S = 120.0  # a busy machine finishes a step and writes a checkpoint


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("text")
    train, dev = write_tsv(folder / "train.tsv", 300), write_tsv(folder / "dev.tsv", 10, seed=1)
    return ["--train", str(train), "--dev", str(dev)]


def train(path: Path, *arguments: str) -> int:
    return main(["train", "--output", str(path), *arguments])


def train_anew(path: Path, files: Sequence[str], *arguments: str) -> Path:
    assert train(path, *files, *SHAPE, *SETTINGS, *arguments) == 0
    return path


def newest(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(list_checkpoints(path / "checkpoints")[-1], weights_only=True)
    return content


def records(path: Path, event: str) -> list[Record]:
    return [record for record in read_log(path / "log.jsonl") if record["event"] == event]


@pytest.mark.parametrize("decoder_type", ["self_attention", "ssru"])
def test_loss_decreases_and_the_run_folder_is_complete(tmp_path: Path, files: list[str], decoder_type: str) -> None:
    finished = train_anew(tmp_path / "run", files, "--max-steps", "40", "--decoder-type", decoder_type)

    training, dev = records(finished, "step"), records(finished, "evaluation")

    assert training[-1]["loss"] < training[0]["loss"] - 0.5
    assert dev[-1]["loss"] < dev[0]["loss"] - 0.5
    assert 0 <= dev[-1]["bleu"] <= 100
    names = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}

    checkpoints = {f"checkpoints/{name}.pt" for name in ("step-00000020", "step-00000040", "best")}
    (events,) = [name for name in names if name.startswith("tensorboard/events.out.tfevents.")]
    files_of_run = {"config.json", "curves.png", "environment.json", "log.jsonl", "vocabulary.model"}
    assert names == {*files_of_run, *checkpoints, events}


def test_terminated_run_saves_a_checkpoint_and_resumes(tmp_path: Path, files: list[str]) -> None:
    command = [sys.executable, "-m", "dragoman_export", "train", "--output", str(tmp_path), *files, *SHAPE, *SETTINGS]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("dev loss" in line for line in process.stderr)  # blocks until the first evaluation is reported

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=STOPS_WITHIN_S)

    assert process.returncode == 0
    assert [record["reason"] for record in records(tmp_path, "stop")] == ["SIGTERM"]
    step = newest(tmp_path)["progress"]["step"]
    assert train(tmp_path, "--resume", "--max-steps", str(step + 2)) == 0
    assert newest(tmp_path)["progress"]["step"] == step + 2
