import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.stress.callers import Kind, PlannedCall, Reply
from loadtests.stress.server import log_path
from loadtests.stress.soak.ledger import UNSEEN, Entry, Notes, read_access_log
from loadtests.wire import Method

SHORT = Kind.SHORT_DEADLINE
GIVEN_UP = {UNSEEN, "CANCELLED", "OK"}
LATE = {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
STREAM = Method.TRANSLATE_STREAM


def planned(method: Method = Method.TRANSLATE, **changed: Any) -> PlannedCall:
    ids = ("r.0", "r.1") if method is STREAM else ("",)
    raw = tuple(pb.TranslateRequest(texts=["A"], request_id=name).SerializeToString() for name in ids)
    fields = {"request_id": "r", "kind": Kind.USUAL, "method": method, "raw": raw, "answers": ("OK",) * len(raw)}
    return PlannedCall(**{**fields, **changed})


def answer(request_id: str = "r", text: str = "B") -> bytes:
    span = pb.Span(start=0, end=1)
    tokens: dict[str, Any] = {"num_source_tokens": 2, "num_target_tokens": 2}
    names: dict[str, Any] = {"request_id": request_id, "model_name": "m", "model_version": "1"}
    sentence = pb.Sentence(source=span, target=span, **tokens)
    translation = pb.Translation(hypotheses=[pb.Hypothesis(text=text)], sentences=[sentence])
    return pb.TranslateResponse(translations=[translation], **names, **tokens).SerializeToString()


def server(status: str = "OK", *messages: bytes) -> Reply:
    return Reply(status=status, messages=messages)


def client(status: str, *messages: bytes) -> Reply:
    return Reply(status=status, is_of_server=False, messages=messages)


def noted(call: PlannedCall, *replies: Reply) -> Notes:
    notes = Notes()
    for reply in replies:
        notes.note(call, reply)
    return notes


@pytest.mark.parametrize(
    ("call", "reply", "possible"),
    [
        (planned(), server("OK", answer()), [{"OK"}]),
        (planned(kind=Kind.CANCELS), client("CANCELLED"), [GIVEN_UP]),
        (planned(kind=Kind.DISCONNECTS), client("CANCELLED"), [GIVEN_UP]),
        (planned(kind=SHORT), client("DEADLINE_EXCEEDED"), [GIVEN_UP | LATE]),
        (planned(kind=SHORT), server("RESOURCE_EXHAUSTED"), [{"RESOURCE_EXHAUSTED"}]),
        (planned(answers=("NOT_FOUND",)), server("NOT_FOUND"), [{"NOT_FOUND"}]),
        (
            planned(answers=("RESOURCE_EXHAUSTED",), is_counted=False),
            client("RESOURCE_EXHAUSTED"),
            [{UNSEEN, "CANCELLED"}],
        ),
        (planned(Method.GET_MODEL, kind=Kind.SWAP), server("OK", b""), [{"OK"}]),
        (planned(STREAM), server("OK", answer("r.1"), answer("r.0")), [{UNSEEN}, {"OK"}, {"OK"}]),
        (planned(STREAM, kind=Kind.CANCELS), client("CANCELLED", answer("r.0")), [{UNSEEN}, {"OK"}, GIVEN_UP]),
        (
            planned(STREAM, kind=SHORT),
            client("DEADLINE_EXCEEDED"),
            [{UNSEEN, "DEADLINE_EXCEEDED"}, *[GIVEN_UP | LATE] * 2],
        ),
    ],
)
def test_a_call_that_ends_as_planned_is_no_error(call: PlannedCall, reply: Reply, possible: list[set[str]]) -> None:
    notes = noted(call, reply)

    assert [entry.possible for entry in notes.entries] == possible
    assert [entry.request_id for entry in notes.entries] == ["r", "r.0", "r.1"][: len(possible)]
    assert (notes.unanswered, notes.twice, notes.errors, notes.wrong) == ([], [], [], [])
    assert notes.num_sentences == sum(raw != b"" for raw in reply.messages)


@pytest.mark.parametrize(
    ("call", "reply"),
    [
        *((planned(), made(status)) for made in (server, client) for status in ("INTERNAL", "UNAVAILABLE")),
        *((planned(), made(status)) for made in (server, client) for status in ("CANCELLED", "RESOURCE_EXHAUSTED")),
        (planned(kind=SHORT), client("RESOURCE_EXHAUSTED")),
        (planned(answers=("NOT_FOUND",)), server("INVALID_ARGUMENT")),
        (planned(answers=("NOT_FOUND",)), server("OK", answer())),
        (planned(STREAM), server("NOT_FOUND")),
    ],
)
def test_a_status_that_was_not_provoked_is_an_error(call: PlannedCall, reply: Reply) -> None:
    notes = noted(call, reply)

    assert len(notes.errors) == 1
    assert not reply.is_of_server or notes.entries[0].possible == {reply.status}


@pytest.mark.parametrize("kind", [Kind.USUAL, Kind.CANCELS])
def test_a_call_whose_long_deadline_passed_was_not_answered(kind: Kind) -> None:
    assert len(noted(planned(kind=kind), client("DEADLINE_EXCEEDED")).unanswered) == 1


def test_what_is_wrong_with_answers_is_noted() -> None:
    raw = (pb.TranslateDocumentRequest(text="A").SerializeToString(),)
    first, other = server("OK", answer()), server("OK", answer(text="C"))

    assert noted(planned(kind=Kind.PROBE), first, first).wrong == []
    assert noted(planned(kind=Kind.PROBE), first, other).wrong == ["r: another answer than at first"]
    assert noted(planned(), first, other).wrong == []
    assert noted(planned(Method.TRANSLATE_DOCUMENT, raw=raw), server()).wrong == ["r: no message came"]
    assert noted(planned(STREAM), server("OK", answer("r.1"))).unanswered == [
        "r.0 was not answered though its stream ended well"
    ]
    assert noted(planned(STREAM), server("OK", *map(answer, ("r.0", "r.1", "r.1")))).twice


def test_the_log_has_requests_streams_that_failed_and_complaints(tmp_path: Path) -> None:
    fields = {"level": "info", "method": "Translate", "status": "OK", "request_id": "a"}
    stream = {**fields, "event": "stream", "method": "TranslateStream"}
    failed = {**stream, "request_id": "c", "status": "NOT_FOUND", "reason": "MODEL_NOT_FOUND"}
    records = [{**fields, "event": "request"}, {**stream, "request_id": "b"}, failed, {**fields, "event": "ready"}]
    lines = [*map(json.dumps, records), "Traceback (most recent call last):"]
    log_path(tmp_path).write_text("\n".join(lines), encoding="utf-8")

    logged, complaints = read_access_log(tmp_path)

    assert logged == [
        Entry("a", "Translate", frozenset({"OK"})),
        Entry("c", "TranslateStream", frozenset({"NOT_FOUND"})),
    ]
    assert complaints == lines[-1:]
