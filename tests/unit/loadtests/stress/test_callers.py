from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.stress import callers
from loadtests.stress.callers import Bystanders, Client, Kind, PlannedCall, Question, reply_of
from loadtests.wire import Method
from service.errors import DeadlineExceededError, InvalidFieldError, ModelNotFoundError
from tests.fakes import ManualClock
from tests.unit.loadtests.fake_calls import EndedCall

HYPOTHESIS = pb.Hypothesis(text="Ja.", score=-1.0)
ANSWER = pb.TranslateResponse(translations=[pb.Translation(hypotheses=[HYPOTHESIS])]).SerializeToString()
INVALID = InvalidFieldError("texts", "none", "one")


class Call(EndedCall):
    """Answered with a message; its status may be one that the client's library gives though the server's came."""

    def __init__(self, *given: Any, code: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        super().__init__(*given, code=code)
        self._code = self._code if code is grpc.StatusCode.OK else code

    def __iter__(self) -> Iterator[bytes]:
        return iter([ANSWER])


def test_a_bystander_that_is_not_answered_notes_why(unused_tcp_port: int) -> None:
    question = Question(request=b"", answer=ANSWER)

    with Bystanders(f"127.0.0.1:{unused_tcp_port}", [question], num_translating=1) as bystanders:
        bystanders.wait_for_answers()

    assert {reply.status for reply in (*bystanders.translations, *bystanders.looks)} == {"UNAVAILABLE"}
    assert bystanders.translations[0].message


def test_an_answer_that_is_not_the_right_one_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "translate", lambda *_, **__: reply_of(Call(), began_s=0.0))
    with Client("127.0.0.1:1") as client:
        right, wrong = (Question(request=b"", answer=answer).ask(client) for answer in (ANSWER, b""))

    assert (right.status, wrong.status) == ("OK", callers.WRONG_ANSWER)
    assert wrong.message == "[('Ja.', -1.0)] instead of []"


@pytest.mark.parametrize(
    ("call", "status", "is_of_server"),
    [
        (Call(INVALID), "INVALID_ARGUMENT", True),
        (Call(ModelNotFoundError("model", "unknown", ())), "NOT_FOUND", True),
        (Call(DeadlineExceededError("queue")), "DEADLINE_EXCEEDED", True),
        (Call(), "OK", True),
        (Call(code=grpc.StatusCode.DEADLINE_EXCEEDED), "DEADLINE_EXCEEDED", False),
        (Call(code=grpc.StatusCode.UNAVAILABLE), "UNAVAILABLE", False),
        (Call(INVALID, code=grpc.StatusCode.CANCELLED), "CANCELLED", False),
    ],
)
def test_a_status_of_the_server_is_known_by_its_details(call: Call, status: str, is_of_server: bool) -> None:
    reply = reply_of(call, began_s=0.0)

    assert (reply.status, reply.is_of_server, reply.messages) == (status, is_of_server, (ANSWER,))


@pytest.mark.parametrize(("rate_per_s", "gap_s"), [(4.0, 0.25), (None, 0.0)])
def test_calls_are_spaced_evenly_and_what_was_missed_is_not_made_up_for(rate_per_s: float | None, gap_s: float) -> None:
    clock, call = ManualClock(), PlannedCall(request_id="r", kind=Kind.USUAL, method=Method.TRANSLATE, raw=())
    schedule = callers.paced([call] * 5, rate_per_s, clock=clock)

    assert [next(schedule)[0] for _ in range(3)] == pytest.approx([0.0, gap_s, 2 * gap_s])
    clock.advance(10.0)
    assert [due_s for due_s, _ in schedule] == pytest.approx([10.0, 10.0 + gap_s])
