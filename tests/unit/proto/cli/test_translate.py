import io
import os
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.__main__ import main
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.samples import RESPONSE
from tests.unit.proto.scripted_server import EN_DE, ScriptedService, answers


def _answers(*texts: str) -> pb.TranslateResponse:
    return pb.TranslateResponse(
        translations=[pb.Translation(hypotheses=[pb.Hypothesis(text=text, score=-0.5)]) for text in texts]
    )


def _set_standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_arguments_are_translated(
    target: str, service: ScriptedService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.script.append(answers(_answers("Eins.", "Zwei.")))
    (tmp_path / "key").write_text("secret\n")

    flags = ("--beam-size", "8", "--num-hypotheses", "1", "--top-p", "0.5", "--target-prefix", "E")
    access = ("--target", target, "--api-key-file", str(tmp_path / "key"))
    assert main(["translate", *access, *flags, "One.", "Two."]) == 0

    assert capsys.readouterr().out == "-0.5000\tEins.\n-0.5000\tZwei.\n"
    (call,) = service.calls
    assert call.metadata["authorization"] == "Bearer secret"
    assert call.request == pb.TranslateRequest(
        texts=["One.", "Two."],
        options=pb.DecodingOptions(
            beam_size=8, num_hypotheses=1, sampling=pb.SamplingOptions(top_p=0.5), target_prefix="E"
        ),
        request_id=call.request.request_id,
        **EN_DE,
    )


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {}),
        (["--format", "markdown"], {"format": pb.TEXT_FORMAT_MARKDOWN}),
        (["--format", "html"], {"format": pb.TEXT_FORMAT_HTML}),
        (["--number-format", "as-written"], {"number_format": pb.NUMBER_FORMAT_AS_WRITTEN}),
        (["--number-format", "localized"], {"number_format": pb.NUMBER_FORMAT_LOCALIZED}),
    ],
)
def test_formats_of_texts_and_numbers_are_sent(
    flags: list[str], options: dict[str, Any], target: str, service: ScriptedService
) -> None:
    service.script.append(answers(_answers("Eins.")))

    assert main(["translate", "--target", target, *flags, "One."]) == 0

    (call,) = service.calls
    assert call.request.options == pb.DecodingOptions(**options)


def test_files_have_the_format_of_their_suffix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = ("--input", str(tmp_path / "a.md"), "--output", str(tmp_path / "b.md"))

    assert main(["translate", *paths, "--format", "markdown"]) == 2

    assert "--format" in capsys.readouterr().err


def test_lines_of_standard_input_are_translated_in_batches(
    target: str, service: ScriptedService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _set_standard_input(monkeypatch, b"One.\n" * 65)
    service.script += [answers(_answers(*["Eins."] * 64)), answers(_answers("Zwei."))]

    assert main(["translate", "--target", target]) == 0

    assert capsys.readouterr().out == "Eins.\n" * 64 + "Zwei.\n"


def test_alignment_and_warnings_are_printed(
    target: str, service: ScriptedService, capsys: pytest.CaptureFixture[str]
) -> None:
    service.script.append(answers(RESPONSE))

    assert main(["translate", "--target", target, "--alignment", "Hello."]) == 0

    printed = capsys.readouterr()
    assert printed.out == "Hallo.\n  Hallo.\tHello\t0.75\n"
    assert printed.err == "dragoman: TRUNCATED: 3 tokens\n"


@pytest.mark.parametrize("from_standard_input", [False, True])
def test_document_is_one_call(
    from_standard_input: bool,
    target: str,
    service: ScriptedService,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = "One.\r\n\r\nTwö."
    (tmp_path / "letter.txt").write_bytes(content.encode())
    _set_standard_input(monkeypatch, content.encode())
    service.script.append(answers([pb.TranslatedSentence(text="Eins.\n\n"), pb.TranslatedSentence(text="Zwei.")]))
    name = "-" if from_standard_input else str(tmp_path / "letter.txt")

    assert main(["translate", "--target", target, "--document", name, "--model", "en-de@stable"]) == 0

    assert capsys.readouterr().out == "Eins.\n\nZwei.\n"
    assert (service.calls[0].request.text, service.calls[0].request.model) == ("One.\n\nTwö.", "en-de@stable")
    assert (service.calls[0].time_remaining_s or 0) > 300


@pytest.mark.parametrize(
    ("arguments", "exit_code", "culprit"),
    [
        (["--document", "-", "A text."], 2, "--document"),
        (["--document", "-", "--alignment"], 2, "--document"),
        (["--document", "-", "--num-hypotheses", "2"], 2, "--document"),
        (["--document", "missing.txt"], 2, "missing.txt"),
        (["--pivot-languages", "fr,es", "--document", "-"], 2, "--pivot-languages"),
        (["--pivot-languages", "fr,es", "--input", "a.txt", "--output", "b.txt"], 2, "--pivot-languages"),
        (["One.", os.fsdecode(b"Tw\xf6.")], 2, "TEXT 2"),
        ([], 2, "line 2"),
        (["--target", "dragoman.example:1", "--api-key-file", "key", "One."], 1, "not encrypted"),
        (["--api-key-file", "missing.pem", "One."], 1, "missing.pem"),
        (["--ca-file", "missing.pem", "One."], 1, "missing.pem"),
        (["--certificate-file", "certificate.pem", "One."], 1, "private_key"),
    ],
)
def test_invalid_usage_is_reported_in_one_line(
    arguments: list[str],
    exit_code: int,
    culprit: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("key").write_text("secret")
    _set_standard_input(monkeypatch, b"One.\nTw\xf6.\n")

    assert main(["translate", *arguments]) == exit_code

    (line,) = capsys.readouterr().err.splitlines()
    assert culprit in line


def test_pivot_language_and_its_model_are_printed(
    target: str, service: ScriptedService, capsys: pytest.CaptureFixture[str]
) -> None:
    response = _answers("Hallo.")
    response.pivot.CopyFrom(pb.Pivot(language="fr", model_name="en-fr", model_version="2"))
    service.script.append(answers(response))

    flags = ("--target", target, "--source-language", "auto", "--pivot-languages", "fr,es")
    assert main(["translate", *flags, "Hi."]) == 0

    printed = capsys.readouterr()
    assert printed.out == "Hallo.\n"
    assert printed.err == "dragoman: pivot language fr, model en-fr/2\n"
    assert service.calls[0].request.pivot_languages == ["fr", "es"]
    assert not service.calls[0].request.source_language
