import argparse
from pathlib import Path

import pytest

from dragoman.cli.target import add_target_flags, call
from dragoman.client import TranslationClient
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import ScriptedService, answers


def test_api_key_of_a_file_is_sent(target: str, service: ScriptedService, tmp_path: Path) -> None:
    service.script.append(answers(pb.ListModelsResponse()))
    (tmp_path / "key").write_text("secret\n")

    assert _list_models("--target", target, "--api-key-file", str(tmp_path / "key")) == 0
    assert service.calls[0].metadata["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("flags", "culprit"),
    [
        (["--target", "dragoman.example:1", "--api-key-file", "key"], "not encrypted"),
        (["--api-key-file", "missing.pem"], "missing.pem"),
        (["--ca-file", "missing.pem"], "missing.pem"),
        (["--certificate-file", "certificate.pem"], "private_key"),
    ],
)
def test_invalid_credentials_are_reported_in_one_line(
    flags: list[str],
    culprit: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("key").write_text("secret")

    assert _list_models(*flags) == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert culprit in line


def _list_models(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    add_target_flags(parser)

    def use(client: TranslationClient) -> None:
        client.list_models()

    return call(parser.parse_args(flags), TranslationClient, use)
