import argparse

import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.__main__ import main
from dragoman_service.cli import models
from tests.unit.proto.scripted_server import ScriptedService, answers, running


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    models.add_parser(parser.add_subparsers())
    return parser.parse_args(["models", *words])


@pytest.mark.parametrize(
    "words",
    [
        ("--target", "there:1", "--tls", "load", "en-de/2"),
        ("load", "en-de/2", "--target", "there:1", "--tls"),
        ("--target", "elsewhere:1", "load", "--tls", "--target", "there:1", "en-de/2"),
    ],
)
def test_target_flags_can_precede_or_follow_the_change(words: tuple[str, ...]) -> None:
    arguments = parsed(*words)

    assert (arguments.target, arguments.tls, arguments.model) == ("there:1", True, "en-de/2")
    assert (arguments.timeout, arguments.api_key_file) == (None, None)


def test_default_is_a_list_of_the_local_models() -> None:
    assert parsed().run is models.run
    assert parsed().target == "localhost:50051"


def listed(name: str, *versions: pb.ModelVersion, capsys: pytest.CaptureFixture[str]) -> list[str]:
    service = ScriptedService()
    service.script.append(answers(pb.ListModelsResponse(models=[pb.Model(name=name, versions=versions)])))
    with running(service) as target:
        assert main(["models", "--target", target]) == 0
    return capsys.readouterr().out.splitlines()


def test_defaults_are_marked_and_failed_versions_have_no_limits(capsys: pytest.CaptureFixture[str]) -> None:
    pair = pb.LanguagePair(source_language="en", target_language="de", is_default=True)
    limits = pb.ModelLimits(max_texts=128, max_text_characters=10_000, max_source_tokens=128)
    served = {"state": pb.MODEL_STATE_READY, "precision": pb.PRECISION_INT8, "limits": limits}
    versions = [
        pb.ModelVersion(version="3", state=pb.MODEL_STATE_FAILED, state_message="manifest.json is missing"),
        pb.ModelVersion(version="2", is_default=True, labels=["stable"], language_pairs=[pair], **served),  # type: ignore[arg-type]
        pb.ModelVersion(version="1", **served),  # type: ignore[arg-type]
    ]

    limits_line = "    up to 128 texts of 10000 characters, sentences up to 128 tokens"
    assert listed("tiny", *versions, capsys=capsys) == [
        *("tiny/3  failed", "    manifest.json is missing"),
        *("tiny/2  @stable  en-de  int8  ready  default of en-de", limits_line),
        *("tiny/1  int8  ready", limits_line),
    ]


def test_many_languages_are_listed_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    tags = [f"l{number}" for number in range(4)]
    group = pb.LanguageGroup(source_languages=["en", *tags], target_languages=tags, is_default=True)
    version = pb.ModelVersion(version="1", state=pb.MODEL_STATE_READY, is_default=True, language_groups=[group])

    assert listed("many", version, capsys=capsys)[0].startswith(
        "many/1  [en l0 l1 l2 l3]-[l0 l1 l2 l3]  ready  default of [en"
    )
