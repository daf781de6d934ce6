"""The ledger of the soak: whatever the server may rightly do balances, and any one slip shows."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from loadtests.stress.callers import Kind
from loadtests.stress.soak.ledger import UNSEEN, Entry, Notes, abandoned, answered

METHODS = ("Translate", "TranslateDocument", "TranslateStream")
ANSWERS = ("OK", "INVALID_ARGUMENT", "NOT_FOUND")
LEAVING = {Kind.CANCELS, Kind.DISCONNECTS, Kind.SHORT_DEADLINE}
SURE = Entry("x", "Translate", frozenset({"OK"}))
Call = tuple[Entry, str]
"""As its client knows it, and what the server did."""


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """Calls that a faultless server has ended."""
    made = [(SURE, "OK")]
    for number in range(draw(st.integers(0, 12))):
        kind, answer = draw(st.sampled_from(list(Kind))), draw(st.sampled_from(ANSWERS))
        gives_up = kind in LEAVING and draw(st.booleans())
        status = draw(st.sampled_from(sorted(abandoned(kind, answer) if gives_up else answered(kind, answer))))
        possible = abandoned(kind, answer) if gives_up else frozenset({status})
        made.append((Entry(f"r-{number}", draw(st.sampled_from(METHODS)), possible), status))
    return made


def logged(made: list[Call]) -> list[Entry]:
    return [entry._replace(possible=frozenset({status})) for entry, status in made if status != UNSEEN]


def found(made: list[Call], lines: list[Entry], counted: Counter[tuple[str, ...]]) -> dict[str, list[str]]:
    """The promises that are broken, with their sentences."""
    metrics = {
        f'mt_requests_total{{method="{method}",status="{status}"}}': float(count)
        for (method, status), count in counted.items()
    }
    notes = Notes(entries=[entry for entry, _ in made])
    promises = notes.promises(lines, metrics, errors=[], exit_code=0)
    return {promise.name: list(promise.broken) for promise in promises if promise.broken}


def sums(lines: list[Entry]) -> Counter[tuple[str, ...]]:
    return Counter((line.method, *line.possible) for line in lines)


@given(calls())
def test_a_faultless_server_balances(made: list[Call]) -> None:
    assert found(made, logged(made), sums(logged(made))) == {}


@given(calls(), st.data())
def test_any_one_slip_shows(made: list[Call], data: st.DataObject) -> None:
    lines, name = logged(made), "clients and server know the same calls"
    again, failing = data.draw(st.sampled_from(lines)), data.draw(st.integers(0, len(made) - 1))
    failed = logged([*made[:failing], (made[failing][0], "INTERNAL"), *made[failing + 1 :]])
    miscounted = sums(lines)
    miscounted[data.draw(st.sampled_from(METHODS)), data.draw(st.sampled_from(ANSWERS))] += 1

    for sentence, told in {
        "Translate x: expected OK, the server says UNSEEN": lines[1:],
        "Translate x: expected OK, the server says OK": [SURE._replace(method="GetModel"), *lines[1:]],
        "y: no client made it, the server ended it with OK": [*lines, SURE._replace(request_id="y")],
        "the server says INTERNAL": failed,
    }.items():
        assert sentence in found(made, told, sums(told))[name][0]
    assert found(made, [*lines, again], sums(lines))["no request is answered twice"]
    assert "the server counted" in found(made, lines, miscounted)[name][0]
