from dataclasses import replace

import pytest
from dragoman.v1 import translation_pb2 as pb
from grpc_status import rpc_status

from loadtests.stress.bad_inputs.inputs import OK, BadInput, Expected, Limits, invalid, translate_input
from loadtests.stress.bad_inputs.sender import AFTER, BEFORE, Answer, Rejection, faults, rejection_of_status
from loadtests.wire import Method
from service.api import status
from service.errors import InvalidFieldError, OverloadedError
from tests.unit.loadtests.fake_calls import EndedCall

REJECTION = Rejection(reason="INVALID_FIELD", domain="dragoman", fields=("texts[1]",), message="too long")
REJECTED = Answer(status="INVALID_ARGUMENT", seconds=0.1, rejection=REJECTION)
COPIED = pb.TranslateResponse(
    translations=[pb.Translation(hypotheses=[pb.Hypothesis(text="\n")])],
    model_name="m",
    model_version="1",
    request_id="bad",
)
NEIGHBOURS = tuple(pb.TranslateResponse(request_id=name, translations=[pb.Translation()]) for name in (BEFORE, AFTER))


def bad_input(expected: Expected, *, method: Method = Method.TRANSLATE) -> BadInput:
    return translate_input(Limits(), "\n", expected=expected, method=method)


def test_what_was_expected_has_no_fault() -> None:
    assert list(faults(bad_input(invalid("texts")), REJECTED)) == []
    assert list(faults(bad_input(OK), Answer(status="OK", seconds=0.1, responses=[COPIED]))) == []


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (replace(REJECTED, status="INTERNAL"), "answered INTERNAL (too long) instead of INVALID_ARGUMENT"),
        (Answer(status="OK", seconds=0.1), "answered OK () instead of INVALID_ARGUMENT"),
        (replace(REJECTED, rejection=replace(REJECTION, reason="")), "comes with the reason dragoman/"),
        (replace(REJECTED, rejection=replace(REJECTION, fields=("model",))), "names ('model',), not texts"),
        (replace(REJECTED, rejection=replace(REJECTION, message="")), "has a message of 0 characters"),
        (replace(REJECTED, rejection=replace(REJECTION, message="x" * 9999)), "has a message of 9999 characters"),
    ],
)
def test_a_rejection_that_says_something_else_is_a_fault(answer: Answer, fault: str) -> None:
    assert any(fault in found for found in faults(bad_input(invalid("texts")), answer))


def test_a_rejection_without_a_field_is_a_fault() -> None:
    answer = replace(REJECTED, rejection=replace(REJECTION, fields=()))

    assert list(faults(bad_input(invalid("")), answer)) == ["INVALID_ARGUMENT names no field"]


def test_a_broken_promise_of_an_answer_is_a_fault() -> None:
    changed = pb.TranslateResponse.FromString(COPIED.SerializeToString())
    changed.translations[0].hypotheses[0].text = "x"

    (found,) = list(faults(bad_input(OK), Answer(status="OK", seconds=0.1, responses=[changed])))[:1]

    assert "not copied" in found


@pytest.mark.parametrize(
    ("neighbours", "call_status", "fault"),
    [
        ((), "OK", "none were answered"),
        (NEIGHBOURS[:1], "OK", "['before'] were answered"),
        ((NEIGHBOURS[0], pb.TranslateResponse(request_id=AFTER)), "OK", "the ordinary request after it failed"),
        (NEIGHBOURS, "INVALID_ARGUMENT", "the stream ended with INVALID_ARGUMENT"),
    ],
)
def test_in_a_stream_the_neighbours_must_be_answered(
    neighbours: tuple[pb.TranslateResponse, ...], call_status: str, fault: str
) -> None:
    bad = bad_input(invalid("texts"), method=Method.TRANSLATE_STREAM)
    good = replace(REJECTED, neighbours=NEIGHBOURS, call_status="OK")

    assert list(faults(bad, good)) == []
    assert any(fault in found for found in faults(bad, replace(good, neighbours=neighbours, call_status=call_status)))


def test_what_grpc_itself_rejects_needs_no_details() -> None:
    bad = BadInput(message=b"", expected=Expected(statuses=frozenset({"RESOURCE_EXHAUSTED"})))
    answer = Answer(status="RESOURCE_EXHAUSTED", seconds=0.1, rejection=Rejection(message="larger than max"))

    assert list(faults(bad, answer)) == []


def test_the_details_of_a_rejection_are_read() -> None:
    error = InvalidFieldError("texts[1]", "2 characters", "at most 1")

    rejection = rejection_of_status(rpc_status.from_call(EndedCall(error)))

    assert rejection == rejection_of_status(status.answer(error).status)
    assert (rejection.reason, rejection.domain, rejection.fields) == ("INVALID_FIELD", "dragoman", ("texts[1]",))
    busy = OverloadedError(queued=1, limit=1, unit="segments", retry_after_s=2.5)
    assert rejection_of_status(rpc_status.from_call(EndedCall(busy))).retry_after_s == 2.5
