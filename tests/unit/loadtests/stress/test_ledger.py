"""The ledger: what callers note of each call; whatever the server may rightly do balances, and any one slip shows."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from loadtests.scenarios.callers import Kind, PlannedCall, Reply
from loadtests.scenarios.stress_server import log_path
from loadtests.scenarios.soak.accounting import UNSEEN, Entry, Notes, abandoned, answered, read_access_log
from loadtests.generator.calls import Method

SHORT = Kind.SHORT_DEADLINE
BUSY = "RESOURCE_EXHAUSTED"
GIVEN_UP = {UNSEEN, "CANCELLED", "OK"}
LATE = GIVEN_UP | {"DEADLINE_EXCEEDED", BUSY}
STREAM = Method.TRANSLATE_STREAM
METHODS = ("Translate", "TranslateDocument", "TranslateStream")
ANSWERS = ("OK", "INVALID_ARGUMENT", "NOT_FOUND")
SURE = Entry("x", "Translate", frozenset({"OK"}))


def planned(method: Method = Method.TRANSLATE, **changed: Any) -> PlannedCall:
    ids = ("r.0", "r.1") if method is STREAM else ("",)
    raw = tuple(pb.TranslateRequest(texts=["A"], request_id=name).SerializeToString() for name in ids)
    fields = {"request_id": "r", "kind": Kind.USUAL, "method": method, "raw": raw, "answers": ("OK",) * len(raw)}
    return PlannedCall(**{**fields, **changed})


def answer(request_id: str = "r", text: str = "B") -> bytes:
    span = pb.Span(start=0, end=1)
    tokens: dict[str, Any] = {"num_source_tokens": 2, "num_target_tokens": 2}
    sentence = pb.Sentence(source=span, target=span, **tokens)
    translation = pb.Translation(hypotheses=[pb.Hypothesis(text=text)], sentences=[sentence])
    names: dict[str, Any] = {"request_id": request_id, "model_name": "m", "model_version": "1"}
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
        (planned(kind=SHORT), client("DEADLINE_EXCEEDED"), [LATE]),
        (planned(kind=SHORT), server(BUSY), [{BUSY}]),
        (planned(answers=("NOT_FOUND",)), server("NOT_FOUND"), [{"NOT_FOUND"}]),
        (planned(answers=(BUSY,), is_counted=False), client(BUSY), [{UNSEEN, "CANCELLED"}]),
        (planned(Method.GET_MODEL, kind=Kind.SWAP), server("OK", b""), [{"OK"}]),
        (planned(STREAM), server("OK", answer("r.1"), answer("r.0")), [{UNSEEN}, {"OK"}, {"OK"}]),
        (planned(STREAM, kind=Kind.CANCELS), client("CANCELLED", answer("r.0")), [{UNSEEN}, {"OK"}, GIVEN_UP]),
        (planned(STREAM, kind=SHORT), client("DEADLINE_EXCEEDED"), [{UNSEEN, "DEADLINE_EXCEEDED"}, LATE, LATE]),
    ],
)
def test_a_call_that_ends_as_planned_is_no_error(call: PlannedCall, reply: Reply, possible: list[set[str]]) -> None:
    notes = noted(call, reply)

    assert [entry.possible for entry in notes.entries] == possible
    assert [entry.request_id for entry in notes.entries] == ["r", "r.0", "r.1"][: len(possible)]
    assert (notes.unanswered, notes.twice, notes.errors, notes.wrong) == ([], [], [], [])
    assert notes.num_sentences == sum(raw != b"" for raw in reply.messages)


@pytest.mark.parametrize(
    ("call", "replies", "sentence"),
    [
        *((planned(), [told_by(status)], f"errors: usual Translate r: {status} instead of OK: ")
          for status in ("INTERNAL", "UNAVAILABLE", "CANCELLED", BUSY) for told_by in (server, client)),
        (planned(kind=SHORT), [client(BUSY)], "errors: short deadline Translate r: RESOURCE_EXHAUSTED"),
        (planned(answers=("NOT_FOUND",)), [server("INVALID_ARGUMENT")], "errors: usual Translate r: INVALID_ARGUMENT"),
        (planned(answers=("NOT_FOUND",)), [server("OK", answer())], "errors: usual Translate r: OK instead of "),
        (planned(STREAM), [server("NOT_FOUND")], "errors: usual TranslateStream r: NOT_FOUND instead of OK"),
        (planned(), [client("DEADLINE_EXCEEDED")], "unanswered: usual Translate r: DEADLINE_EXCEEDED instead of OK"),
        (planned(kind=Kind.CANCELS), [client("DEADLINE_EXCEEDED")], "unanswered: cancels Translate r: DEADLINE"),
        (planned(STREAM), [server("OK", answer("r.1"))], "unanswered: r.0 was not answered though its stream ended"),
        (planned(STREAM), [server("OK", *map(answer, ("r.0", "r.1", "r.1")))], "twice: r.1 was answered 2 times"),
        (planned(Method.TRANSLATE_DOCUMENT), [server()], "wrong: r: no message came"),
        (planned(kind=Kind.PROBE), [server("OK", answer(text=text)) for text in "BBC"],
         "wrong: r: another answer than at first"),
    ],
)  # fmt: skip
def test_what_should_have_become_otherwise_is_noted(call: PlannedCall, replies: list[Reply], sentence: str) -> None:
    notes = noted(call, *replies)
    kinds = ("unanswered", "twice", "errors", "wrong")

    (told,) = [f"{kind}: {one}" for kind in kinds for one in getattr(notes, kind)]
    assert told.startswith(sentence)
    assert noted(planned(), server("OK", answer()), server("OK", answer(text="C"))).wrong == []  # as it is no probe
    assert not replies[0].is_of_server or call.method is STREAM or notes.entries[0].possible == {replies[0].status}


def test_the_log_has_requests_streams_that_failed_and_complaints(tmp_path: Path) -> None:
    call = {"event": "request", "level": "info", "method": "Translate", "status": "OK", "request_id": "a"}
    stream = {**call, "event": "stream", "method": "TranslateStream", "request_id": "b"}
    failed = {**stream, "request_id": "c", "status": "NOT_FOUND", "reason": "MODEL_NOT_FOUND"}
    records = [call, failed, stream, {**call, "event": "ready"}, {"event": "splitter", "level": "warning"}]
    complaining = ['{"event": "request failed", "level": "error"}', "Traceback (most recent call last):", "7"]
    log_path(tmp_path).write_text("\n".join([*map(json.dumps, records), "", *complaining]), encoding="utf-8")

    calls = [Entry("a", "Translate", frozenset({"OK"})), Entry("c", "TranslateStream", frozenset({"NOT_FOUND"}))]
    assert read_access_log(tmp_path) == (calls, complaining)


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[Entry, str]]:
    """Calls that a faultless server has ended, as their clients know them, and what the server did."""
    made = [(SURE, "OK")]
    for number in range(draw(st.integers(0, 12))):
        kind, answer = draw(st.sampled_from(list(Kind))), draw(st.sampled_from(ANSWERS))
        gives_up = kind in {Kind.CANCELS, Kind.DISCONNECTS, SHORT} and draw(st.booleans())
        possible = abandoned(kind, answer) if gives_up else answered(kind, answer)
        status, method = draw(st.sampled_from(sorted(possible))), draw(st.sampled_from(METHODS))
        made.append((Entry(f"r-{number}", method, possible if gives_up else frozenset({status})), status))
    return made


@given(calls(), st.data())
def test_a_faultless_server_balances_and_any_one_slip_shows(made: list[tuple[Entry, str]], data: st.DataObject) -> None:
    def logged(did: list[tuple[Entry, str]]) -> list[Entry]:
        return [entry._replace(possible=frozenset({status})) for entry, status in did if status != UNSEEN]

    def count(lines: list[Entry]) -> Counter[tuple[str, ...]]:
        return Counter((line.method, *line.possible) for line in lines)

    def broken(lines: list[Entry], sums: Counter[tuple[str, ...]]) -> dict[str, str]:
        """The promises that are broken, with the first of their sentences."""
        series = {
            'dragoman_requests_total{{method="{}",status="{}"}}'.format(*pair): float(sums[pair]) for pair in sums
        }
        promises = Notes(entries=[entry for entry, _ in made]).promises(lines, series, errors=[], exit_code=0)
        return {promise.name: promise.broken[0] for promise in promises if promise.broken}

    lines, name = logged(made), "clients and server know the same calls"
    assert broken(lines, count(lines)) == {}
    failing, again = data.draw(st.integers(0, len(made) - 1)), data.draw(st.sampled_from(lines))
    for sentence, told in {
        "Translate x: expected OK, the server says UNSEEN": lines[1:],
        "Translate x: expected OK, the server says OK": [SURE._replace(method="GetModel"), *lines[1:]],
        "y: no client made it, the server ended it with OK": [*lines, SURE._replace(request_id="y")],
        "the server says INTERNAL": logged([*made[:failing], (made[failing][0], "INTERNAL"), *made[failing + 1 :]]),
    }.items():
        assert sentence in broken(told, count(told))[name]
    counted = count(lines)
    assert broken([*lines, again], counted)["no request is answered twice"]
    counted[data.draw(st.sampled_from(METHODS)), data.draw(st.sampled_from(ANSWERS))] += 1
    assert "the server counted" in broken(lines, counted)[name]
