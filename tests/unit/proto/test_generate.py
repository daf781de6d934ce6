import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SERVICE_MODEL = "service/dragoman_service/runtimes/onnx/model"


@pytest.mark.parametrize("name", ["proto/dragoman/v1/translation", "proto/dragoman/v1/options", SERVICE_MODEL])
def test_check_fails_after_a_proto_file_has_changed(tmp_path: Path, name: str) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copytree((ROOT / SERVICE_MODEL).parent, (tmp_path / SERVICE_MODEL).parent)
    proto_file = tmp_path / f"{name}.proto"
    proto_file.write_text(proto_file.read_text("utf-8") + "\n// More.\nmessage Added {}\n", "utf-8")

    command = [sys.executable, str(tmp_path / "proto" / "generate.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert result.stderr.splitlines() == [f"{tmp_path}/{name}_pb2.py is out of date: run python proto/generate.py"]
