from pathlib import Path

import pytest
from matplotlib.image import imread

from export.__main__ import main
from export.training.run_folder import RunFolder


def test_the_curves_of_a_run_are_drawn_from_its_log(tmp_path: Path) -> None:
    RunFolder(tmp_path).append("evaluation", step=1, loss=2.0, bleu=None)

    status = main(["plot", str(tmp_path)])

    assert status == 0
    assert imread(tmp_path / "curves.png").shape == (770, 1210, 4)


def test_a_folder_without_a_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path} holds no log\n"
