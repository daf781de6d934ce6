import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.__main__ import main
from tests.unit.proto.scripted_server import ScriptedService, answers, running

_CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
def target(service: ScriptedService) -> Iterator[str]:
    with running(service) as address:
        yield address


@pytest.mark.parametrize("from_standard_input", [False, True])
def test_a_document_is_one_call_whose_pieces_are_printed(
    from_standard_input: bool,
    target: str,
    service: ScriptedService,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = "One.\r\n\r\nTwö."
    (tmp_path / "letter.txt").write_bytes(content.encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    service.script.append(answers(iter([pb.TranslatedSentence(text="Eins.\n\n"), pb.TranslatedSentence(text="Zwei.")])))
    name = "-" if from_standard_input else str(tmp_path / "letter.txt")

    assert main(["translate", "--target", target, "--document", name, "--model", "en-de@stable"]) == 0

    assert capsys.readouterr().out == "Eins.\n\nZwei.\n"
    assert (service.calls[0].request.text, service.calls[0].request.model) == ("One.\n\nTwö.", "en-de@stable")
    assert (service.calls[0].time_remaining_s or 0) > 300


@pytest.mark.parametrize("flags", [["A text."], ["--alignment"], ["--num-hypotheses", "2"]])
def test_what_a_document_has_not_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "--document", "-", *flags]) == 2

    assert "--document takes no TEXT, --alignment or --num-hypotheses" in capsys.readouterr().err


def test_a_document_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "--document", "missing.txt"]) == 2

    assert "missing.txt" in capsys.readouterr().err


def test_standard_input_that_is_not_utf_8_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"One.\nTw\xf6.\n")))

    assert main(["translate"]) == 2

    assert capsys.readouterr().err == "dragoman: standard input is not UTF-8: byte 0xf6 in line 2\n"


def test_an_argument_that_is_not_utf_8_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "One.", os.fsdecode(b"Tw\xf6.")]) == 2

    assert capsys.readouterr().err == "dragoman: TEXT 2 is not UTF-8\n"


def test_make_translate_hands_the_text_on_as_it_is(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nfor last; do :; done\nprintf "%s" "$last"\n')
    python.chmod(0o755)
    for stamp in (".serve", ".load", ".bench", ".dev", ".native"):
        (tmp_path / stamp).touch()

    made = subprocess.run(
        ["make", "--silent", "translate", f"VENV={tmp_path}", "TEXT=It costs $50, `ls` $(PWD)."],
        cwd=_CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert made.stdout == "It costs $50, `ls` $(PWD)."


@pytest.mark.parametrize("flags", [["--document", "-"], ["--input", "a.txt", "--output", "b.txt"]])
def test_only_texts_are_translated_through_another_language(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", "--pivot-languages", "fr,es", *flags]) == 2

    assert "--pivot-languages is for texts" in capsys.readouterr().err


def test_the_language_between_and_its_model_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    hypothesis = pb.Hypothesis(text="Hallo.")
    pivot = pb.Pivot(language="fr", model_name="en-fr", model_version="2")
    service = ScriptedService()
    answer = pb.TranslateResponse(translations=[pb.Translation(hypotheses=[hypothesis])], pivot=pivot)
    service.script.append(answers(answer))

    with running(service) as target:
        assert (
            main(["translate", "--target", target, "--source-language", "auto", "--pivot-languages", "fr,es", "Hi."])
            == 0
        )

    told = capsys.readouterr()
    assert told.out == "Hallo.\n"
    assert "through fr, by en-fr/2" in told.err
    assert service.calls[0].request.pivot_languages == ["fr", "es"]
    assert not service.calls[0].request.source_language
