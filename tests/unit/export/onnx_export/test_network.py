from pathlib import Path

import pytest

from dragoman_export.errors import BundleWriteError, RunFolderError
from dragoman_export.onnx_export.network import Network
from dragoman_export.trained_model import TrainedModel
from tests.unit.export.tiny_training import tiny_model

_STEP = "checkpoints/step-00000010.pt"


def _run_folder(path: Path, *names: str) -> Path:
    (path / "checkpoints").mkdir()
    for name in names:
        (path / name).touch()
    return path


@pytest.mark.parametrize(
    ("names", "given", "found"),
    [
        (["average.pt", "checkpoints/best.pt"], ".", "average.pt"),
        (["checkpoints/best.pt"], ".", "checkpoints/best.pt"),
        ([_STEP], _STEP, _STEP),
    ],
)
def test_average_precedes_the_best_checkpoint(tmp_path: Path, names: list[str], given: str, found: str) -> None:
    run = _run_folder(tmp_path, *names, "vocabulary.model")

    model = TrainedModel.find(run / given)

    assert (model.checkpoint, model.run.vocabulary) == (run / found, run / "vocabulary.model")


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        (["vocabulary.model"], ".", r"no checkpoint at .*average\.pt or .*best\.pt"),
        (["lost.pt"], "lost.pt", "no vocabulary at"),
    ],
)
def test_incomplete_run_is_rejected(tmp_path: Path, names: list[str], given: str, message: str) -> None:
    with pytest.raises(RunFolderError, match=message):
        TrainedModel.find(_run_folder(tmp_path, *names) / given)


def test_keys_of_another_size_are_rejected() -> None:
    with pytest.raises(BundleWriteError, match="key_dim is 4: a bundle supports only the head size, 8"):
        Network.of(tiny_model(key_dim=4))
