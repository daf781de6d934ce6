from collections.abc import Sequence

import pytest

from dragoman_service.datatypes import AlignmentLink, Span
from dragoman_service.request import ProtectionOptions
from dragoman_service.text.placeholders.blocks import Block, Placeholders, plain_block, protected_blocks
from dragoman_service.text.placeholders.patterns import compile_protection
from dragoman_service.text.placeholders.restoration import Assembler, forced_prefix, restore


def block_of(text: str, placeholders: Sequence[str] = ()) -> Block:
    protection = compile_protection(ProtectionOptions(), ())
    return protected_blocks(plain_block(text), protection, Placeholders.of(text, placeholders))[0]


def links_of(block: Block, target: str, pairs: Sequence[tuple[str, str]]) -> list[AlignmentLink]:
    """Link words by what they are, each the first time that it occurs."""
    links = []
    for source, own in pairs:
        start, place = block.text.index(source), target.index(own)
        span, by = Span(start=start, end=start + len(source)), Span(start=place, end=place + len(own))
        links.append(AlignmentLink(source=span, target=by, weight=0.5))
    return sorted(links, key=lambda link: link.target.start)


def restored(text: str, target: str, *pairs: tuple[str, str]) -> tuple[str, list[str]]:
    block = block_of(text)
    done = restore(block, target, links_of(block, target, pairs))
    whole = Assembler(text, [], separator="").assemble([block.source], [done.items])
    return whole.text, [repair.action.partition(",")[0] for repair in done.repairs]


def test_a_stand_in_gives_way_to_its_span() -> None:
    assert block_of("Hello {name}!").text == "Hello 2013!"
    assert restored("Hello {name}!", "Hallo 2013!", ("Hello", "Hallo"), ("!", "!")) == ("Hallo {name}!", [])


def test_a_lost_span_is_inserted_behind_what_stood_before_it() -> None:
    text, actions = restored("Hello {name}, go!", "Geh, hallo!", ("Hello", "hallo"), ("go", "Geh"), ("!", "!"))

    assert (text, actions) == ("Geh, hallo {name}!", ["was lost"])


def test_a_span_that_came_twice_stays_once() -> None:
    text, actions = restored("Hello {name}", "Hallo 2013 und 2013", ("Hello", "Hallo"), ("Hello", "und"))

    assert (text, actions) == ("Hallo {name} und", ["came twice"])


def test_a_tag_follows_its_words() -> None:
    pairs = ("I", "ich"), ("see", "sehe"), ("it", "Es")

    assert restored("I see <b>it</b>", "Es sehe ich", *pairs) == ("<b>Es</b> sehe ich", [])


def test_neighbours_do_not_overlap_and_children_stay_inside() -> None:
    pairs = ("a", "A"), ("b", "B"), ("c", "C"), ("d", "D")

    text, _ = restored("<x><y>a b</y></x> <z>c d</z>", "D A C B", *pairs)

    assert text in {"<z>D</z> <x><y>A C B</y></x>", "<z>D A C</z> <x><y>B</y></x>", "<x><y>A</y></x> <z>C</z>"} or (
        text.index("<x>") < text.index("<y>") < text.index("</y>") < text.index("</x>")
    )
    assert text.index("</x>") < text.index("<z>") or text.index("</z>") < text.index("<x>")


@pytest.mark.parametrize(
    "text", ["{a}{b}", "x{a}y {b}1", "1{a}", "<b>a</b>b <i>{x}</i>", "a <img/> b", "<b> a </b> b."]
)
def test_a_text_translated_into_itself_comes_back(text: str) -> None:
    block = block_of(text)
    links = [
        AlignmentLink(source=Span(start=i, end=i + 1), target=Span(start=i, end=i + 1), weight=1.0)
        for i in range(len(block.text))
        if not block.text[i].isspace()
    ]
    whole = Assembler(text, [], separator="").assemble([block.source], [restore(block, block.text, links).items])

    assert whole.text == text


def test_the_prefix_of_a_second_search_holds_what_was_lost() -> None:
    block = block_of("Hello {name}, go {x}!")
    target = "Hallo, geh 1947!"
    links = links_of(block, target, [("Hello", "Hallo"), ("go", "geh"), ("!", "!")])

    assert forced_prefix(block, target, links) == "Hallo 2013"
    assert forced_prefix(block, "Hallo 2013, geh 1947!", None) is None
    assert forced_prefix(block, "Hallo 2013 2013, geh 1947!", None) == ""


def test_numbers_that_run_together_are_told_apart() -> None:
    text, actions = restored("{a} {b} x", "20131947 X", ("x", "X"))

    assert (text, actions) == ("{a} {b} X", [])


def test_numbers_of_the_text_are_no_stand_ins() -> None:
    assert block_of("In 2013, {name} came.").text == "In 2013, 1947 came."


def test_placeholders_of_the_model_come_first_then_years() -> None:
    placeholders = ("⟦1⟧", "⟦2⟧", "⟦3⟧")

    block = block_of("⟦2⟧ {a}, {b} in 2013, {c}{d}", placeholders)

    assert block.text == "⟦2⟧ ⟦1⟧, ⟦3⟧ in 2013, 1947 1985"
    assert block.stand_ins == ["⟦1⟧", "⟦3⟧", "1947", "1985"]


@pytest.mark.parametrize(
    ("target", "text", "actions"),
    [
        ("⟦2⟧-Klasse von ⟦1⟧2013", "{b}-Klasse von {a}{c}", []),
        ("5⟦1⟧⟦2⟧ 2013", "5{a}{b} {c}", []),
        ("⟦1⟧ ⟦2⟧ ⟦2⟧ 2013", "{a} {b} {c}", ["came twice"]),
        ("⟦1⟧ 12013", "{a} {b} 12013 {c}", ["was lost", "was lost"]),
    ],
)
def test_placeholders_give_way_to_their_spans_beside_anything(target: str, text: str, actions: list[str]) -> None:
    block = block_of("{a} {b} {c}", ("⟦1⟧", "⟦2⟧"))

    done = restore(block, target, None)

    whole = Assembler("{a} {b} {c}", [], separator="").assemble([block.source], [done.items])
    assert (whole.text, [repair.action.partition(",")[0] for repair in done.repairs]) == (text, actions)
