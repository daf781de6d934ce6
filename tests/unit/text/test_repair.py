"""Second searches: what changes for each kind of violation."""

from dataclasses import replace
from typing import Any

import pytest

from dragoman_service.datatypes import SearchConfig, Span, WarningKind
from dragoman_service.text.candidates import Candidate
from dragoman_service.text.invariants.untranslated import is_short_copy
from dragoman_service.text.invariants.violations import Violation
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.placeholders.restoration import Fragment
from dragoman_service.text.plans import ModelText, TextPart
from dragoman_service.text.repair import Repair, part_unit, plan_repair, repaired_search
from tests.fakes import make_segment
from tests.unit.text.text_fakes import FakeModel, make_hypothesis, make_request

NAMES = {"audi", "bosch", "miele", "opel", "visa", "wien"}  # of several tokens
SEARCH = SearchConfig(max_target_tokens=50, min_target_tokens=1)


def part_of(source: str) -> TextPart:
    return TextPart(
        span=Span(start=0, end=len(source)),
        segment=make_segment(5),
        sentence_index=0,
        model_text=ModelText(text=source),
    )


def candidate_of(target: str, *violations: Violation, is_finished: bool = True) -> Candidate:
    return Candidate(
        hypothesis=make_hypothesis(target, is_finished=is_finished),
        decoded=target,
        fragments=(Fragment(text=target, is_model_text=True),),
        violations=violations,
        links=None,
        is_copied_label=False,
    )


def violation(kind: WarningKind, source: str = "", part: str = "") -> Violation:
    """Return a violation about a part of a source; an empty part: about no range."""
    start = source.index(part) if part else 0
    span = Span(start=start, end=start + len(part)) if part else None
    return Violation(kind=kind, detail="", source=span, target=None)


def planned(source: str, candidate: Candidate, *, guards_copies: bool = True, language: str = "en") -> Repair:
    return plan_repair(
        source,
        part_of(source),
        replace(candidate, is_copied_label=is_short_copy(source, candidate.text)),
        guards_copies=guards_copies,
        language=language,
        is_piece=lambda word: word.lower() not in NAMES and word != "yellow",
    )


def protected(source: str, *violations: Violation) -> list[str]:
    repair = planned(source, candidate_of("Etwas ganz anderes hier.", *violations))
    assert repair == Repair(spans=repair.spans)
    return [source[span.start : span.end] for span in repair.spans]


@pytest.mark.parametrize(
    ("kind", "source", "changed", "spans"),
    [
        (WarningKind.NUMBER_CHANGED, "We saw 3 dogs.", ["3"], ["3"]),
        (WarningKind.NUMBER_CHANGED, "From 10 to 2,000 men.", ["2,000", "10"], ["10", "2,000"]),
        (WarningKind.NUMBER_CHANGED, "See ISO 3368 here.", ["3368"], ["ISO 3368"]),
        (WarningKind.NUMBER_CHANGED, "He wrote PO 8313-39 down.", ["8313", "39"], ["PO 8313-39"]),
        (WarningKind.NUMBER_CHANGED, "SEE PAGE 33 OF IT", ["33"], ["33"]),
        (WarningKind.IDENTIFIER_CHANGED, "Call get_user first.", ["get_user"], ["get_user"]),
        (WarningKind.IDENTIFIER_CHANGED, "Use GTX-780 here.", ["GTX-780"], ["GTX-780"]),
        (WarningKind.NAME_CHANGED, "We use GitHub daily.", ["GitHub"], ["GitHub"]),
        (WarningKind.NAME_CHANGED, "Ask McDonald or O'Neil.", ["McDonald", "O'Neil"], ["McDonald", "O'Neil"]),
        (WarningKind.ADDRESS_CHANGED, "Go to a.example now.", ["a.example"], ["a.example"]),
        (WarningKind.SYMBOL_CHANGED, "Press [ to go.", ["["], ["["]),
        (WarningKind.SYMBOL_CHANGED, "a | b | c", ["|"], ["|", "|"]),  # all of its kind
        (WarningKind.SYMBOL_CHANGED, "is ** or * the mark", ["*"], ["**", "*"]),
        (WarningKind.SYMBOL_CHANGED, "costs € here and € there", ["€"], ["€", "€"]),
    ],
)
def test_changed_spans_are_protected_in_order(
    kind: WarningKind, source: str, changed: list[str], spans: list[str]
) -> None:
    assert protected(source, *(violation(kind, source, part) for part in changed)) == spans


def test_all_numbers_are_protected_if_one_was_added() -> None:
    assert protected("From 3 to 5 dogs.", violation(WarningKind.NUMBER_CHANGED)) == ["3", "5"]


def test_overlapping_and_adjacent_spans_are_one() -> None:
    source = "See A-1b now."
    violations = (
        violation(WarningKind.IDENTIFIER_CHANGED, source, "A-1b"),
        violation(WarningKind.NUMBER_CHANGED, source, "1"),
        violation(WarningKind.SYMBOL_CHANGED, source, "-"),
    )

    assert protected(source, *violations) == ["A-1b"]


@pytest.mark.parametrize(
    ("kind", "repair"),
    [
        (WarningKind.UNTRANSLATED, Repair(avoids_source=True)),
        (WarningKind.INVALID_OUTPUT, Repair(suppresses_bytes=True)),
        (WarningKind.EMPTY_TRANSLATION, Repair(min_added_tokens=2)),
        (WarningKind.PLACEHOLDER_LOST, Repair(inserts_placeholders=True)),
        (WarningKind.ENDING_CHANGED, Repair()),
        (WarningKind.WHITE_SPACE_CHANGED, Repair()),
        (WarningKind.CAPITALS_CHANGED, Repair()),
        (WarningKind.MARKUP_CHANGED, Repair()),
    ],
)
def test_other_violations_change_the_search_or_nothing(kind: WarningKind, repair: Repair) -> None:
    source = "We saw some dogs today."

    assert planned(source, candidate_of("x", violation(kind, source, source))) == repair
    assert repair.is_needed == (repair != Repair())


def test_violations_of_several_kinds_are_repaired_together() -> None:
    source = "We saw 3 dogs."
    violations = (
        violation(WarningKind.NUMBER_CHANGED, source, "3"),
        violation(WarningKind.UNTRANSLATED, source, source),
        violation(WarningKind.INVALID_OUTPUT),
    )

    repair = planned(source, candidate_of(source, *violations))

    assert (len(repair.spans), repair.avoids_source, repair.suppresses_bytes) == (1, True, True)


@pytest.mark.parametrize(
    ("source", "language", "recased"),
    [
        ("Save", "en", "save"),
        ("Log Out", "en", "log out"),
        ("Turn Left Now", "en", "turn left now"),
        ("Settings:", "en", "settings:"),
        ("Close", "en", "close"),
        ("Yellow", "en", "yellow"),
        ("Über Uns", "de", "über uns"),
        ("schließen", "de", "Schließen"),
        ("knopf", "de", "Knopf"),
        ("HAllo", "de", "Hallo"),
        ("HallO", "de", "Hallo"),
        ("HOuse", "en", "House"),
        ("save", "en", ""),  # nothing to change
        ("Knopf drei Wort mehr", "de", ""),  # too many words
        ("iPhone", "en", ""),
        ("USB", "en", ""),
        ("B2", "en", ""),
        *((name, "en", "") for name in ("Audi", "Bosch", "Miele", "Opel", "Visa", "Wien", "About Opel", "Visa Card")),
        *((name, "de", "") for name in ("Miele", "Heute Wien")),
    ],
)
def test_copied_label_is_read_in_another_case(source: str, language: str, recased: str) -> None:
    assert planned(source, candidate_of(source), language=language) == Repair(recased=recased)


@pytest.mark.parametrize(
    ("source", "target", "options", "is_finished"),
    [
        ("Save", "Speichern", {}, True),
        ("Save", "Save", {"guards_copies": False}, True),
        ("Save", "Save", {}, False),
    ],
    ids=["translated", "copies permitted", "cut off"],
)
def test_label_is_not_changed(source: str, target: str, options: dict[str, Any], is_finished: bool) -> None:
    assert not planned(source, candidate_of(target, is_finished=is_finished), **options).is_needed


def test_copies_are_permitted_without_the_guard() -> None:
    source = "we saw some dogs"
    copied = candidate_of(source, violation(WarningKind.UNTRANSLATED, source, source))

    assert planned(source, copied).avoids_source
    assert not planned(source, copied, guards_copies=False).is_needed


@pytest.mark.parametrize(
    ("search", "repair", "expected"),
    [
        (SEARCH, Repair(), SEARCH),
        (SEARCH, Repair(avoids_source=True), replace(SEARCH, avoids_source=True, no_repeat_ngram_size=3)),
        *(
            (
                replace(SEARCH, no_repeat_ngram_size=own),
                Repair(avoids_source=True),
                replace(SEARCH, avoids_source=True, no_repeat_ngram_size=size),
            )
            for own, size in ((1, 1), (2, 2), (3, 3), (8, 3))
        ),
        (
            replace(SEARCH, suppressed_tokens=frozenset({9})),
            Repair(suppresses_bytes=True),
            replace(SEARCH, suppressed_tokens=frozenset({7, 8, 9})),
        ),
        *(
            (
                replace(SEARCH, min_target_tokens=own, target_prefix=prefix, max_target_tokens=longest),
                Repair(min_added_tokens=2),
                replace(SEARCH, min_target_tokens=shortest, target_prefix=prefix, max_target_tokens=longest),
            )
            for own, prefix, longest, shortest in (
                (1, (), 50, 2),
                (1, (5,), 50, 3),
                (9, (), 50, 9),
                (1, (), 2, 1),
                (1, (5, 6), 4, 3),
            )
        ),
        (SEARCH, Repair(spans=(Span(start=0, end=1),), inserts_placeholders=True, recased="a"), SEARCH),
    ],
)
def test_search_of_a_repair_keeps_stricter_limits(search: SearchConfig, repair: Repair, expected: SearchConfig) -> None:
    assert repaired_search(search, repair, byte_ids=frozenset({7, 8})) == expected


def test_part_without_codes_has_a_unit_of_its_text() -> None:
    part = replace(part_of("One."), span=Span(start=7, end=11))

    unit = part_unit("One.", part)

    assert (unit.text, unit.start, unit.source, unit.codes) == ("One.", 7, part.span, ())


def test_unit_of_a_part_with_codes_is_its_own() -> None:
    pipeline = TextPipeline(make_request("Open {x} now."), model=FakeModel(), search=SEARCH)
    ((part,),) = [plan.parts for plan in pipeline.plan()]

    assert part_unit("Open {x} now.", part) is part.unit
