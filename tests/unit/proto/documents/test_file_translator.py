import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from dragoman.__main__ import main
from dragoman.client import TranslationClient
from dragoman.documents.file_translator import plan_files, translate_file
from dragoman.documents.formats import ReadOptions
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import Behaviour, ScriptedService, rejects, running

_TIMEOUT_S = 60.0
_LINES = [f"This is line number {number}." for number in range(200)]


class EchoService(ScriptedService):
    """Answers `Translate` and records the texts."""

    def __init__(self, translate: Callable[[str], str], before: Behaviour) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._translate = translate
        self._before = before

    def Translate(self, request: pb.TranslateRequest, context: Any) -> Any:  # noqa: N802 - name of the method in the contract
        self._before(request, context)
        self.texts += request.texts
        hypotheses = [pb.Hypothesis(text=self._translate(text)) for text in request.texts]
        return pb.TranslateResponse(translations=[pb.Translation(hypotheses=[each]) for each in hypotheses])


@contextmanager
def echo_server(
    translate: Callable[[str], str] = str, before: Behaviour = lambda request, context: None
) -> Iterator[tuple[str, EchoService]]:
    """Serve on a free port; yield the target and the service. `before` is called first and may end a call."""
    service = EchoService(translate, before)
    with running(service) as target:
        yield target, service


def rejects_text_with(
    part: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT, reason: str = "INVALID_FIELD"
) -> Behaviour:
    """End each call with a text that contains `part` with an error of this text."""

    def reject(request: pb.TranslateRequest, context: Any) -> None:
        for index, text in enumerate(request.texts):
            if part in text:
                violation = error_details_pb2.BadRequest.FieldViolation(field=f"texts[{index}]", description="rejected")
                details = error_details_pb2.BadRequest(field_violations=[violation])
                rejects(code, reason, details)(request, context)

    return reject


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source.txt").write_text("\n".join(_LINES))
    return tmp_path / "source.txt"


def translate(target: str, *flags: object) -> int:
    return main(["translate", "--target", target, *map(str, flags)])


def test_killed_run_resumes_from_its_journal(source: Path, tmp_path: Path) -> None:
    may_answer, arrived, numbers = threading.Event(), threading.Semaphore(0), itertools.count(1)

    def answer_three_calls(request: Any, context: Any) -> None:
        number = next(numbers)
        arrived.release()
        if number > 3:
            may_answer.wait(_TIMEOUT_S)

    output = tmp_path / "out" / "target.txt"
    with echo_server(before=answer_three_calls) as (target, _):
        command = [sys.executable, "-m", "dragoman", "translate", "--target", target]
        process = subprocess.Popen([*command, "--input", str(source), "--output", str(output)])
        # Four calls run concurrently; the next starts when the answer to the last is in the journal.
        assert all(arrived.acquire(timeout=_TIMEOUT_S) for _ in range(7))
        process.kill()
        process.wait()
        may_answer.set()
        journal = (tmp_path / "out" / ".target.txt.journal").read_bytes().splitlines()
        assert not output.exists()
        assert len(journal) == 3 * 16
        (tmp_path / "out" / ".target.txt.journal").write_bytes(b"\n".join(journal[:-1]) + b"\n" + journal[-1][:40])
        with echo_server() as (other_target, other):
            assert translate(other_target, "--input", source, "--output", output) == 0

    recorded = [json.loads(line)[1] for line in journal[:-1]]
    assert sorted(other.texts) == sorted(set(_LINES) - set(recorded))
    assert output.read_bytes() == source.read_bytes()
    assert [path.name for path in output.parent.iterdir()] == ["target.txt"]


def test_journal_is_ignored_after_options_have_changed(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "target.txt"
    with echo_server(before=rejects_text_with(_LINES[7])) as (target, _):
        assert translate(target, "--input", source, "--output", output) == 1
    with echo_server(str.upper) as (target, service):
        assert translate(target, "--input", source, "--output", output, "--beam-size", "2") == 0

    assert len(service.texts) == len(_LINES)
    assert output.read_text() == source.read_text().upper()


_REJECTED = 'One <g id="1">man</g>.'


@pytest.mark.parametrize(
    ("before", "sent_again"),
    [
        (rejects_text_with("<g"), [_REJECTED]),
        (rejects_text_with("<g", grpc.StatusCode.INTERNAL, "ENGINE_FAILED"), [_REJECTED]),
        (lambda request, context: None, []),
    ],
    ids=["text is rejected", "text fails", "markup is lost"],
)
def test_failed_segment_keeps_its_source_and_is_reported(
    before: Behaviour, sent_again: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["One <i>man</i>.", "Two men.", "Three men."]
    cues = "\n".join(f"00:00:0{n},000 --> 00:00:0{n},500\n{line}\n" for n, line in enumerate(lines))
    (tmp_path / "film.srt").write_text(cues)

    flags = ("--input", tmp_path / "film.srt", "--output", tmp_path / "out.srt")
    with echo_server(lambda text: text.replace("<g", "<b").upper(), before) as (target, _):
        assert translate(target, *flags) == 1
    printed = capsys.readouterr()
    assert "film.srt, line 2: not translated: " in printed.err
    assert "2 of 3 segments translated" in printed.out
    assert (tmp_path / "out.srt").read_text() == cues.replace("Two men", "TWO MEN").replace("Three men", "THREE MEN")

    with echo_server() as (target, service):
        translate(target, *flags)
    assert service.texts == sent_again


def test_several_files_are_written_to_a_directory_and_repeated_text_is_sent_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Yes.\nNo.\nYes.\n" * 100)
    (tmp_path / "b.json").write_text('["Two"]')

    with echo_server(str.upper) as (target, service):
        flags = ("--input", tmp_path / "a.txt", tmp_path / "b.json", "--output", tmp_path / "out")
        assert translate(target, *flags) == 0

    assert service.texts == ["Yes.", "No.", "Two"]
    assert (tmp_path / "out" / "a.txt").read_text() == "YES.\nNO.\nYES.\n" * 100
    assert (tmp_path / "out" / "b.json").read_text() == '["TWO"]'


def _missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    return [tmp_path / "a.txt", "--output", tmp_path / "b.txt"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (lambda path, _: [path / "a.txt"], "--output"),
        (lambda path, _: [path / "a.txt", "--output", path / "a.txt"], "a.txt"),
        (lambda path, _: [path / "a.txt", path / "c" / "a.txt", "--output", path / "out"], "a.txt"),
        (lambda path, _: [path / "missing.txt", "--output", path / "out"], "missing.txt"),
        (lambda path, _: [path / "a.txt", "--output", path / "b.txt", "--document", "-"], "--document"),
        (_missing_extra, "[files]'"),
    ],
)
def test_invalid_arguments_are_rejected_before_the_first_call(
    flags: Callable[[Path, pytest.MonkeyPatch], list[object]],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "c").mkdir()
    for name in ("a.txt", "c/a.txt"):
        (tmp_path / name).write_text("One.")

    with echo_server() as (target, service):
        assert translate(target, "--input", *flags(tmp_path, monkeypatch)) == 2

    assert message in capsys.readouterr().err
    assert not service.texts


def test_dry_run_only_counts_segments(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert translate("localhost:1", "--input", source, "--output", tmp_path / "out.txt", "--dry-run") == 0

    assert capsys.readouterr().out == f"{source}: 200 segments, 4690 characters, 0 already translated\n"
    assert not (tmp_path / "out.txt").exists()


def test_batch_waits_for_an_overloaded_server(source: Path, tmp_path: Path) -> None:
    delay = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=7))
    reject = rejects(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", delay, pushback_ms=-1)
    numbers = itertools.count()

    def reject_first(request: Any, context: Any) -> None:
        if next(numbers) == 0:
            reject(request, context)

    (plan,) = plan_files([source], tmp_path / "out.txt", ReadOptions(target_language="de"))
    pauses: list[float] = []
    with echo_server(str.upper, reject_first) as (target, _), TranslationClient(target) as client:
        outcome = translate_file(client, plan, {"target_language": "de"}, progress=lambda _: None, pause=pauses.append)

    assert (pauses, outcome.failures) == ([7.0], [])
    assert plan.output.read_text() == source.read_text().upper()


def test_unavailable_server_ends_the_run(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with echo_server(before=rejects(grpc.StatusCode.UNAVAILABLE, pushback_ms=-1)) as (target, _):
        assert translate(target, "--input", source, "--output", tmp_path / "out.txt") == 1

    assert "UNAVAILABLE" in capsys.readouterr().err
    assert not (tmp_path / "out.txt").exists()
