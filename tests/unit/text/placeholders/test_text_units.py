import re
from collections.abc import Sequence
from itertools import pairwise

import pytest

from dragoman_service.datatypes import Span
from dragoman_service.request import ProtectedKind
from dragoman_service.text.placeholders.masking import MASK, Placeholders, masked, masked_target
from dragoman_service.text.placeholders.protected_units import with_placeholders
from dragoman_service.text.placeholders.spans import ProtectedSpan
from dragoman_service.text.placeholders.text_units import CodeKind, TextUnit, plain_unit, spans_in_unit

TRAINED = ("⟦1⟧", "⟦2⟧", "⟦3⟧")


def spans_of(text: str) -> list[ProtectedSpan]:
    """Return tags, bars, names in braces and numbers as spans."""
    kinds = {"<": ProtectedKind.TAG, "|": ProtectedKind.PLURAL, "{": ProtectedKind.BRACES}
    return [
        ProtectedSpan(
            span=Span(start=match.start(), end=match.end()), kind=kinds.get(match[0][0], ProtectedKind.NUMBER)
        )
        for match in re.finditer(r"<[^<>]*>|\|+|\{\w*\}|\d+", text)
    ]


def unit_of(text: str, trained: Sequence[str] = ()) -> TextUnit:
    unit = plain_unit(text, has_escapes=True, has_accelerators=True)
    return with_placeholders(unit, spans_of(unit.text), Placeholders(text, trained))


def sentences_of(unit: TextUnit) -> list[TextUnit]:
    """Return the parts between the ends of sentences."""
    parts, position = [], 0
    for end in (*unit.sentence_ends, Span(start=len(unit.text), end=len(unit.text))):
        parts.append(unit.part(Span(start=position, end=end.start)))
        position = end.end
    return parts


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("First line<br>second line", ["First line", "second line"]),
        ("First line<br/>second line", ["First line", "second line"]),
        ("First line<br />second line", ["First line", "second line"]),
        ("First line</br>second line", ["First line", "second line"]),
        ("First line<BR>second line", ["First line", "second line"]),
        ("Hello<br/><br/>World", ["Hello", "World"]),
        ("One <br> two", ["One ", " two"]),
        ("<p>One</p><p>Two</p>", ["", "One", "Two", ""]),
        ("<li>One</li><li>Two</li>", ["", "One", "Two", ""]),
        ("One<hr>Two", ["One", "Two"]),
        ("<b>One<br>two</b>", ["One", "two"]),
        ("One<newline/>two", ["One", "two"]),
        ("<a>Home</a><a>About</a>", ["Home", "About"]),
        ("<link1>Home</link1><link2>About</link2>", ["Home", "About"]),
        ("no apples|one apple|two apples", ["no apples", "one apple", "two apples"]),
        ("one | two", ["one ", " two"]),
        ("one||||two", ["one", "two"]),
    ],
)
def test_breaks_and_bars_end_a_sentence(text: str, sentences: list[str]) -> None:
    unit = unit_of(text)

    parts = sentences_of(unit)

    assert [part.text for part in parts] == sentences
    assert all(code.kind is not CodeKind.BREAK for part in parts for code in part.codes)
    assert [text[part.source.start : part.source.end] for part in parts if part.text] == [
        part.text for part in parts if part.text
    ]


@pytest.mark.parametrize(
    "text",
    [
        "un<b>believ</b>able",
        "20 m<sup>2</sup>",
        "<b>One</b> and <i>two</i>",
        "<b>One</b><i>two</i>",
        "See <a>this</a> <a>page</a>",
        "word<img/> word",
        "<link>here</link>",
        "One <newline/> two",
    ],
)
def test_other_tags_do_not_end_a_sentence(text: str) -> None:
    assert unit_of(text).sentence_ends == []


def test_ends_of_sentences_are_ordered_and_disjoint() -> None:
    ends = unit_of("<br><br>One<br>|two|<p>{x}</p>{y}|").sentence_ends

    assert ends
    assert all(first.end <= second.start and first != second for first, second in pairwise(ends))


def test_placeholders_beside_a_break_get_no_space() -> None:
    assert unit_of("{a}<br>{b}|c|{d}").text == "20131947c1985"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello <b>you</b>", True),
        ("Hello <img/> you", True),
        ("Hello {name}", False),
        ("{a} and {b}, {c}", False),
        ("One<br>two", False),
        (r"It\'s", False),
        ("Two  spaces", False),
        ("&File", False),
        ("one|two", False),
        ("5 files", False),
        ("%s" * 3, False),
        ("plain", False),
    ],
)
def test_only_tags_need_an_alignment(text: str, expected: bool) -> None:
    assert unit_of(text).needs_alignment is expected


def test_text_without_codes_is_one_unit_without_codes() -> None:
    for text in ("Hello world.", "", "a & b", "C:\\Users\\name", "Column   two", "\n\n  indented"):
        unit = plain_unit(text, has_escapes=True, has_accelerators=True)
        assert (unit.text, unit.codes, unit.escaped_forms) == (text, (), ())


def test_escapes_and_marks_are_text_unless_enabled() -> None:
    for text in (r"It\'s", "&File", "_Open", "Find && Replace"):
        assert plain_unit(text).text == text


def test_mark_of_the_first_letter_is_inside_a_part() -> None:
    unit = plain_unit("&Open  it\tCtrl+O", has_accelerators=True)

    part = unit.part(Span(start=0, end=7))

    assert part.text == "Open it"
    assert [code.kind for code in part.codes] == [CodeKind.ACCELERATOR, CodeKind.SPACE]
    assert part.source == Span(start=0, end=9)


@pytest.mark.parametrize(
    ("text", "masked_text"),
    [
        ("Hello {name}!", f"Hello {MASK * 3}!"),
        ("x{a}y", f"x {MASK * 3} y"),
        ("{a}{b}", MASK * 6),
        ("<b>{a}</b>b", f"{MASK * 3} b"),
        ("5 of {n}", f"{MASK * 3} of {MASK * 3}"),
        ("no span", "no span"),
    ],
)
def test_placeholders_are_masked(text: str, masked_text: str) -> None:
    unit = unit_of(text, TRAINED)

    assert masked(unit) == masked_text
    assert len(masked(unit)) == len(unit.text)
    assert masked_target(unit, unit.text) == masked_text


@pytest.mark.parametrize(
    "target",
    ["Hallo 2013", "20131947 Hallo 2013", "12013 ist keine", "2013-Konto", "1947", "", "Hallo"],
)
def test_all_occurrences_in_a_translation_are_masked(target: str) -> None:
    unit = unit_of("{a} {b}")

    result = masked_target(unit, target)

    assert len(result) == len(target)
    assert all(own in {char, MASK} for own, char in zip(result, target, strict=True))
    assert result == re.sub(r"(?<!\d)(?:2013|1947)+(?!\d)", lambda match: MASK * len(match[0]), target)


@pytest.mark.parametrize(
    ("kinds", "trained"),
    [
        ([ProtectedKind.BRACES] * 5, [0, 1, 2]),
        ([ProtectedKind.BRACES, ProtectedKind.BRACES, ProtectedKind.NUMBER, None, ProtectedKind.IDENTIFIER], [2, 3, 4]),
        ([ProtectedKind.NUMBER, ProtectedKind.NUMBER, None, None, None], [2, 3, 4]),
        ([ProtectedKind.URL, None, ProtectedKind.URL, None, ProtectedKind.URL], [0, 1, 3]),
        ([None] * 5, [0, 1, 2]),
        ([ProtectedKind.NUMBER, ProtectedKind.IDENTIFIER] * 3, [1, 3, 5]),
    ],
)
def test_trained_placeholders_go_to_the_most_important_spans(
    kinds: list[ProtectedKind | None], trained: list[int]
) -> None:
    text = " ".join("abcdefgh"[: len(kinds)])
    spans = [ProtectedSpan(span=Span(start=2 * n, end=2 * n + 1), kind=kind) for n, kind in enumerate(kinds)]

    unit = with_placeholders(plain_unit(text), spans, Placeholders(text, TRAINED))

    assert [number for number, placeholder in enumerate(unit.placeholders) if placeholder in TRAINED] == trained
    assert [placeholder for placeholder in unit.placeholders if placeholder in TRAINED] == list(TRAINED)
    assert len(set(unit.placeholders)) == len(kinds)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("One two three", ["One", "three"]),
        ("Open {name} now", ["Open", "now"]),
        ("{a} then {b} again", ["then", "again"]),
        ("<b>bold</b> and <i>more</i>", ["bold", "more", "and"]),
        ("It\\'s {x} fine", ["fine"]),
        ("one  two  three", ["one", "two", "three"]),
        ("Save &As {x} now", ["Save", "now"]),
        ("12 then 13 more", ["then", "more"]),
        ("(a) {b} (c) {d} (e)", ["(e)", "(a)", "(c)"]),
        ("\u00e9t\u00e9 {x} \u00e0 Paris", ["\u00e9t\u00e9", "Paris"]),
        ("a|b|c word", ["word"]),
    ],
)
@pytest.mark.parametrize("start", [0, 40])
def test_ranges_of_the_message_are_ranges_of_the_unit(text: str, words: list[str], start: int) -> None:
    unit = unit_of(text).shifted(start)
    spans = [Span(start=text.index(word), end=text.index(word) + len(word)).shifted(start) for word in words]

    found = spans_in_unit(unit, spans)

    assert [unit.text[span.start : span.end] for span in found] == sorted(words, key=text.index)
    assert [unit.source_of(span) for span in found] == sorted(spans, key=lambda span: span.start)


@pytest.mark.parametrize("part", ["{name}", "nam", "n {name", "} now", "n {name} n"])
def test_ranges_that_overlap_a_code_are_left_out(part: str) -> None:
    text = "Open {name} now"
    overlapping = Span(start=text.index(part), end=text.index(part) + len(part))
    before = Span(start=0, end=2)

    assert spans_in_unit(unit_of(text), [overlapping, before]) == [before]


def test_ranges_that_overlap_an_earlier_range_are_left_out() -> None:
    spans = [Span(start=start, end=start + 3) for start in (4, 0, 2, 7)]

    assert spans_in_unit(plain_unit("one two three"), spans) == [spans[1], spans[0], spans[3]]


def test_many_ranges_and_codes_take_linear_time() -> None:
    text = "{a} b " * 5_000
    spans = [Span(start=start, end=start + 1) for start in range(4, len(text), 6)]

    assert len(spans_in_unit(unit_of(text), spans)) == len(spans)
