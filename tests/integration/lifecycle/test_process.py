"""The server as a real process, and the client commands."""

import io
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman_service.__main__ import main
from dragoman_service.app import Ports
from dragoman_service.cli.demo import ServerProcessError
from tests.integration.real_process import START_S, STOP_S, process


@pytest.fixture(scope="module")
def ports(tiny_model: Path) -> Iterator[Ports]:
    """Ports of a ready server."""
    with process("--models", str(tiny_model)) as server:
        yield server.wait_until_ready(timeout_s=START_S)


@pytest.fixture
def target(ports: Ports) -> str:
    return f"127.0.0.1:{ports.grpc_port}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signal_drains_with_exit_code_0(tiny_model: Path, number: signal.Signals) -> None:
    with process("--models", str(tiny_model)) as server:
        server.wait_until_ready(timeout_s=START_S)

        server.send(number)

        assert server.wait(timeout_s=STOP_S) == 0
        assert [event in server.log for event in ("draining", "stopped", "Traceback")] == [True, True, False]


def test_signal_before_readiness_ends_the_server(tiny_model: Path) -> None:
    with process("--models", str(tiny_model)) as server:
        server.wait_for("listening", timeout_s=START_S)

        server.send(signal.SIGTERM)

        assert server.wait(timeout_s=STOP_S) == 0


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (["--grpc-port", "many"], {}, "'grpc.port' is 'many': expected a valid integer"),
        ([], {"DRAGOMAN_GRPC__PROT": "1"}, "'grpc.prot' is '1': expected a known setting, such as grpc.port"),
        (["--config", "missing.toml"], {}, "'config' is 'missing.toml': expected a readable file"),
        (["--models", "missing"], {}, "'models.directory' is 'missing'"),
        ([], {"DRAGOMAN_RUNTIME__DEVICE": "cuda"}, "dragoman: setting 'runtime.device' is 'cuda': expected "),
    ],
)
def test_invalid_setting_ends_with_one_line_and_exit_code_2(
    flags: list[str], environment: dict[str, str], message: str
) -> None:
    with process(*flags, **environment) as server:
        assert server.wait(timeout_s=STOP_S) == 2

    assert message in server.log
    assert "Traceback" not in server.log


def test_port_in_use_is_reported_as_an_invalid_setting(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with process("--models", str(tiny_model), "--http-port", str(port)) as server:
            assert server.wait(timeout_s=STOP_S) == 2

    assert f"'http.port' is '127.0.0.1:{port}'" in server.log


def test_damaged_model_ends_with_one_line_and_exit_code_1(tmp_path: Path) -> None:
    bundle = tmp_path / "m" / "1"
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_text("{}", encoding="utf-8")

    with process("--models", str(tmp_path)) as server:
        assert server.wait(timeout_s=STOP_S) == 1

    assert "manifest.json" in server.log.splitlines()[-1]
    assert "Traceback" not in server.log


def test_error_of_an_ended_server_has_its_log() -> None:
    with process("--grpc-port", "many") as server, pytest.raises(ServerProcessError, match=r"grpc\.port"):
        server.wait_until_ready(timeout_s=START_S)


def test_texts_are_translated_line_by_line(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "--target", target, "A man.", "Two children."]) == 0

    assert len(capsys.readouterr().out.splitlines()) == 2


def test_standard_input_is_translated_if_no_text_is_given(
    target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"A man.\n\n" * 70)))

    assert main(["translate", "--target", target]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 140
    assert not any(lines[1::2])


def test_hypotheses_are_printed_with_their_scores(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "--target", target, "--beam-size", "3", "--num-hypotheses", "3", "A man."]) == 0

    scores = [float(line.split("\t")[0]) for line in capsys.readouterr().out.splitlines()]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_alignment_is_printed_below_the_translation(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--alignment", "--target-prefix", "Ein Mann", "--no-repeat-ngram-size", "3"]

    assert main(["translate", "--target", target, *flags, "A man."]) == 0

    translation, *links = capsys.readouterr().out.splitlines()
    assert translation.startswith("Ein Mann")
    assert "".join(link.split("\t")[0].strip() for link in links) == translation.replace(" ", "")


def test_same_seed_prints_the_same_hypotheses(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--temperature", "2", "--top-k", "50", "--top-p", "0.9", "--seed", "7", "--num-hypotheses", "4"]

    outputs = []
    for _ in range(2):
        assert main(["translate", "--target", target, *flags, "A man."]) == 0
        outputs.append(capsys.readouterr().out)

    assert outputs[0] == outputs[1]


def test_document_keeps_its_paragraphs(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letter.txt").write_text("A man. Two children.\n\nA dog.\n")

    assert main(["translate", "--target", target, "--document", str(tmp_path / "letter.txt")]) == 0

    printed = capsys.readouterr().out
    assert printed.count("\n\n") == 1
    assert printed.endswith("\n")


def test_rejection_ends_with_one_line_and_exit_code_1(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "--target", target, "--target-language", "xx", "A man."]) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dragoman: NOT_FOUND: target_language")


def test_models_command_lists_the_models(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--target", target]) == 0

    assert capsys.readouterr().out.startswith("tiny/1  en-de  float32  ready  default of en-de\n")


def test_demo_translates_four_texts_and_exits_with_0(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--models", str(tiny_model)]) == 0

    output = capsys.readouterr().out
    assert output.count("   score  ") == 4
    assert 'dragoman_requests_total{method="Translate",status="OK"} 4.0' in output
    assert output.endswith("ended with exit code 0\n")


def test_failed_demo_reports_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--models", "missing"]) == 1

    assert "models.directory" in capsys.readouterr().err
