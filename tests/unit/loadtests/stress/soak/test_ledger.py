import json

import pytest

from loadtests.stress.calls import Ending
from loadtests.stress.soak.ledger import (
    UNSEEN,
    Entry,
    Logged,
    abandoned,
    answered,
    balance,
    counted_requests,
    read_access_log,
)

METHOD = "Translate"


def entry(request_id: str, *possible: str) -> Entry:
    return Entry(request_id=request_id, method=METHOD, possible=frozenset(possible))


def logged(request_id: str, status: str, method: str = METHOD) -> Logged:
    return Logged(request_id=request_id, method=method, status=status)


def test_books_that_agree_have_no_difference_and_a_call_given_up_need_not_be_seen() -> None:
    given_up = entry("c", UNSEEN, "CANCELLED", "OK")
    entries = [entry("a", "OK"), entry("b", "INVALID_ARGUMENT"), given_up, entry("d", UNSEEN)]
    lines = [logged("a", "OK"), logged("b", "INVALID_ARGUMENT"), logged("c", "CANCELLED")]

    found = balance(entries, lines, {(METHOD, line.status): 1 for line in lines})

    assert (found.twice, found.differing, found.miscounted, found.difference) == ([], [], [], 0)
    assert balance([given_up], [], {}).difference == 0


@pytest.mark.parametrize(
    ("entries", "lines", "sentence"),
    [
        ([entry("a", "OK")], [], "Translate a: expected OK, the server says UNSEEN"),
        ([entry("a", "OK")], [logged("a", "INTERNAL")], "Translate a: expected OK, the server says INTERNAL"),
        ([entry("a", "OK")], [logged("a", "OK", "GetModel")], "Translate a: expected OK, the server says OK"),
        ([entry("a", UNSEEN)], [logged("a", "OK")], "Translate a: expected UNSEEN, the server says OK"),
        ([], [logged("a", "OK")], "a: no client made it, the server ended it with OK"),
    ],
)
def test_a_call_that_differs_is_named(entries: list[Entry], lines: list[Logged], sentence: str) -> None:
    counted = {(line.method, line.status): 1 for line in lines}

    assert balance(entries, lines, counted).differing == [sentence]


def test_a_call_that_was_ended_twice_is_found_though_its_status_is_right() -> None:
    found = balance([entry("a", "OK")], [logged("a", "OK"), logged("a", "OK")], {(METHOD, "OK"): 2})

    assert found.twice == ["a was ended 2 times"]
    assert found.difference == 1  # one more is counted than there were calls


@pytest.mark.parametrize("count", [0, 2])
def test_a_counter_that_does_not_fit_is_found_though_the_log_is_right(count: int) -> None:
    found = balance([entry("a", "OK")], [logged("a", "OK")], {(METHOD, "OK"): count})

    assert found.miscounted == [f"Translate OK: the server counted {count} and logged 1, the clients 1 to 1"]
    assert found.difference == 1


def test_a_call_given_up_may_be_ended_as_cancelled_or_answered_but_not_as_failed() -> None:
    in_short_time = {"OK", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}

    assert abandoned(Ending.CANCELS, "OK") == {UNSEEN, "CANCELLED", "OK"}
    assert abandoned(Ending.DISCONNECTS, "NOT_FOUND") == {UNSEEN, "CANCELLED", "NOT_FOUND"}
    assert answered(Ending.SHORT_DEADLINE, "OK") == in_short_time
    assert abandoned(Ending.SHORT_DEADLINE, "OK") == {UNSEEN, "CANCELLED"} | in_short_time


def line(**fields: object) -> str:
    return json.dumps({"level": "info", "method": METHOD, "status": "OK", "request_id": "a", **fields}) + "\n"


def test_the_log_has_requests_streams_that_failed_and_complaints() -> None:
    stream = {"event": "stream", "method": "TranslateStream"}
    complaints = [line(event="request failed", level="error"), "Traceback (most recent call last):\n", "7\n"]

    found = read_access_log(
        [
            line(event="request"),
            line(**stream, request_id="b"),
            line(**stream, request_id="c", status="NOT_FOUND", reason="MODEL_NOT_FOUND"),
            line(event="ready"),
            "\n",
            *complaints,
        ]
    )

    assert found.logged == (logged("a", "OK"), logged("c", "NOT_FOUND", "TranslateStream"))
    assert found.complaints == tuple(map(str.strip, complaints))


def test_counters_of_requests_are_read_by_method_and_status() -> None:
    exposed = {'mt_requests_total{method="Translate",status="OK"}': 3.0, 'mt_segments_total{outcome="ok"}': 9.0}

    assert counted_requests(exposed) == {(METHOD, "OK"): 3}
