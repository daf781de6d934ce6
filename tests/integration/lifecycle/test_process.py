"""The server as a real process, and the client commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman_service.__main__ import main
from dragoman_service.cli.server_process import ServerProcessError
from dragoman_service.datatypes import Ports
from tests.integration.real_process import START_S, STOP_S, process


@pytest.fixture(scope="module")
def ports(tiny_model: Path) -> Iterator[Ports]:
    """Ports of a ready server."""
    with process("--models", str(tiny_model)) as server:
        yield server.wait_until_ready(timeout_s=START_S)


def test_invalid_setting_ends_with_one_line_and_exit_code_2() -> None:
    hint = "add fp16 to the bundle with: dragoman export convert --bundle /"
    with process(DRAGOMAN_RUNTIME__DEVICE="cuda") as server, pytest.raises(ServerProcessError, match=hint):
        server.wait_until_ready(timeout_s=START_S)

    assert server.wait(timeout_s=STOP_S) == 2
    assert "Traceback" not in server.log


def test_damaged_model_ends_with_one_line_and_exit_code_1(tmp_path: Path) -> None:
    bundle = tmp_path / "m" / "1"
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_text("{}", encoding="utf-8")

    with process("--models", str(tmp_path)) as server:
        assert server.wait(timeout_s=STOP_S) == 1

    assert "manifest.json" in server.log.splitlines()[-1]
    assert "Traceback" not in server.log


def test_commands_translate_and_list_models(ports: Ports, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(command: str, *flags: str) -> str:
        assert main([command, "--target", f"127.0.0.1:{ports.grpc_port}", *flags]) == 0
        return capsys.readouterr().out

    (tmp_path / "letter.txt").write_text("A man. Two children.\n\nA dog.\n")

    assert len(printed("translate", "A man.", "Two children.").splitlines()) == 2
    translation, *links = printed("translate", "--alignment", "--target-prefix", "Ein Mann", "A man.").splitlines()
    assert translation.startswith("Ein Mann")
    assert "".join(link.split("\t")[0].strip() for link in links) == translation.replace(" ", "")
    assert printed("translate", "--document", str(tmp_path / "letter.txt")).count("\n\n") == 1
    assert printed("models").startswith("tiny/1  en-de  float32  ready  default of en-de\n")


def test_rejection_ends_with_one_line_and_exit_code_1(ports: Ports, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"127.0.0.1:{ports.grpc_port}"
    assert main(["translate", "--target", target, "--target-language", "xx", "A man."]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dragoman: NOT_FOUND: target_language")


def test_failed_demo_reports_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--models", "missing"]) == 1

    assert "models.directory" in capsys.readouterr().err
