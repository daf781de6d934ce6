import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.cli.target import add_target_flags, call
from dragoman.client import TranslationClient
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import ScriptedService, answers, running


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
def target(service: ScriptedService) -> Iterator[str]:
    with running(service) as address:
        yield address


def test_the_api_key_of_a_file_goes_with_the_call(target: str, service: ScriptedService, tmp_path: Path) -> None:
    service.script.append(answers(pb.ListModelsResponse()))
    (tmp_path / "key").write_text("secret\n")

    assert _list_models("--target", target, "--api-key-file", str(tmp_path / "key")) == 0
    assert service.calls[0].metadata["authorization"] == "Bearer secret"


def test_a_key_for_another_machine_needs_encryption(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text("secret\n")

    assert _list_models("--target", "dragoman.example:1", "--api-key-file", str(tmp_path / "key")) == 1
    assert "not encrypted" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--api-key-file", "--ca-file"])
def test_a_missing_file_is_named(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _list_models(flag, "missing.pem") == 1
    assert "missing.pem" in capsys.readouterr().err


def test_a_certificate_without_its_key_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _list_models("--certificate-file", str(tmp_path / "certificate.pem")) == 1
    assert "certificate and private_key go together" in capsys.readouterr().err


def _list_models(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    add_target_flags(parser)

    def use(client: TranslationClient) -> None:
        client.list_models()

    return call(parser.parse_args(flags), TranslationClient, use)
