import functools
import math
import operator
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf import text_format
from google.rpc import status_pb2

from dragoman.v1 import translation_pb2 as pb
from loadtests.scenarios.contract import document_faults, normalized_response, stream_answers, translate_faults

TEXT = "- A man.\n\tTwo  men."
SENTENCES = [
    "source { start: 2 end: 8 } target { start: 2 end: 11 } num_source_tokens: 3 num_target_tokens: 4",
    "source { start: 10 end: 19 } target { start: 13 end: 18 } num_source_tokens: 3 num_target_tokens: 4",
]
ANSWER = rf"""
    model_name: "m" model_version: "1" request_id: "r" num_source_tokens: 6 num_target_tokens: 8
    translations {{
        hypotheses {{
            text: "- Ein Mann.\n\tZwei." score: -1 tokens: "a" tokens: "b" token_log_probs: -1 token_log_probs: -2
            alignment {{ source {{ start: 2 end: 3 }} target {{ start: 2 end: 5 }} weight: 0.5 }}
            alignment {{ source {{ start: 4 end: 8 }} target {{ start: 6 end: 11 }} weight: 1 }}
            attention {{ source_pieces: "a" target_pieces: "b" num_heads: 1 weights: 1 }}
        }}
        sentences {{ {SENTENCES[0]} }} sentences {{ {SENTENCES[1]} is_truncated: true }}
        warnings {{ kind: WARNING_KIND_TRUNCATED message: "cut off" sentence_index: 1 }}
    }}
    translations {{ hypotheses {{ text: " \n" }} }}"""
LONG = f"- Ein Mann.\n\tZwe{'i' * 201}."
DROP = operator.methodcaller("pop")


def request(**fields: Any) -> pb.TranslateRequest:
    return pb.TranslateRequest(**{"texts": [TEXT, " \n"], "options": {"max_target_tokens": 4}, **fields})


def response() -> pb.TranslateResponse:
    return text_format.Parse(ANSWER, pb.TranslateResponse())


def step_into(owner: Any, name: str) -> Any:
    return owner[int(name)] if name.isdigit() else getattr(owner, name)


def faults_with(changes: Mapping[str, Any]) -> str:
    """Return the faults after changes of a good pair: values, or functions of a list, by path."""
    asked, answer = request(), response()
    first = answer.translations[0]
    root: Any = SimpleNamespace(request=asked, answer=answer, first=first, best=first.hypotheses[0])
    for path, value in changes.items():
        *steps, name = path.split(".")
        owner = functools.reduce(step_into, steps, root)
        if callable(value):
            value(step_into(owner, name))
        elif name.isdigit():
            owner[int(name)] = value
        else:
            setattr(owner, name, value)
    return "\n".join(translate_faults(asked, answer))


def test_good_response_has_no_faults() -> None:
    own_nul = {"best.text": "- Ein\0Mann.\n\tZwei.", "request.target_prefixes": lambda of: of.extend(["Ein\0", ""])}
    drawn = {"best.text": "- Ein\0Mann.\n\tZwei.", "request.options.sampling": lambda of: of.SetInParent()}
    assert faults_with({}) == faults_with(own_nul) == faults_with(drawn) == ""


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"answer.translations": DROP}, "2 texts have 1 translations"),
        ({"answer.num_source_tokens": 7}, "source tokens of the sentences do not add up"),
        ({"first.hypotheses": DROP}, "no hypothesis"),
        ({"best.text": "- Ein Mann.\n Zwei."}, "at 10 is not copied"),
        ({"first.sentences.1.source.end": 20}, "out of order or range: 10..20"),
        ({"answer.translations.1.hypotheses.0.text": "\n"}, "texts[1]: a text without"),
        ({"best.text": "- Ein\0Mann.\n\tZwei."}, "a NUL that was not sent"),
        ({"best.score": math.nan}, "the score is nan"),
        ({"best.token_log_probs.0": -math.inf}, "not a finite number of at most 0"),
        ({"best.tokens": DROP}, "differ in number"),
        ({"first.hypotheses": lambda hypotheses: hypotheses.add()}, "2 hypotheses instead of 0"),
        ({"best.alignment.1.source.end": 20}, "link is out of range: 4..20 to 6..11"),
        ({"best.alignment.1.target.start": 4}, "links are out of order"),
        ({"best.attention.0.weights.0": 2.0}, "attention weight is out of range"),
        ({"first.warnings": DROP}, "is_truncated and warnings differ"),
        ({"first.warnings.0.sentence_index": 2}, "sentence 2 of 2"),
        ({"request.request_id": "r2"}, "another request id: 'r'"),
        ({"request.options.max_target_tokens": 3}, "4 target tokens exceed the limit of 3"),
        ({"request.texts.0": TEXT.replace("Two  men", "........")}, "without a letter or digit was translated"),
        ({"request.texts.1": "a man"}, "a text with a word was not translated"),
        (
            {"best.text": LONG, "first.sentences.1.target.end": 218},
            "texts[0]: 4 target tokens correspond to 205 characters",
        ),
    ],
)
def test_fault_of_a_response_is_found(changes: Mapping[str, Any], fault: str) -> None:
    assert fault in faults_with(changes)


def message(index: int, text: str, sentence: str = "", *, best: str = "", version: str = "1") -> pb.TranslatedSentence:
    told = pb.TranslatedSentence(index=index, text=text, model_name="m", model_version=version, request_id="r")
    if sentence:
        text_format.Parse(sentence, told.sentence)
        told.hypotheses.add(text=best, score=-1.0)
    return told


FIRST = message(0, "- Ein Mann.", SENTENCES[0], best="Ein Mann.")
SECOND = message(1, "\n\tZwei.", SENTENCES[1], best="Zwei.")
OTHER = message(1, "\n\tZwei.", SENTENCES[1], best="Zwei.", version="2")


def document_faults_of(*messages: pb.TranslatedSentence, is_complete: bool = True, request_id: str = "") -> str:
    asked = pb.TranslateDocumentRequest(text=TEXT)
    return "\n".join(document_faults(asked, messages, is_complete=is_complete, request_id=request_id))


def test_good_document_and_its_beginning_have_no_faults() -> None:
    assert document_faults_of(FIRST, SECOND, request_id="own") == "messages have another request id: r"
    assert document_faults_of(FIRST, SECOND) == ""
    assert document_faults_of(FIRST, is_complete=False) == document_faults_of(is_complete=False) == ""


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "no message was received"),
        ([FIRST], "last sentence is not copied"),
        ([SECOND, FIRST], "out of order: [1, 0]"),
        ([FIRST, message(1, "\n\tZwei.", SENTENCES[1].replace("10", "4"))], "a source span is out of order"),
        ([FIRST, message(1, "\n\tZwei.", SENTENCES[1], best="Drei")], "sentence 1 differs"),
        ([message(0, TEXT)], "a text with a word was not translated"),
        ([FIRST, OTHER], "changes between messages"),
    ],
)
def test_fault_of_a_document_is_found(messages: list[pb.TranslatedSentence], fault: str) -> None:
    assert fault in document_faults_of(*messages)


def test_responses_of_a_stream_are_paired_by_id() -> None:
    refused = pb.TranslateResponse(request_id="b", error=status_pb2.Status(code=grpc.StatusCode.NOT_FOUND.value[0]))
    sent, foreign = [request(request_id=name) for name in "rbc"], response()
    foreign.request_id = "z"

    once, twice = stream_answers(sent, [refused, response()]), stream_answers(sent, [response(), response(), foreign])

    assert (once.statuses, once.duplicates, once.faults) == ({"r": "OK", "b": "NOT_FOUND"}, [], [])
    assert twice.duplicates == ["r was answered 2 times"]
    assert twice.faults == ["'z' was answered, but not requested"]


def test_normalized_response_omits_version_id_and_timings() -> None:
    again = response()
    again.model_version, again.request_id, again.timings.decode.nanos = "2", "r2", 5
    assert normalized_response(response().SerializeToString()) == normalized_response(again.SerializeToString())
    again.translations[0].hypotheses[0].score = -1.0 - 1e-6
    assert normalized_response(response().SerializeToString()) != normalized_response(again.SerializeToString())
