"""Two processes train one model; `torchrun` runs this module in each."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman_export.training.checkpoint import list_checkpoints, load_checkpoint
from dragoman_export.training.ranks import Ranks
from dragoman_export.training.report import read_log
from tests.unit.export.tiny_training import make_model, make_pairs, make_text, make_trainer

ROOT = Path(__file__).parents[3]
# batches of one to three rows, and more steps than an epoch of 20 pairs
EXACT: dict[str, Any] = {"batch_tokens": 24, "max_steps": 15, "log_interval": 1, "accumulation": 2, "bf16": False}

# nats per token: Adam amplifies rounding errors of gradients close to 0
ROUNDING = 1e-3

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def train_exactly(folder: Path, ranks: Ranks) -> None:
    """Train with random batches only."""
    make_trainer(folder, text=make_text(make_pairs(20)), model=make_model(dropout=0.0), ranks=ranks, **EXACT).run()


def train_as_one_of_the_ranks(folder: Path) -> None:
    """Train some steps and save this rank's weights; then train without randomness."""
    ranks, model = Ranks(), make_model()
    torch.manual_seed(7 + ranks.rank)
    make_trainer(folder, model=model, ranks=ranks, max_steps=3, concatenate=0.3).run()
    torch.save(model.state_dict(), folder / f"rank-{ranks.rank}.pt")
    train_exactly(folder / "exact", ranks)
    ranks.close()


@pytest.mark.slow
def test_two_ranks_train_equal_weights(tmp_path: Path) -> None:
    command = (*TORCHRUN, "--module", "tests.integration.export.test_train_ranks", str(tmp_path))

    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)

    assert completed.returncode == 0, completed.stderr
    one, other = (torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())
    content = load_checkpoint(list_checkpoints(tmp_path / "checkpoints")[-1])
    first, second = (state["torch"] for state in content["random"])
    assert not torch.equal(first, second)  # each rank drops other elements
    train_exactly(tmp_path / "alone", Ranks())
    alone, together = (read_log(tmp_path / name / "log.jsonl") for name in ("alone", "exact"))
    for field in ("loss", "target_tokens", "epoch"):
        values = [[record.get(field) for record in records] for records in (alone, together)]
        assert values[0] == pytest.approx(values[1], abs=ROUNDING if field == "loss" else 0)


if __name__ == "__main__":
    train_as_one_of_the_ranks(Path(sys.argv[1]))
