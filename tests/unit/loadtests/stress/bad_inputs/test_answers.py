import time
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import Mock

import grpc
import pytest
from dragoman.v1 import translation_pb2 as pb
from google.rpc import status_pb2

from loadtests.stress.bad_inputs.answers import AFTER, BEFORE, Answer, faults, send
from loadtests.stress.bad_inputs.inputs import OK, BadInput, Expected, invalid
from loadtests.wire import Method
from service.api import status
from service.errors import DragomanError, InvalidFieldError, OverloadedError, UnsupportedFieldError
from tests.unit.loadtests.fake_calls import EndedCall

INVALID = InvalidFieldError("texts[1]", "2 characters", "at most 1")
COPIED = pb.TranslateResponse(
    translations=[pb.Translation(hypotheses=[pb.Hypothesis(text="\n")])],
    model_name="m",
    model_version="1",
    request_id="bad",
)
CHANGED = pb.TranslateResponse.FromString(COPIED.SerializeToString().replace(b"\n\x01\n", b"\n\x01x"))
BEFORE_IT, AFTER_IT = (
    pb.TranslateResponse(request_id=name, translations=[pb.Translation()]) for name in (BEFORE, AFTER)
)


def answered(*responses: pb.TranslateResponse) -> Answer:
    return Answer(status="OK", seconds=0.1, responses=responses)


def rejected(error: DragomanError = INVALID, *, num_details: int = 2, message: str | None = None) -> Answer:
    told = status.answer(error).status
    shown = status_pb2.Status(message=told.message if message is None else message, details=told.details[:num_details])
    return Answer(status="INVALID_ARGUMENT", seconds=0.1, error=shown)


def in_stream(*neighbours: pb.TranslateResponse, call_status: str = "OK") -> Answer:
    return replace(rejected(), neighbours=neighbours, call_status=call_status)


def bad_input(expected: Expected, method: Method = Method.TRANSLATE) -> BadInput:
    message = pb.TranslateRequest(texts=["\n"]).SerializeToString()
    return BadInput(message=message, method=method, expected=expected, num_characters=1)


@pytest.mark.parametrize(
    ("expected", "answer", "fault"),
    [
        (invalid("texts"), rejected(), ""),
        (OK, answered(COPIED), ""),
        (Expected(["RESOURCE_EXHAUSTED"]), Answer(status="RESOURCE_EXHAUSTED", seconds=0.1), ""),  # gRPC's own words
        (invalid("texts"), in_stream(BEFORE_IT, AFTER_IT), ""),
        (
            invalid("texts"),
            replace(rejected(message="x"), status="INTERNAL"),
            "answered INTERNAL (x) instead of INVALID_",
        ),
        (invalid("texts"), answered(), "answered OK () instead of INVALID_ARGUMENT"),
        (invalid("texts"), rejected(UnsupportedFieldError("texts")), "with the reason dragoman/UNSUPPORTED_FIELD"),
        (invalid("texts"), rejected(InvalidFieldError("model", 1, "2")), "names ['model'], not texts"),
        (invalid("texts"), rejected(message=""), "has a message of 0 characters"),
        (invalid("texts"), rejected(message="x" * 9999), "has a message of 9999 characters"),
        (invalid(""), rejected(num_details=1), "INVALID_ARGUMENT names no field"),
        (OK, answered(CHANGED), "not copied"),
        (OK, answered(COPIED, COPIED), "2 answers came"),
        (invalid("texts"), in_stream(), "none were answered"),
        (invalid("texts"), in_stream(BEFORE_IT), "['before'] were answered"),
        (invalid("texts"), in_stream(BEFORE_IT, pb.TranslateResponse(request_id=AFTER)), "request after it failed"),
        (invalid("texts"), in_stream(BEFORE_IT, AFTER_IT, call_status="INTERNAL"), "the stream ended with INTERNAL"),
    ],
)
def test_an_answer_must_be_one_that_was_expected(expected: Expected, answer: Answer, fault: str) -> None:
    found = list(
        faults(bad_input(expected, Method.TRANSLATE_STREAM if answer.call_status else Method.TRANSLATE), answer)
    )

    assert bool(found) == bool(fault)
    assert any(fault in one for one in found) == bool(fault)


class Call(EndedCall):
    def __iter__(self) -> Iterator[bytes]:
        return iter([COPIED.SerializeToString()] if self.code() is grpc.StatusCode.OK else [])


def test_an_input_is_sent_again_after_the_time_that_an_overloaded_server_names(monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s: list[float] = []
    monkeypatch.setattr(time, "sleep", slept_s.append)
    busy = OverloadedError(queued=1, limit=1, unit="segments", retry_after_s=2.5)
    channel = Mock()
    channel.unary_stream.return_value.side_effect = [Call(busy), Call()]

    answer = send(channel, bad_input(OK), model=pb.ModelVersion(), timeout_s=1.0)

    assert (slept_s, answer.num_retries, answer.status, answer.responses) == ([2.5], 1, "OK", [COPIED])
