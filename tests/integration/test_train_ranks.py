"""Two processes train one model; run by `torchrun`, this module is each of them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from export.training.checkpoint import list_checkpoints, load_checkpoint
from export.training.ranks import Ranks
from tests.unit.export.training.tiny_run import make_model, make_trainer

ROOT = Path(__file__).parents[2]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def train_as_one_of_the_ranks(folder: Path) -> None:
    """Take some steps and keep this rank's weights."""
    ranks, model = Ranks(), make_model()
    torch.manual_seed(7 + ranks.rank)
    make_trainer(folder, model=model, ranks=ranks, max_steps=3, concatenate=0.3).run()
    torch.save(model.state_dict(), folder / f"rank-{ranks.rank}.pt")
    ranks.close()


@pytest.mark.slow
def test_two_ranks_learn_together_and_hold_equal_weights(tmp_path: Path) -> None:
    command = (*TORCHRUN, "--module", "tests.integration.test_train_ranks", str(tmp_path))

    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)

    assert completed.returncode == 0, completed.stderr
    one, other = (torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())
    content = load_checkpoint(list_checkpoints(tmp_path / "checkpoints")[-1])
    first, second = (state["torch"] for state in content["random"])
    assert not torch.equal(first, second)  # each rank drops other elements


if __name__ == "__main__":
    train_as_one_of_the_ranks(Path(sys.argv[1]))
