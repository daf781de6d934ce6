import shutil
import subprocess
import sys
from pathlib import Path

PROTO_ROOT = Path(__file__).parents[3] / "proto"


def _check(proto_root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(proto_root / "generate.py"), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_generated_modules_are_up_to_date() -> None:
    result = _check(PROTO_ROOT)

    assert result.returncode == 0, result.stderr


def test_the_check_fails_once_the_proto_file_has_changed(tmp_path: Path) -> None:
    copy = shutil.copytree(PROTO_ROOT, tmp_path / "proto")
    proto_file = copy / "dragoman/v1/translation.proto"
    proto_file.write_text(proto_file.read_text("utf-8") + "\n// More.\nmessage Added {}\n", "utf-8")

    result = _check(copy)

    assert result.returncode == 1
    assert "translation_pb2.py is out of date" in result.stderr
