import json
from pathlib import Path

import pytest

from dragoman_export.errors import RunFolderError
from dragoman_export.training.run_folder import RunFolder


def test_folder_with_checkpoints_is_not_overwritten(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for name in ("step-00000010.pt", "step-00000009.pt", "best.pt"):
        (folder.checkpoints / name).touch()

    assert folder.last_checkpoint().name == "step-00000010.pt"
    with pytest.raises(RunFolderError, match="--resume"):
        folder.create()


def test_log_without_checkpoints_is_deleted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append("start")

    folder.create()

    assert not folder.log.exists()
    with pytest.raises(RunFolderError, match="no checkpoint"):
        folder.last_checkpoint()


def test_uncreatable_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(RunFolderError, match=r"cannot create .*file"):
        RunFolder(tmp_path / "file").create()


def test_settings_survive_a_round_trip(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)

    folder.write_settings({"model": {"d_model": 8}})
    assert folder.read_settings() == {"model": {"d_model": 8}}

    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"cannot read .*config\.json"):
        folder.read_settings()


def test_log_record_is_json_with_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)

    folder.append("stop", reason="Größe")
    folder.append("start")

    first, second = map(json.loads, folder.log.read_text().splitlines())
    assert (first["event"], first["reason"], second["event"]) == ("stop", "Größe", "start")
    assert first["time_s"] <= second["time_s"]
