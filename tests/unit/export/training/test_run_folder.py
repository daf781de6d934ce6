import json
from pathlib import Path

import pytest

from dragoman_export.errors import RunFolderError
from dragoman_export.training.run_folder import RunFolder


def test_a_folder_with_checkpoints_is_not_overwritten(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    (folder.checkpoints / "step-00000001.pt").touch()

    with pytest.raises(RunFolderError, match="give --resume to go on, or another --output"):
        folder.create()


def test_the_log_of_a_run_without_checkpoints_is_begun_anew(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append("start")

    folder.create()

    assert not folder.log.exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(RunFolderError, match=r"cannot make .*file"):
        RunFolder(tmp_path / "file").create()


def test_the_newest_checkpoint_is_the_last(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create()
    for name in ("step-00000010.pt", "step-00000009.pt", "best.pt"):
        (folder.checkpoints / name).touch()

    assert folder.last_checkpoint().name == "step-00000010.pt"


def test_a_folder_without_checkpoints_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no checkpoint to resume from"):
        RunFolder(tmp_path).last_checkpoint()


def test_settings_come_back_as_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)

    folder.write_settings({"model": {"d_model": 8}})

    assert folder.read_settings() == {"model": {"d_model": 8}}


@pytest.mark.parametrize("content", [None, "{"])
def test_missing_or_damaged_settings_are_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)

    with pytest.raises(RunFolderError, match=r"cannot read .*config\.json"):
        RunFolder(tmp_path).read_settings()


def test_a_record_is_a_line_of_json_with_the_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)

    folder.append("stop", reason="Größe")
    folder.append("start")

    first, second = map(json.loads, folder.log.read_text().splitlines())
    assert (first["event"], first["reason"], second["event"]) == ("stop", "Größe", "start")
    assert first["time_s"] <= second["time_s"]
