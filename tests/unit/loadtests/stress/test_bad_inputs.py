"""What bad inputs are sent, which answers to them are right, and how their work grows."""

import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from hypothesis import given
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import DragomanError, InvalidFieldError, OverloadedError, UnsupportedFieldError
from dragoman_service.middleware import error_mapping
from loadtests.scenarios.bad_inputs.answers import AFTER, BEFORE, Answer, faults, send
from loadtests.scenarios.bad_inputs.inputs import OK, BadInput, Draw, Expected, invalid
from loadtests.scenarios.bad_inputs.kinds import KINDS, make, plan
from loadtests.scenarios.bad_inputs.run import growths
from loadtests.hostile.texts import NUM_ROWS, SHAPES, shaped
from loadtests.generator.calls import Method
from tests.unit.loadtests.fake_calls import EndedCall

MOST = pb.ModelLimits(max_texts=128, max_text_characters=10_000, max_document_characters=20_000, max_target_tokens=512)
MODEL = pb.ModelVersion(limits=MOST, language_pairs=[pb.LanguagePair(source_language="en", target_language="de")])
ALWAYS = {
    **dict.fromkeys(("bad-utf8", "huge-lengths"), invalid("request")),
    **dict.fromkeys(("unknown-fields", "duplicate-fields"), OK),
}
SENT = pb.TranslateRequest(texts=["\n"]).SerializeToString()
LINE_END = BadInput(message=SENT, method=Method.TRANSLATE, expected=OK, num_characters=1)
INVALID = InvalidFieldError("texts[1]", "2 characters", "at most 1")
NAMES: dict[str, Any] = {"model_name": "m", "model_version": "1", "request_id": "bad"}
COPIED = pb.TranslateResponse(translations=[pb.Translation(hypotheses=[pb.Hypothesis(text="\n")])], **NAMES)
CHANGED = pb.TranslateResponse.FromString(COPIED.SerializeToString().replace(b"\n\x01\n", b"\n\x01x"))
FIRST, LAST = (pb.TranslateResponse(request_id=name, translations=[pb.Translation()]) for name in (BEFORE, AFTER))


def made(kind: str) -> list[BadInput]:
    return [make(kind, index, seed=1, model=MODEL) for index in (*range(12), 10_000)]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_inputs_of_a_kind_differ_can_be_made_again_and_are_no_message_exactly_if_so_expected(kind: str) -> None:
    bad_inputs = made(kind)

    assert bad_inputs == made(kind)
    assert len({(bad.message, tuple(bad.metadata)) for bad in bad_inputs}) > 1
    for bad in bad_inputs:
        assert bad.expected.statuses
        assert bad.expected == ALWAYS.get(kind, bad.expected)
        assert bad.num_characters > 0 or bad.method is Method.TRANSLATE_DOCUMENT or bad.expected != OK
        request: Any = getattr(pb, f"{bad.method.value}Request", pb.TranslateRequest)  # streams have none of their own
        is_none = bad.method.translates and bad.expected.field == "request"
        with pytest.raises(DecodeError) if is_none else nullcontext():
            request.FromString(bad.message)


def test_every_one_of_57_kinds_is_there_and_every_method_is_used() -> None:
    assert len(KINDS) == 57
    used = {bad.method for kind in KINDS for bad in made(kind)}
    assert used == set(Method) - {Method.LIST_MODELS, Method.CHECK}  # which take nothing


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_texts_are_no_longer_than_asked_for_and_can_be_sent(shape: str) -> None:
    for size in (*range(1, 12), 60, 301, 3000):
        text = shaped(Draw(f"{shape} {size}", model=MODEL), size, shape)
        assert 1 <= len(text) <= size
        assert text.encode().decode() == text


@given(st.integers(), st.integers(min_value=len(KINDS), max_value=3000))
def test_a_plan_has_as_many_inputs_as_asked_for_some_of_every_kind_and_none_twice(seed: int, count: int) -> None:
    planned = plan(count, kinds=list(KINDS), seed=seed)
    assert len(planned) == len(set(planned)) == count
    assert {kind for kind, _ in planned} == set(KINDS)


def test_a_full_run_has_every_column_of_the_code_space_and_little_that_is_large() -> None:
    planned = [kind for kind, _ in plan(20_000, kinds=list(KINDS), seed=1)]
    inputs = [make("unicode", index, seed=1, model=MODEL) for index in range(planned.count("unicode"))]

    columns = {ord(char) // 16 for bad in inputs for char in bad.message.decode("utf-8", "ignore")}
    assert columns >= {column for column in range(16 * NUM_ROWS) if not 0xD80 <= column < 0xE00}  # surrogates
    assert 5 < planned.count("megabytes") < 100
    assert planned.count("bidi") > 300


def ended(status: str, *responses: pb.TranslateResponse, **told: Any) -> Answer:
    return Answer(status=status, seconds=0.1, responses=responses, **told)


def rejected(error: DragomanError = INVALID, *, num_details: int = 2, message: str | None = None) -> Answer:
    told = error_mapping.answer(error).status
    shown = status_pb2.Status(message=told.message if message is None else message, details=told.details[:num_details])
    return ended("INVALID_ARGUMENT", error=shown)


def in_stream(*neighbours: pb.TranslateResponse, call_status: str = "OK") -> Answer:
    return replace(rejected(), neighbours=neighbours, call_status=call_status)


@pytest.mark.parametrize(
    ("expected", "answer", "fault"),
    [
        (invalid("texts"), rejected(), ""),
        (OK, ended("OK", COPIED), ""),
        (Expected(["RESOURCE_EXHAUSTED"]), ended("RESOURCE_EXHAUSTED"), ""),  # gRPC's own words
        (invalid("texts"), in_stream(FIRST, LAST), ""),
        (invalid("texts"), ended("INTERNAL"), "answered INTERNAL () instead of INVALID_ARGUMENT"),
        (invalid("texts"), ended("OK"), "answered OK () instead of INVALID_ARGUMENT"),
        (invalid("texts"), rejected(UnsupportedFieldError("texts")), "with the reason dragoman/UNSUPPORTED_FIELD"),
        (invalid("texts"), rejected(InvalidFieldError("model", 1, "2")), "names ['model'], not texts"),
        (invalid("texts"), rejected(message=""), "has a message of 0 characters"),
        (invalid("texts"), rejected(message="x" * 9999), "has a message of 9999 characters"),
        (invalid(""), rejected(num_details=1), "INVALID_ARGUMENT names no field"),
        (OK, ended("OK", CHANGED), "not copied"),
        (OK, ended("OK", COPIED, COPIED), "2 answers came"),
        (invalid("texts"), in_stream(), "none were answered"),
        (invalid("texts"), in_stream(FIRST), "['before'] were answered"),
        (invalid("texts"), in_stream(FIRST, pb.TranslateResponse(request_id=AFTER)), "request after it failed"),
        (invalid("texts"), in_stream(FIRST, LAST, call_status="INTERNAL"), "the stream ended with INTERNAL"),
    ],
)
def test_an_answer_must_be_one_that_was_expected(expected: Expected, answer: Answer, fault: str) -> None:
    method = Method.TRANSLATE_STREAM if answer.call_status else Method.TRANSLATE
    found = list(faults(replace(LINE_END, method=method, expected=expected), answer))

    assert bool(found) == bool(fault)
    assert fault in "; ".join(found)


def test_an_input_is_sent_again_after_the_time_that_an_overloaded_server_names(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep, channel = Mock(), Mock()
    monkeypatch.setattr(time, "sleep", sleep)
    busy = OverloadedError(queued=1, limit=1, unit="segments", retry_after_s=2.5)
    channel.unary_stream.return_value.side_effect = [EndedCall(busy), EndedCall(None, COPIED.SerializeToString())]
    answer = send(channel, LINE_END, model=MODEL, timeout_s=1.0)

    sleep.assert_called_once_with(2.5)
    assert (answer.num_retries, answer.status, answer.responses) == (1, "OK", [COPIED])


@pytest.mark.parametrize("power", [1, 2])
def test_twice_the_text_shows_the_power_with_which_work_grows(power: int) -> None:
    def sent(bad: BadInput) -> Answer:
        seconds, response = (bad.num_characters / 10_000) ** power, pb.TranslateResponse()
        if bad.method is Method.TRANSLATE_DOCUMENT:
            return Answer(status="LEFT", seconds=seconds)
        response.timings.text.FromNanoseconds(round(1e9 * seconds))
        return Answer(status="OK", seconds=2 * seconds, responses=[response])

    found = list(growths(sent, MODEL, shapes=["dots", "nul"], seed=1))
    refused = growths(lambda _: Answer(status="INVALID_ARGUMENT", seconds=0.0), MODEL, shapes=sorted(SHAPES), seed=1)

    assert [growth.ratio for growth in found] == pytest.approx([2**power] * 4)
    assert [growth.num_characters for growth in found] == [10_000, 20_000] * 2
    assert found[0].whole_s == pytest.approx(1.0)
    assert {growth.ratio for growth in refused} == {1.0}
