import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROTO_ROOT = Path(__file__).parents[3] / "proto"


@pytest.mark.parametrize("name", ["translation", "options"])
def test_check_fails_after_a_proto_file_has_changed(tmp_path: Path, name: str) -> None:
    copy = shutil.copytree(PROTO_ROOT, tmp_path / "proto")
    proto_file = copy / f"dragoman/v1/{name}.proto"
    proto_file.write_text(proto_file.read_text("utf-8") + "\n// More.\nmessage Added {}\n", "utf-8")

    command = [sys.executable, str(copy / "generate.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        f"{copy}/dragoman/v1/{name}_pb2.py is out of date: run python proto/generate.py"
    ]
