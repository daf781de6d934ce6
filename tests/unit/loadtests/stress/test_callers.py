from collections.abc import Iterator
from typing import cast

import grpc
import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.stress.callers import (
    WRONG_ANSWER,
    Bystanders,
    Client,
    Kind,
    PlannedCall,
    Question,
    Reply,
    paced,
    reply_of,
)
from loadtests.wire import Method
from service.errors import DeadlineExceededError, InvalidFieldError, ModelNotFoundError
from tests.fakes import ManualClock
from tests.unit.loadtests.fake_calls import EndedCall

HYPOTHESIS = pb.Hypothesis(text="Ja.", score=-1.0)
ANSWER = pb.TranslateResponse(translations=[pb.Translation(hypotheses=[HYPOTHESIS])]).SerializeToString()
INVALID = InvalidFieldError("texts", "none", "one")


class Answered(EndedCall):
    def __iter__(self) -> Iterator[bytes]:
        return iter([b"answer"])


class Cancelled(Answered):
    """Its caller cancelled while the status of the server came."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.CANCELLED


class Knowing:
    """A client that knows the answer beforehand."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def translate(self, *_: object, **__: object) -> Reply:
        return Reply(status="OK", messages=(self._answer,))


def test_a_bystander_that_is_not_answered_notes_why(unused_tcp_port: int) -> None:
    question = Question(request=b"", answer=ANSWER)

    with Bystanders(f"127.0.0.1:{unused_tcp_port}", [question], num_translating=1) as bystanders:
        bystanders.wait_for_answers()

    assert {reply.status for reply in (*bystanders.translations, *bystanders.looks)} == {"UNAVAILABLE"}
    assert bystanders.translations[0].message


def test_an_answer_that_is_not_the_right_one_is_told_apart() -> None:
    question = Question(request=b"", answer=ANSWER)
    right, wrong = (question.ask(cast("Client", Knowing(answer))) for answer in (ANSWER, b""))

    assert (right.status, wrong.status) == ("OK", WRONG_ANSWER)
    assert "instead of [('Ja.', -1.0)]" in wrong.message


@pytest.mark.parametrize(
    ("call", "status", "is_of_server"),
    [
        (Answered(INVALID), "INVALID_ARGUMENT", True),
        (Answered(ModelNotFoundError("model", "unknown", ())), "NOT_FOUND", True),
        (Answered(DeadlineExceededError("queue")), "DEADLINE_EXCEEDED", True),
        (Answered(), "OK", True),
        (Answered(code=grpc.StatusCode.DEADLINE_EXCEEDED), "DEADLINE_EXCEEDED", False),
        (Answered(code=grpc.StatusCode.UNAVAILABLE), "UNAVAILABLE", False),
        (Cancelled(INVALID), "CANCELLED", False),
    ],
)
def test_a_status_of_the_server_is_known_by_its_details(call: Answered, status: str, is_of_server: bool) -> None:
    reply = reply_of(call, began_s=0.0)

    assert (reply.status, reply.is_of_server, reply.messages) == (status, is_of_server, (b"answer",))


@pytest.mark.parametrize(("rate_per_s", "gap_s"), [(4.0, 0.25), (None, 0.0)])
def test_calls_are_spaced_evenly_and_what_was_missed_is_not_made_up_for(rate_per_s: float | None, gap_s: float) -> None:
    clock, call = ManualClock(), PlannedCall(request_id="r", kind=Kind.USUAL, method=Method.TRANSLATE, raw=())
    schedule = paced(iter([call] * 5), rate_per_s, clock=clock)

    assert [next(schedule)[0] for _ in range(3)] == pytest.approx([0.0, gap_s, 2 * gap_s])
    clock.advance(10.0)
    assert [due_s for due_s, _ in schedule] == pytest.approx([10.0, 10.0 + gap_s])
