from pathlib import Path

import pytest

from dragoman_export.errors import RunFolderError
from dragoman_export.onnx_export.network import TrainedModel


def _run_folder(path: Path, *checkpoints: str) -> Path:
    (path / "checkpoints").mkdir()
    for name in (*checkpoints, "vocabulary.model"):
        (path / name).touch()
    return path


@pytest.mark.parametrize("names", [["average.pt", "checkpoints/best.pt"], ["checkpoints/best.pt"]])
def test_average_precedes_the_best_checkpoint(tmp_path: Path, names: list[str]) -> None:
    run = _run_folder(tmp_path, *names)

    assert TrainedModel.find(run).checkpoint == run / names[0]


def test_checkpoint_uses_the_vocabulary_of_its_run(tmp_path: Path) -> None:
    run = _run_folder(tmp_path, "checkpoints/step-00000010.pt")

    found = TrainedModel.find(run / "checkpoints" / "step-00000010.pt")

    assert found.run.vocabulary == run / "vocabulary.model"


def test_run_without_checkpoints_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no checkpoint at .*average\.pt or .*best\.pt"):
        TrainedModel.find(_run_folder(tmp_path))


def test_checkpoint_without_vocabulary_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "lost.pt").touch()

    with pytest.raises(RunFolderError, match="no vocabulary at"):
        TrainedModel.find(tmp_path / "lost.pt")
