"""What callers make of what comes back, how they are paced, and what is done to the server beside their calls."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import DeadlineExceededError, DragomanError, InvalidFieldError, ModelNotFoundError
from loadtests.scenarios import callers
from loadtests.scenarios.callers import Bystanders, Client, Kind, PlannedCall, Question, reply_of
from loadtests.scenarios.chaos import http2
from loadtests.scenarios.chaos.fault import Fault, Stage
from loadtests.scenarios.chaos.server import ChaosServer
from loadtests.scenarios.stress_server import add_version, only_bundle, remove_version
from loadtests.generator.calls import Method
from tests.fakes import ManualClock
from tests.unit.loadtests.fake_calls import EndedCall

TRANSLATION = pb.Translation(hypotheses=[pb.Hypothesis(text="Ja.", score=-1.0)])
ANSWER = pb.TranslateResponse(translations=[TRANSLATION]).SerializeToString()


def test_a_bystander_that_is_not_answered_notes_why(unused_tcp_port: int) -> None:
    question = Question(request=b"", answer=ANSWER)
    with Bystanders(f"127.0.0.1:{unused_tcp_port}", [question], num_translating=1) as bystanders:
        bystanders.wait_for_answers()

    assert {reply.status for reply in (*bystanders.translations, *bystanders.looks)} == {"UNAVAILABLE"}
    assert bystanders.translations[0].message


def test_an_answer_that_is_not_the_right_one_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "call", lambda *_, **__: reply_of(EndedCall(None, ANSWER), began_s=0.0))
    with Client("127.0.0.1:1") as client:
        right, wrong = (Question(request=b"", answer=answer).ask(client) for answer in (ANSWER, b""))

    assert (right.status, wrong.status) == ("OK", callers.WRONG_ANSWER)
    assert wrong.message == "[('Ja.', -1.0)] instead of []"


@pytest.mark.parametrize(
    ("error", "code", "status", "is_of_server"),
    [
        (InvalidFieldError("texts", "none", "one"), None, "INVALID_ARGUMENT", True),
        (ModelNotFoundError("model", "unknown", ()), None, "NOT_FOUND", True),
        (DeadlineExceededError("queue"), None, "DEADLINE_EXCEEDED", True),
        (None, None, "OK", True),
        (None, grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", False),
        (None, grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE", False),
        (InvalidFieldError("texts", "none", "one"), grpc.StatusCode.CANCELLED, "CANCELLED", False),
    ],
)
def test_a_status_of_the_server_is_known_by_its_details(
    error: DragomanError | None, code: grpc.StatusCode | None, status: str, is_of_server: bool
) -> None:
    reply = reply_of(EndedCall(error, ANSWER, code=code), began_s=0.0)

    assert (reply.status, reply.is_of_server, reply.messages) == (status, is_of_server, (ANSWER,))


@pytest.mark.parametrize(("rate_per_s", "gap_s"), [(4.0, 0.25), (None, 0.0)])
def test_calls_are_spaced_evenly_and_what_was_missed_is_not_made_up_for(rate_per_s: float | None, gap_s: float) -> None:
    clock, call = ManualClock(), PlannedCall(request_id="r", kind=Kind.USUAL, method=Method.TRANSLATE, raw=())
    schedule = callers.paced([call] * 5, rate_per_s, clock=clock)

    assert [next(schedule)[0] for _ in range(3)] == pytest.approx([0.0, gap_s, 2 * gap_s])
    clock.advance(10.0)
    assert [due_s for due_s, _ in schedule] == pytest.approx([10.0, 10.0 + gap_s])


def test_versions_come_with_files_and_a_manifest_of_their_own_and_leave_nothing(tmp_path: Path) -> None:
    def files(path: Path) -> tuple[object, bytes]:
        return json.loads((path / "manifest.json").read_text()), (path / "weights.bin").read_bytes()

    bundle, models = tmp_path / "shipped" / "m" / "1", tmp_path / "models"
    manifest = {"name": "m", "version": "1", "licence": "CC0"}
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    (bundle / "weights.bin").write_bytes(b"weights")

    added = add_version(bundle, models, 7)
    assert added == only_bundle(models) == models / "m" / "7"
    assert files(added) == ({**manifest, "version": "7"}, b"weights")
    broken = add_version(bundle, models, 8, is_broken=True)
    assert files(broken) == ({**manifest, "version": "8"}, b"weight")
    with pytest.raises(ValueError, match="expected one bundle MODEL/VERSION, found 2"):
        only_bundle(models)
    for path in (added, broken):
        remove_version(path)
    assert list((models / "m").iterdir()) == []
    assert files(bundle) == (manifest, b"weights")


def test_a_raw_call_of_any_size_is_a_good_one_in_frames_that_a_peer_accepts() -> None:
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = http2.RawConnection(f"127.0.0.1:{listening.getsockname()[1]}")
        connection.call("/x/Y", bytes(40_000), timeout_s=15, extra=[("x-note", "a" * 30_000)])
        connection.close(with_reset=False)
        with listening.accept()[0] as accepted, accepted.makefile("rb") as sent:
            events = server.receive_data(sent.read())

    (request,) = [event for event in events if isinstance(event, RequestReceived)]
    assert dict(request.headers).items() >= {b"grpc-timeout": b"15S", b"x-note": b"a" * 30_000}.items()
    assert sum(len(event.data) for event in events if isinstance(event, DataReceived)) == 40_000
    assert isinstance(events[-1], StreamEnded)


def test_messages_may_lie_about_their_length_and_garbage_is_the_same_for_the_same_number() -> None:
    assert http2.grpc_message(b"abc") == b"\x00\x00\x00\x00\x03abc"
    assert http2.grpc_message(b"abc", length=2**32 - 1) == b"\x00\xff\xff\xff\xffabc"
    assert http2.garbage(7) == http2.garbage(7) != http2.garbage(8)
    assert all(0 < len(content) < 100_000 for content in http2.garbage(7).values())


def test_what_a_series_grew_is_told_against_another_of_the_same_moment(tmp_path: Path) -> None:
    scrapes = iter([(4.0, 4.0), (9.0, 7.0), (20.0, 18.0)])  # of all steps and of the short ones: bystanders go on
    process = SimpleNamespace(samples=lambda: dict(zip(("all", "short"), next(scrapes), strict=True)), target="")
    (log := tmp_path / "log").touch()
    fault = Fault(name="long-steps", summary="", inject=lambda _: None)
    stage = Stage(fault, cast("ChaosServer", SimpleNamespace(process=process, log=log)), [], "short")

    assert stage.growth_of("all", less="short") == 2
    assert stage.growth_of("all") == 16
