"""Accounting: a correct server balances, and any single error is found."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from loadtests.scenarios.soak.accounting import UNSEEN, Accounting, Entry, abandoned, answered
from loadtests.scenarios.soak.calls import Kind

SHORT = Kind.SHORT_DEADLINE
METHODS = ("Translate", "TranslateDocument", "TranslateStream")
ANSWERS = ("OK", "INVALID_ARGUMENT", "NOT_FOUND")
SURE = Entry("x", "Translate", frozenset({"OK"}))


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
