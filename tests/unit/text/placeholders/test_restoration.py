from collections.abc import Sequence

import pytest

from dragoman_service.datatypes import AlignmentLink, Span
from dragoman_service.request import ProtectionOptions
from dragoman_service.text.placeholders.patterns import compile_protection
from dragoman_service.text.placeholders.placement import RepairAction
from dragoman_service.text.placeholders.restoration import Assembler, forced_prefix, restore
from dragoman_service.text.placeholders.text_units import Placeholders, TextUnit, plain_unit, protected_units

REMOVED, INSERTED = RepairAction.REMOVED, RepairAction.INSERTED


def unit_of(text: str, placeholders: Sequence[str] = ()) -> TextUnit:
    protection = compile_protection(ProtectionOptions(), ())
    return protected_units(plain_unit(text), protection, Placeholders(text, placeholders))[0]


def links_of(unit: TextUnit, target: str, pairs: Sequence[tuple[str, str]]) -> list[AlignmentLink]:
    """Link the first occurrences of words."""
    links = []
    for source_word, target_word in pairs:
        start, position = unit.text.index(source_word), target.index(target_word)
        source = Span(start=start, end=start + len(source_word))
        linked = Span(start=position, end=position + len(target_word))
        links.append(AlignmentLink(source=source, target=linked, weight=0.5))
    return sorted(links, key=lambda link: link.target.start)


def assembled(
    text: str, unit: TextUnit, target: str, links: Sequence[AlignmentLink] | None
) -> tuple[str, list[RepairAction]]:
    restored = restore(unit, target, links)
    whole = Assembler(text, [(unit.source, restored.fragments)]).assemble()
    return whole.text, [repair.action for repair in restored.repairs]


@pytest.mark.parametrize(
    ("text", "target", "pairs", "expected", "actions"),
    [
        ("Hello {name}!", "Hallo 2013!", [("Hello", "Hallo"), ("!", "!")], "Hallo {name}!", []),
        (
            "Hello {name}, go!",
            "Geh, hallo!",
            [("Hello", "hallo"), ("go", "Geh"), ("!", "!")],
            "Geh, hallo {name}!",
            [INSERTED],
        ),
        ("Hello {name}", "Hallo 2013 und 2013", [("Hello", "Hallo"), ("Hello", "und")], "Hallo {name} und", [REMOVED]),
        ("I see <b>it</b>", "Es sehe ich", [("I", "ich"), ("see", "sehe"), ("it", "Es")], "<b>Es</b> sehe ich", []),
        ("{a} {b} x", "20131947 X", [("x", "X")], "{a} {b} X", []),
    ],
    ids=["replaced", "missing", "duplicated", "tag", "joined numbers"],
)
def test_codes_are_restored(
    text: str, target: str, pairs: list[tuple[str, str]], expected: str, actions: list[RepairAction]
) -> None:
    unit = unit_of(text)

    assert assembled(text, unit, target, links_of(unit, target, pairs)) == (expected, actions)


def test_elements_stay_nested_and_disjoint() -> None:
    text, target = "<x><y>a b</y></x> <z>c d</z>", "D A C B"
    unit = unit_of(text)
    links = links_of(unit, target, [("a", "A"), ("b", "B"), ("c", "C"), ("d", "D")])

    result, _ = assembled(text, unit, target, links)

    assert result.index("<x>") < result.index("<y>") < result.index("</y>") < result.index("</x>")
    assert result.index("</x>") < result.index("<z>") or result.index("</z>") < result.index("<x>")


@pytest.mark.parametrize(
    "text", ["{a}{b}", "x{a}y {b}1", "1{a}", "<b>a</b>b <i>{x}</i>", "a <img/> b", "<b> a </b> b."]
)
def test_text_translated_into_itself_is_unchanged(text: str) -> None:
    unit = unit_of(text)
    spans = [Span(start=i, end=i + 1) for i, character in enumerate(unit.text) if not character.isspace()]
    links = [AlignmentLink(source=span, target=span, weight=1.0) for span in spans]

    assert assembled(text, unit, unit.text, links) == (text, [])


def test_forced_prefix_contains_the_missing_placeholders() -> None:
    unit = unit_of("Hello {name}, go {x}!")
    target = "Hallo, geh 1947!"
    links = links_of(unit, target, [("Hello", "Hallo"), ("go", "geh"), ("!", "!")])

    assert forced_prefix(unit, target, links) == "Hallo 2013"
    assert forced_prefix(unit, "Hallo 2013, geh 1947!", None) is None
    assert forced_prefix(unit, "Hallo 2013 2013, geh 1947!", None) == ""


def test_trained_placeholders_precede_years_and_none_occurs_in_the_text() -> None:
    unit = unit_of("⟦2⟧ {a}, {b} in 2013, {c}{d}", ("⟦1⟧", "⟦2⟧", "⟦3⟧"))

    assert unit.text == "⟦2⟧ ⟦1⟧, ⟦3⟧ in 2013, 1947 1985"
    assert unit.placeholders == ["⟦1⟧", "⟦3⟧", "1947", "1985"]


@pytest.mark.parametrize(
    ("target", "expected", "actions"),
    [
        ("⟦2⟧-Klasse von ⟦1⟧2013", "{b}-Klasse von {a}{c}", []),
        ("5⟦1⟧⟦2⟧ 2013", "5{a}{b} {c}", []),
        ("⟦1⟧ ⟦2⟧ ⟦2⟧ 2013", "{a} {b} {c}", [REMOVED]),
        ("⟦1⟧ 12013", "{a} {b} 12013 {c}", [INSERTED, INSERTED]),
    ],
)
def test_placeholders_are_found_next_to_any_text(target: str, expected: str, actions: list[RepairAction]) -> None:
    text = "{a} {b} {c}"

    assert assembled(text, unit_of(text, ("⟦1⟧", "⟦2⟧")), target, None) == (expected, actions)
