import pytest

from loadtests.soak.ledger import UNSEEN, Ending, Entry, Logged, abandoned, balance, hurried

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


def test_who_leaves_may_be_ended_as_cancelled_or_answered_but_not_as_failed() -> None:
    assert abandoned(Ending.LEAVES, "OK") == {UNSEEN, "CANCELLED", "OK"}
    assert abandoned(Ending.DISCONNECTS, "NOT_FOUND") == {UNSEEN, "CANCELLED", "NOT_FOUND"}


def test_who_hurries_may_be_refused_or_late_too() -> None:
    assert hurried("OK") == {"OK", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
    assert abandoned(Ending.HURRIES, "OK") == {UNSEEN, "CANCELLED"} | hurried("OK")
