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


def test_the_newest_checkpoints_are_averaged_into_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["average", str(make_run(tmp_path, 4)), "--last", "2"])

    assert status == 0
    assert "average.pt: average of step-00000003.pt, step-00000004.pt" in capsys.readouterr().out
    mean = (tiny_model(seed=3).embedding.weight + tiny_model(seed=4).embedding.weight) / 2
    torch.testing.assert_close(load_model(tmp_path / "average.pt").embedding.weight, mean)


def test_the_output_can_be_chosen(tmp_path: Path) -> None:
    output = tmp_path / "other.pt"

    main(["average", str(make_run(tmp_path, 1)), "--last", "1", "--output", str(output)])

    assert output.exists()
    assert not (tmp_path / "average.pt").exists()


@pytest.mark.parametrize("last", ["0", "-1"])
def test_an_average_of_less_than_one_checkpoint_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], last: str
) -> None:
    status = main(["average", str(make_run(tmp_path, 1)), "--last", last])

    assert status == 1
    assert capsys.readouterr().err == f"error: --last is {last}: expected at least 1\n"


def test_an_average_of_more_checkpoints_than_there_are_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["average", str(make_run(tmp_path, 3)), "--last", "20"])

    assert status == 1
    assert capsys.readouterr().err.startswith("error: --last is 20: expected at most 3, the number of checkpoints")
    assert not (tmp_path / "average.pt").exists()


def test_a_run_without_checkpoints_has_no_average(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["average", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "error: no checkpoints to average\n"
