from pathlib import Path

import pytest
import torch

from dragoman_export.__main__ import main
from dragoman_export.training.checkpoint import checkpoint_path, load_model, save_checkpoint
from tests.unit.export.model.tiny_models import tiny_config, tiny_model


def make_run(path: Path, steps: int) -> Path:
    (path / "checkpoints").mkdir(parents=True)
    for step in range(1, steps + 1):
        content = {"model": tiny_model(seed=step).state_dict(), "model_config": tiny_config().to_dict()}
        save_checkpoint(checkpoint_path(path / "checkpoints", step), content)
    return path


def test_newest_checkpoints_are_averaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["average", str(make_run(tmp_path, 4)), "--last", "2"])

    assert status == 0
    assert "average.pt: average of step-00000003.pt, step-00000004.pt" in capsys.readouterr().out
    mean = (tiny_model(seed=3).embedding.weight + tiny_model(seed=4).embedding.weight) / 2
    torch.testing.assert_close(load_model(tmp_path / "average.pt").embedding.weight, mean)


def test_output_file_is_configurable(tmp_path: Path) -> None:
    output = tmp_path / "other.pt"

    main(["average", str(make_run(tmp_path, 1)), "--last", "1", "--output", str(output)])

    assert output.exists()
    assert not (tmp_path / "average.pt").exists()


@pytest.mark.parametrize(("steps", "last"), [(1, "0"), (1, "-1"), (3, "20"), (0, "5")])
def test_invalid_number_of_checkpoints_is_rejected(tmp_path: Path, steps: int, last: str) -> None:
    assert main(["average", str(make_run(tmp_path, steps)), "--last", last]) == 1
    assert not (tmp_path / "average.pt").exists()
