from pathlib import Path

import pytest

from dragoman_export.errors import RunFolderError
from dragoman_export.onnx_export.network import TrainedModel


def _run_folder(path: Path, *checkpoints: str) -> Path:
    (path / "checkpoints").mkdir()
    for name in (*checkpoints, "vocabulary.model"):
        (path / name).touch()
    return path


def test_the_average_of_a_run_goes_before_its_best_checkpoint(tmp_path: Path) -> None:
    run = _run_folder(tmp_path, "checkpoints/best.pt", "average.pt")

    assert TrainedModel.find(run).checkpoint == run / "average.pt"


def test_the_best_checkpoint_is_found_if_there_is_no_average(tmp_path: Path) -> None:
    run = _run_folder(tmp_path, "checkpoints/best.pt")

    assert TrainedModel.find(run).checkpoint == run / "checkpoints" / "best.pt"


def test_the_vocabulary_of_a_checkpoint_is_that_of_its_run(tmp_path: Path) -> None:
    run = _run_folder(tmp_path, "checkpoints/step-00000010.pt")

    found = TrainedModel.find(run / "checkpoints" / "step-00000010.pt")

    assert found.run.vocabulary == run / "vocabulary.model"


def test_a_run_without_checkpoints_is_told_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no checkpoint at .*average\.pt or .*best\.pt"):
        TrainedModel.find(_run_folder(tmp_path))


def test_a_checkpoint_without_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lost.pt").touch()

    with pytest.raises(RunFolderError, match="no vocabulary at"):
        TrainedModel.find(tmp_path / "lost.pt")
