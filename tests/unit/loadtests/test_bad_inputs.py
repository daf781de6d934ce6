"""Responses to hostile requests."""

from dataclasses import replace
from typing import Any

import pytest
from google.rpc import status_pb2

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.calls import error_mapping
from dragoman_service.errors import DragomanError, InvalidFieldError, UnsupportedFieldError
from loadtests.generator.calls import Method
from loadtests.hostile.requests import OK, Expected, HostileRequest, invalid
from loadtests.scenarios.bad_inputs.responses import AFTER, BEFORE, Result, faults

SENT = pb.TranslateRequest(texts=["\n"]).SerializeToString()
LINE_END = HostileRequest(message=SENT, method=Method.TRANSLATE, expected=OK, num_characters=1)
INVALID = InvalidFieldError("texts[1]", "2 characters", "at most 1")
NAMES: dict[str, Any] = {"model_name": "m", "model_version": "1", "request_id": "bad"}
COPIED = pb.TranslateResponse(translations=[pb.Translation(hypotheses=[pb.Hypothesis(text="\n")])], **NAMES)
CHANGED = pb.TranslateResponse.FromString(COPIED.SerializeToString().replace(b"\n\x01\n", b"\n\x01x"))
FIRST, LAST = (pb.TranslateResponse(request_id=name, translations=[pb.Translation()]) for name in (BEFORE, AFTER))


def ended(status: str, *responses: pb.TranslateResponse, **fields: Any) -> Result:
    return Result(status=status, seconds=0.1, responses=responses, **fields)


def rejected(error: DragomanError = INVALID, *, num_details: int = 2, message: str | None = None) -> Result:
    status = error_mapping.to_rpc_error(error).status
    shown = status_pb2.Status(
        message=status.message if message is None else message, details=status.details[:num_details]
    )
    return ended("INVALID_ARGUMENT", error=shown)


def in_stream(*neighbours: pb.TranslateResponse, call_status: str = "OK") -> Result:
    return replace(rejected(), neighbours=neighbours, call_status=call_status)


@pytest.mark.parametrize(
    ("expected", "result", "num_faults"),
    [
        (invalid("texts"), rejected(), 0),
        (OK, ended("OK", COPIED), 0),
        (Expected(["RESOURCE_EXHAUSTED"]), ended("RESOURCE_EXHAUSTED"), 0),  # from gRPC
        (invalid("texts"), in_stream(FIRST, LAST), 0),
        (invalid("texts"), ended("INTERNAL"), 1),
        (invalid("texts"), ended("OK"), 1),
        (invalid("texts"), rejected(UnsupportedFieldError("texts")), 1),
        (invalid("texts"), rejected(InvalidFieldError("model", 1, "2")), 1),
        (invalid("texts"), rejected(message=""), 1),
        (invalid("texts"), rejected(message="x" * 9999), 1),
        (invalid(""), rejected(num_details=1), 1),
        (OK, ended("OK", CHANGED), 1),
        (OK, ended("OK", COPIED, COPIED), 1),
        (invalid("texts"), in_stream(), 1),
        (invalid("texts"), in_stream(FIRST), 1),
        (invalid("texts"), in_stream(FIRST, pb.TranslateResponse(request_id=AFTER)), 1),
        (invalid("texts"), in_stream(FIRST, LAST, call_status="INTERNAL"), 1),
    ],
)
def test_unexpected_response_is_a_fault(expected: Expected, result: Result, num_faults: int) -> None:
    method = Method.TRANSLATE_STREAM if result.call_status else Method.TRANSLATE
    assert len(list(faults(replace(LINE_END, method=method, expected=expected), result))) == num_faults
