import time
from collections.abc import Callable
from itertools import product

import pytest

from dragoman_service.datatypes import Span
from dragoman_service.text.placeholders.markdown import is_markup_intact, markdown_units
from dragoman_service.text.placeholders.markup import MarkupError
from dragoman_service.text.placeholders.masking import Placeholders
from dragoman_service.text.placeholders.restoration import Assembler, restore
from dragoman_service.text.placeholders.text_units import CodeKind, TextUnit
from dragoman_service.text.segmentation import iterate_sentences


def units_of(message: str) -> list[TextUnit]:
    return markdown_units(message, placeholders=Placeholders(message))


def texts(message: str) -> list[str]:
    return [unit.text.strip() for unit in units_of(message)]


def translated(message: str, translate: Callable[[str], str]) -> str:
    parts = []
    for unit in units_of(message):
        for span in iterate_sentences(unit.text, language="en", ends=unit.sentence_ends):
            part = unit.part(unit.outside_codes(span))
            if part.has_words or not part.has_placeholders:
                parts.append((part.source, restore(part, translate(part.text), None).fragments))
    return Assembler(message, parts).assemble().text


_DOCUMENTS: list[tuple[str, list[str]]] = [
    ("The **bold** word and the *italic* word.", ["The bold word and the italic word."]),
    ("**planetary fields of consequence**", ["planetary fields of consequence"]),
    ("~~Deleted~~", ["Deleted"]),
    ("## New title", ["New title"]),
    ("> A quote", ["A quote"]),
    ("- [ ] task", ["task"]),
    ("# Title #\n\nText", ["Title", "Text"]),
    ("Title\n=====\n\nSub *title*\n---\ntext", ["Title", "Sub title", "text"]),
    ("- One\n- Two\n  - Three\n    more\n\n  Four", ["One", "Two", "Three more", "Four"]),
    ("1. One\n2. Two\n   1) Three", ["One", "Two", "Three"]),
    ("* a\n\n      code\n\n+ b", ["a", "b"]),
    ("> One\n> two\nthree\n>\n> > Four", ["One two three", "Four"]),
    ("> [!NOTE]\n> Take care.", ["Take care."]),
    ("> [!WARNING] Take care.", ["Take care."]),
    ("- [x] Fix\n- [X] Test\n* [ ] Ship **it**", ["Fix", "Test", "Ship it"]),
    ("| Name | Path |\n| :-- | --: |\n| a | The `x \\| y` key |", ["Name", "Path", "a", "The 2013 key"]),
    ("| One \\| two |\n|---|\n| \\|three |", ["One  two", "three"]),
    ("a | b\n--- | ---\n*c* d | [e](f)", ["a", "b", "c d", "e"]),
    ("Text\n\n```python\nprint('code')\n```\n\n~~~\ncode\n~~~\nmore", ["Text", "more"]),
    ("Text\n\n    code\n\nmore", ["Text", "more"]),
    ("Use `a * b` or ``c ` d`` now.", ["Use 2013 or 1947 now."]),
    ("See [the guide](http://a.b/c_d_e (Title)) first.", ["See the guide first."]),
    ("See [the guide][1] or [it][].\n\n[1]: http://a.b 'Title'\n[it]: <c d>", ["See the guide or it."]),
    ("Mail <me@a.org> or <https://a.b/c>.", ["Mail 2013 or 1947."]),
    ("One  \ntwo\\\nthree", ["One two three"]),
    ("un**believ**able and *a*b", ["unbelievable and ab"]),
    ("***Both*** and **_nested_ marks**", ["Both and nested marks"]),
    ('![The old town](town.png "Title")', ["The old town"]),
    ("Press ![the button](b.png) to save.", ["Press 2013 to save.", "the button"]),
    ("[![Build status](a.svg)](http://b)", ["Build status"]),
    ("A note[^1] here.\n\n[^1]: Word\n[^long]: A long *note*.", ["A note here.", "Word", "A long note."]),
    ("---\ntitle: Front matter\n---\n\nText", ["Text"]),
    ("+++\ntitle = 'x'\n+++\nText", ["Text"]),
    ("\ufeffText", ["Text"]),
    ("<div>\n<p title='A title'>Hello <b>you</b></p>\n</div>\n\nText", ["A title", "Hello you", "Text"]),
    ("> <div>\n> Hello\n> you\n> </div>", ["Hello you"]),
    ("Press <kbd>Ctrl</kbd> and <b>hold</b> it.<br>Then go.", ["Press 2013 and hold it. Then go."]),
    ("One <!-- comment --> two", ["One  two"]),
    ("A \\*star\\*, 3 \\< 4, fish &amp; chips, 5 &lt; 6", ["A *star*, 3 < 4, fish & chips, 5 < 6"]),
    ("1986\\. A great year", ["1986. A great year"]),
    ("2 * 3 * 4 and snake_case_name", ["2 * 3 * 4 and snake_case_name"]),
    ("One\r\ntwo\r\n\r\n- three\r\n  four\r\n", ["One two", "three four"]),
    ("\tcode\n\nText\n***\nmore", ["Text", "more"]),
    ("[ref]: http://a.b\n\nText", ["Text"]),
    ("[Installation]\n\n[installation]: #i", ["Installation"]),
    ("\u00a0\nText", ["Text"]),
]


@pytest.mark.parametrize(("message", "expected"), _DOCUMENTS)
def test_text_of_markdown_is_read_without_its_marks(message: str, expected: list[str]) -> None:
    assert texts(message) == expected


@pytest.mark.parametrize("message", [message for message, _ in _DOCUMENTS])
def test_identity_preserves_a_document(message: str) -> None:
    assert translated(message, str) == message


@pytest.mark.parametrize("message", [message for message, _ in _DOCUMENTS])
def test_translation_has_the_markup_of_its_source(message: str) -> None:
    assert is_markup_intact(message, translated(message, str.upper))


_MARKS = [
    "**{}**",
    "__{}__",
    "*{}*",
    "_{}_",
    "***{}***",
    "~~{}~~",
    "[{}](http://a.b)",
    '[{}](<a b> "A title")',
    "[{}][ref]",
    "[*{}*](c)",
    "**[{}](d)**",
    "<b>{}</b>",
    "<span class='x'>{}</span>",
]
_CONTAINERS = [
    "{}",
    "# {}",
    "{}\n===",
    "> {}",
    "> > {}",
    "- {}",
    "- [ ] {}",
    "- [x] {}",
    "1. {}",
    "2) - {}",
    "| {} |\n|---|",
    "| a |\n|:-:|\n| {} |",
    "[^1]: {}",
    "> [!TIP]\n> {}",
    "<div>\n\n{}\n\n</div>",
]


@pytest.mark.parametrize(("mark", "container"), list(product(_MARKS, _CONTAINERS)))
def test_marks_enclose_the_same_words_in_each_container(mark: str, container: str) -> None:
    message = container.format(f"See {mark.format('the old town')} today.") + "\n\n[ref]: http://e.f\n"

    unit = next(unit for unit in units_of(message) if "town" in unit.text)
    opening = next(code for code in unit.codes if code.kind is CodeKind.OPENING)

    assert unit.text == "See the old town today."
    assert unit.text[opening.start : unit.codes[opening.partner].start] == "the old town"
    assert translated(message, str) == message
    assert translated(message, str.upper) == message.replace("See", "SEE").replace(
        "the old town", "THE OLD TOWN"
    ).replace("today", "TODAY").replace("| a |", "| A |")


@pytest.mark.parametrize("message", [message for message, _ in _DOCUMENTS])
def test_sources_of_units_and_codes_are_ordered_positions_in_the_message(message: str) -> None:
    for unit in units_of(message):
        position = unit.source.start
        for code in unit.codes:
            assert position <= code.source.start <= code.source.end <= unit.source.end
            position = code.source.end
        first = next((index for index, char in enumerate(unit.text) if char.isalnum()), 0)
        if not any(code.start <= first < code.end for code in unit.codes):
            place = unit.source_of(Span(start=first, end=first + 1)).start
            assert message[place] == unit.text[first]


@pytest.mark.parametrize(
    ("message", "translation", "expected"),
    [
        ("One", "1. Eins", "1\\. Eins"),
        ("One", "- Eins", "\\- Eins"),
        ("One", "+ Eins", "\\+ Eins"),
        ("One", "# Eins", "\\# Eins"),
        ("One", "> Eins", "\\> Eins"),
        ("One", "2013) Eins", "2013\\) Eins"),
        ("One", "1.5 Eins", "1.5 Eins"),
        ("- One", "* Eins", "- \\* Eins"),
        ("One", "*Eins* [zwei] `drei` <b>", "\\*Eins\\* \\[zwei\\] \\`drei\\` \\<b>"),
        ("One * two", "Eins * zwei", "Eins * zwei"),
        ("One", "Eins & zwei &amp; drei", "Eins \\& zwei \\&amp; drei"),
        ("| One |\n|---|", "Eins|zwei", "| Eins\\|zwei |\n|---|"),
        ("a b c\nd", "x y z - w", "x y z - w"),
        ("One two\nthree", "Eins zwei drei", "Eins zwei\ndrei"),
        ("e\\.g two", "z.B zwei", "z\\.B zwei"),
        ("See [it].\n\n[it]: x", "Siehe das.", "Siehe [das][it].\n\n[it]: x"),
        ("[it]\n\n[it]: x", "das", "[das][it]\n\n[it]: x"),
        ("[it][]\n\n[it]: x", "das", "[das][it]\n\n[it]: x"),
    ],
)
def test_translation_is_escaped(message: str, translation: str, expected: str) -> None:
    assert translated(message, lambda _: translation) == expected


@pytest.mark.parametrize(
    ("source", "target", "is_intact"),
    [
        ("The **bold** word", "Das **fette** Wort", True),
        ("The **bold** word", "Das fette** Wort", False),
        ("# One", "Eins", False),
        ("- [x](a)", "- [y](b)", False),
        ("`a` b", "`c` b", False),
        ("*a* **b**", "**b** *a*", True),
        ("| a | b |\n|---|---|", "| c | d |\n|---|---|", True),
        ("<div>a</div>", "<div>b</div>", True),
    ],
)
def test_markup_of_translation_is_compared(source: str, target: str, *, is_intact: bool) -> None:
    assert is_markup_intact(source, target) is is_intact


@pytest.mark.parametrize("container", ["> ", "- ", "1. "])
def test_deeply_nested_text_is_rejected(container: str) -> None:
    with pytest.raises(MarkupError, match="nested more than 64 deep in line 3"):
        units_of(f"a\n\n{container * 100}b")


@pytest.mark.parametrize(
    "unit",
    [
        *("|a", "[", "![", "](", "[a](", "*a ", "**a", "_*", "a*_", "`", "`a", "<", "<a ", "<b>", "<code>", "</code>"),
        *("<!--", "<div>\n", "&a", "&amp;", "\\", "\\|", "~~a", "> ", "> a\n", "- ", "- a\n", "1. ", "a\n", "a  \n"),
        *("[^1]", "[^1]: a\n", "[a]: b\n", "[ ] ", "![a](b)", "[![a](b)](c) ", "|a\n|-\n", "--- ", "+++\n", "\u00a0\n"),
        *("***a** ", "*a**", '[a](b "', "[^", "\t", "# "),
    ],
)
def test_number_of_checks_is_linear(unit: str) -> None:
    def num_checks(repetitions: int) -> int:
        checks = 0

        def check() -> None:
            nonlocal checks
            checks += 1

        message = unit * repetitions
        markdown_units(message, placeholders=Placeholders(message), check=check)
        return checks

    try:
        assert num_checks(2000) <= 3 * num_checks(1000) + 100
    except MarkupError:
        pytest.skip("rejected")


def test_reading_stops_if_the_check_fails() -> None:
    class StoppedError(Exception):
        pass

    message = "*a* [b](c) " * 5000
    began_s = time.perf_counter()

    def check() -> None:
        if time.perf_counter() - began_s > 0.01:
            raise StoppedError

    with pytest.raises(StoppedError):
        markdown_units(message, placeholders=Placeholders(message), check=check)
