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


def test_books_that_agree_have_no_difference() -> None:
    entries = [
        entry("a", "OK"),
        entry("b", "INVALID_ARGUMENT"),
        entry("c", UNSEEN, "CANCELLED", "OK"),
        entry("d", UNSEEN),
    ]
    lines = [logged("a", "OK"), logged("b", "INVALID_ARGUMENT"), logged("c", "CANCELLED")]
    counted = {(METHOD, "OK"): 1, (METHOD, "INVALID_ARGUMENT"): 1, (METHOD, "CANCELLED"): 1}

    found = balance(entries, lines, counted)

    assert (found.twice, found.differing, found.miscounted, found.difference) == ([], [], [], 0)


def test_a_call_that_was_given_up_may_not_have_been_seen() -> None:
    assert balance([entry("c", UNSEEN, "CANCELLED", "OK")], [], {}).difference == 0


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


def test_a_cancelled_call_may_be_ended_as_cancelled_or_answered_but_not_as_failed() -> None:
    assert abandoned(Ending.CANCELS, "OK") == {UNSEEN, "CANCELLED", "OK"}
    assert abandoned(Ending.DISCONNECTS, "NOT_FOUND") == {UNSEEN, "CANCELLED", "NOT_FOUND"}


def test_a_call_with_a_short_deadline_may_be_refused_or_late_too() -> None:
    assert answered(Ending.SHORT_DEADLINE, "OK") == {"OK", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
    assert abandoned(Ending.SHORT_DEADLINE, "OK") == {UNSEEN, "CANCELLED"} | answered(Ending.SHORT_DEADLINE, "OK")


def line(**fields: object) -> str:
    return json.dumps({"level": "info", "method": "Translate", "status": "OK", "request_id": "a", **fields}) + "\n"


def test_requests_are_counted_and_a_stream_only_if_it_failed() -> None:
    found = read_access_log(
        [
            line(event="request"),
            line(event="stream", request_id="b", method="TranslateStream"),
            line(
                event="stream", request_id="c", method="TranslateStream", status="NOT_FOUND", reason="MODEL_NOT_FOUND"
            ),
            line(event="ready"),
        ]
    )

    assert found.logged == (
        Logged(request_id="a", method="Translate", status="OK"),
        Logged(request_id="c", method="TranslateStream", status="NOT_FOUND"),
    )
    assert found.complaints == ()


def test_errors_and_what_is_no_record_are_complaints() -> None:
    failed, traceback, number = (
        line(event="request failed", level="error"),
        "Traceback (most recent call last):\n",
        "7\n",
    )

    found = read_access_log([failed, "\n", traceback, number])

    assert found.complaints == (failed.strip(), traceback.strip(), "7")


def test_counters_of_requests_are_read_by_method_and_status() -> None:
    exposed = {
        'mt_requests_total{method="Translate",status="OK"}': 3.0,
        'mt_segments_total{outcome="ok"}': 9.0,
    }

    assert counted_requests(exposed) == {("Translate", "OK"): 3}
