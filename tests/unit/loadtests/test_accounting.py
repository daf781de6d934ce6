"""Accounting: a correct server balances, and any single error is found."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method, Reply
from loadtests.scenarios.soak.accounting import UNSEEN, Accounting, Entry, abandoned, answered
from loadtests.scenarios.soak.calls import ExpectedCall, Kind

SHORT = Kind.SHORT_DEADLINE
BUSY = "RESOURCE_EXHAUSTED"
GIVEN_UP = {UNSEEN, "CANCELLED", "OK"}
LATE = GIVEN_UP | {"DEADLINE_EXCEEDED", BUSY}
STREAM = Method.TRANSLATE_STREAM
METHODS = ("Translate", "TranslateDocument", "TranslateStream")
ANSWERS = ("OK", "INVALID_ARGUMENT", "NOT_FOUND")
SURE = Entry("x", "Translate", frozenset({"OK"}))


def planned(method: Method = Method.TRANSLATE, **changed: Any) -> ExpectedCall:
    ids = ("r.0", "r.1") if method is STREAM else ("",)
    raw = tuple(pb.TranslateRequest(texts=["A"], request_id=name).SerializeToString() for name in ids)
    fields = {"request_id": "r", "kind": Kind.USUAL, "method": method, "raw": raw, "answers": ("OK",) * len(raw)}
    return ExpectedCall(**{**fields, **changed})


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
    return Reply(status=status, is_from_server=False, messages=messages)


def accounted(call: ExpectedCall, *replies: Reply) -> Accounting:
    accounting = Accounting()
    for reply in replies:
        accounting.record(call, reply)
    return accounting


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
def test_call_that_ends_as_planned_is_correct(call: ExpectedCall, reply: Reply, possible: list[set[str]]) -> None:
    accounting = accounted(call, reply)

    assert [entry.possible for entry in accounting.entries] == possible
    assert [entry.request_id for entry in accounting.entries] == ["r", "r.0", "r.1"][: len(possible)]
    assert (accounting.unanswered, accounting.duplicates, accounting.errors, accounting.faults) == ([], [], [], [])
    assert accounting.num_sentences == sum(raw != b"" for raw in reply.messages)


@pytest.mark.parametrize(
    ("call", "replies", "sentence"),
    [
        *((planned(), [status_from(status)], f"errors: usual Translate r: {status} instead of OK: ")
          for status in ("INTERNAL", "UNAVAILABLE", "CANCELLED", BUSY) for status_from in (server, client)),
        (planned(kind=SHORT), [client(BUSY)], "errors: short deadline Translate r: RESOURCE_EXHAUSTED"),
        (planned(answers=("NOT_FOUND",)), [server("INVALID_ARGUMENT")], "errors: usual Translate r: INVALID_ARGUMENT"),
        (planned(answers=("NOT_FOUND",)), [server("OK", answer())], "errors: usual Translate r: OK instead of "),
        (planned(STREAM), [server("NOT_FOUND")], "errors: usual TranslateStream r: NOT_FOUND instead of OK"),
        (planned(), [client("DEADLINE_EXCEEDED")], "unanswered: usual Translate r: DEADLINE_EXCEEDED instead of OK"),
        (planned(kind=Kind.CANCELS), [client("DEADLINE_EXCEEDED")], "unanswered: cancels Translate r: DEADLINE"),
        (planned(STREAM), [server("OK", answer("r.1"))], "unanswered: r.0 was not answered, but its stream ended"),
        (planned(STREAM), [server("OK", *map(answer, ("r.0", "r.1", "r.1")))], "duplicates: r.1 was answered 2 times"),
        (planned(Method.TRANSLATE_DOCUMENT), [server()], "faults: r: no message was received"),
        (planned(kind=Kind.PROBE), [server("OK", answer(text=text)) for text in "BBC"],
         "faults: r: the response differs from the first one"),
    ],
)  # fmt: skip
def test_unexpected_end_is_recorded(call: ExpectedCall, replies: list[Reply], sentence: str) -> None:
    accounting = accounted(call, *replies)
    kinds = ("unanswered", "duplicates", "errors", "faults")

    (found,) = [f"{kind}: {one}" for kind in kinds for one in getattr(accounting, kind)]
    assert found.startswith(sentence)
    assert accounted(planned(), server("OK", answer()), server("OK", answer(text="C"))).faults == []  # not a probe
    assert (
        not replies[0].is_from_server or call.method is STREAM or accounting.entries[0].possible == {replies[0].status}
    )


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[Entry, str]]:
    """Draw entries of clients, and the status that a correct server logged for each."""
    made = [(SURE, "OK")]
    for number in range(draw(st.integers(0, 12))):
        kind, answer = draw(st.sampled_from(list(Kind))), draw(st.sampled_from(ANSWERS))
        gives_up = kind in {Kind.CANCELS, Kind.DISCONNECTS, SHORT} and draw(st.booleans())
        possible = abandoned(kind, answer) if gives_up else answered(kind, answer)
        status, method = draw(st.sampled_from(sorted(possible))), draw(st.sampled_from(METHODS))
        made.append((Entry(f"r-{number}", method, possible if gives_up else frozenset({status})), status))
    return made


@given(calls(), st.data())
def test_correct_server_balances_and_any_single_error_is_found(
    made: list[tuple[Entry, str]], data: st.DataObject
) -> None:
    def logged(did: list[tuple[Entry, str]]) -> list[Entry]:
        return [entry._replace(possible=frozenset({status})) for entry, status in did if status != UNSEEN]

    def count(lines: list[Entry]) -> Counter[tuple[str, ...]]:
        return Counter((line.method, *line.possible) for line in lines)

    def broken(lines: list[Entry], sums: Counter[tuple[str, ...]]) -> dict[str, str]:
        """Return the first failure of each failed check."""
        series = {
            'dragoman_requests_total{{method="{}",status="{}"}}'.format(*pair): float(sums[pair]) for pair in sums
        }
        checks = Accounting(entries=[entry for entry, _ in made]).checks(lines, series, errors=[], exit_code=0)
        return {check.name: check.failures[0] for check in checks if check.failures}

    lines, name = logged(made), "clients and server agree on all calls"
    assert broken(lines, count(lines)) == {}
    failing, again = data.draw(st.integers(0, len(made) - 1)), data.draw(st.sampled_from(lines))
    for sentence, log in {
        "Translate x: logged with UNSEEN, expected OK": lines[1:],
        "Translate x: logged with OK, expected OK": [SURE._replace(method="GetModel"), *lines[1:]],
        "y: logged with OK, but no client made the call": [*lines, SURE._replace(request_id="y")],
        "logged with INTERNAL": logged([*made[:failing], (made[failing][0], "INTERNAL"), *made[failing + 1 :]]),
    }.items():
        assert sentence in broken(log, count(log))[name]
    counted = count(lines)
    assert broken([*lines, again], counted)["no request has two answers"]
    counted[data.draw(st.sampled_from(METHODS)), data.draw(st.sampled_from(ANSWERS))] += 1
    assert "the server counted" in broken(lines, counted)[name]
