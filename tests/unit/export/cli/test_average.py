from pathlib import Path

import pytest
import torch

from dragoman_export.__main__ import main
from dragoman_export.training.checkpoint import load_checkpoint
from tests.unit.export.tiny_training import save_model, tiny_model


def test_best_checkpoints_of_several_runs_are_averaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [tmp_path / "first", tmp_path / "second"]
    for seed, run in enumerate(runs):
        save_model(run / "checkpoints" / "best.pt", seed=seed)

    assert main(["average", *map(str, runs)]) == 0

    output = runs[1] / "average.pt"
    assert capsys.readouterr().out.startswith(f"{output}: average of {runs[0] / 'checkpoints' / 'best.pt'}")
    mean = load_checkpoint(output)["model"]
    weights = [tiny_model(seed=seed).state_dict() for seed in range(2)]
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, (weights[0][name] + weights[1][name]) / 2)
