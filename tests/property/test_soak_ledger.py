"""The ledger of the soak: whatever the server may rightly do balances, and any one slip shows."""

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from loadtests.stress.calls import Ending
from loadtests.stress.soak.ledger import UNSEEN, Entry, Logged, abandoned, answered, balance

METHODS = ("Translate", "TranslateDocument", "TranslateStream")
ANSWERS = ("OK", "INVALID_ARGUMENT", "NOT_FOUND")
NEVER = "INTERNAL"


@dataclass(frozen=True)
class Call:
    entry: Entry
    status: str
    """What the server did."""


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """Calls that a faultless server has ended, as their clients know them."""
    made = []
    for number in range(draw(st.integers(1, 12))):
        ending, answer = draw(st.sampled_from(list(Ending))), draw(st.sampled_from(ANSWERS))
        gives_up = ending is not Ending.WAITS and draw(st.booleans())
        told = answered(ending, answer)
        status = draw(st.sampled_from(sorted(abandoned(ending, answer) if gives_up else told)))
        possible = abandoned(ending, answer) if gives_up else frozenset({status})
        entry = Entry(request_id=f"r-{number}", method=draw(st.sampled_from(METHODS)), possible=possible)
        made.append(Call(entry=entry, status=status))
    return made


def lines_of(made: list[Call]) -> list[Logged]:
    return [
        Logged(request_id=call.entry.request_id, method=call.entry.method, status=call.status)
        for call in made
        if call.status != UNSEEN
    ]


def counters_of(lines: list[Logged]) -> Counter[tuple[str, str]]:
    return Counter((line.method, line.status) for line in lines)


@given(calls())
def test_a_faultless_server_balances(made: list[Call]) -> None:
    lines = lines_of(made)

    found = balance([call.entry for call in made], lines, counters_of(lines))

    assert (found.twice, found.difference) == ([], 0)


@given(calls(), st.data())
def test_a_call_ended_once_more_shows(made: list[Call], data: st.DataObject) -> None:
    lines = lines_of(
        [*made, Call(entry=Entry(request_id="x", method=METHODS[0], possible=frozenset({"OK"})), status="OK")]
    )
    lines.append(data.draw(st.sampled_from(lines)))
    entries = [*(call.entry for call in made), Entry(request_id="x", method=METHODS[0], possible=frozenset({"OK"}))]

    assert balance(entries, lines, counters_of(lines)).twice


@given(calls(), st.data())
def test_a_call_that_is_counted_wrongly_shows(made: list[Call], data: st.DataObject) -> None:
    lines = lines_of(made)
    counted = counters_of(lines)
    counted[data.draw(st.sampled_from(METHODS)), data.draw(st.sampled_from(ANSWERS))] += data.draw(
        st.sampled_from((1, 7))
    )

    assert balance([call.entry for call in made], lines, counted).difference


@given(calls(), st.data())
def test_a_call_that_ends_with_a_status_that_was_not_provoked_shows(made: list[Call], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(made) - 1))
    made = [*made[:index], replace(made[index], status=NEVER), *made[index + 1 :]]
    lines = lines_of(made)

    found = balance([call.entry for call in made], lines, counters_of(lines))

    assert any(NEVER in sentence for sentence in found.differing)


@given(calls(), st.data())
def test_an_answer_that_the_server_does_not_know_of_shows(made: list[Call], data: st.DataObject) -> None:
    certain = Call(entry=Entry(request_id="x", method=METHODS[0], possible=frozenset({"OK"})), status=UNSEEN)
    made = [*made, certain]
    lines = lines_of(made)

    assert balance([call.entry for call in made], lines, counters_of(lines)).difference
