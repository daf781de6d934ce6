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


@given(calls(), st.data(), st.sampled_from(["ended twice", "counted wrongly", "not provoked", "unknown"]))
def test_any_one_slip_shows(made: list[Call], data: st.DataObject, slip: str) -> None:
    certain = Call(entry=Entry(request_id="x", method=METHODS[0], possible=frozenset({"OK"})), status="OK")
    if slip == "not provoked":
        index = data.draw(st.integers(0, len(made) - 1))
        made = [*made[:index], replace(made[index], status=NEVER), *made[index + 1 :]]
    made = [*made, replace(certain, status=UNSEEN) if slip == "unknown" else certain]
    lines = lines_of(made)
    if slip == "ended twice":
        lines.append(data.draw(st.sampled_from(lines)))
    counted = counters_of(lines)
    if slip == "counted wrongly":
        pair = data.draw(st.sampled_from(METHODS)), data.draw(st.sampled_from(ANSWERS))
        counted[pair] += data.draw(st.sampled_from((1, 7)))

    found = balance([call.entry for call in made], lines, counted)

    shown = {
        "ended twice": found.twice,
        "not provoked": [sentence for sentence in found.differing if NEVER in sentence],
    }
    assert shown.get(slip, found.difference)
