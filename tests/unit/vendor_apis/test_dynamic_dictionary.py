import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.vendor_apis.dynamic_dictionary import DictionaryText, read_dictionary

CLOSE = "</mstrans:dictionary>"


def element(word: str, translation: str) -> str:
    return f'<mstrans:dictionary translation="{html.escape(translation)}">{word}{CLOSE}'


def words(read: DictionaryText) -> list[tuple[str, str]]:
    return [(read.text[each.span.start : each.span.end], each.target) for each in read.fixed_spans]


@pytest.mark.parametrize("is_html", [False, True])
@pytest.mark.parametrize(
    ("text", "plain", "expected"),
    [
        ("No element.", "No element.", []),
        (f"The {element('word', 'Wort')} here.", "The word here.", [("word", "Wort")]),
        (element("word", "Wort"), "word", [("word", "Wort")]),
        (f"{element('a', 'x')}{element('b', 'y')}", "ab", [("a", "x"), ("b", "y")]),
        (f"{element('two words', 'Zwei Wörter')}.", "two words.", [("two words", "Zwei Wörter")]),
        (f"a{element(' b ', 'x')}c", "a b c", [("b", "x")]),
        (f"a{element('', 'x')}c{element(' ', 'x')}", "ac ", []),
        (f"a {element('b', '')}", "a b", [("b", "")]),
        (f"a <mstrans:dictionary>b{CLOSE}", "a b", [("b", "")]),
        (f"a <mstrans:dictionary id='7' translation='x'>b{CLOSE}", "a b", [("b", "x")]),
        ('a <MsTrans:Dictionary\tTranslation = "x" >b</MSTRANS:DICTIONARY >', "a b", [("b", "x")]),
        (f"a {element('b', 'R&D <x>')}", "a b", [("b", "R&D <x>")]),
        ('a <mstrans:dictionary translation="it\'s">b</mstrans:dictionary>', "a b", [("b", "it's")]),
        (f"größer {element('日本', 'Japan')} 🙂", "größer 日本 🙂", [("日本", "Japan")]),
        (f"a {CLOSE} b", f"a {CLOSE} b", []),
        ('<mstrans:dictionary translation="x"> b', '<mstrans:dictionary translation="x"> b', []),
        (f"a <mstrans:dictionary translation=x>b{CLOSE}", f"a <mstrans:dictionary translation=x>b{CLOSE}", []),
        (
            f'<mstrans:dictionary translation="x">a {element("b", "y")} c{CLOSE}',
            f'<mstrans:dictionary translation="x">a b c{CLOSE}',
            [("b", "y")],
        ),
        (f"a <mstrans:dictionaryx>b{CLOSE}", f"a <mstrans:dictionaryx>b{CLOSE}", []),
    ],
)
def test_elements_are_removed_and_their_words_have_translations(
    text: str, plain: str, expected: list[tuple[str, str]], is_html: bool
) -> None:
    read = read_dictionary(text, is_html=is_html)

    assert (read.text, words(read)) == (plain, expected)


@pytest.mark.parametrize(
    ("content", "text", "word"),
    [
        ("<b>word</b>", "<b>word</b>", "word"),
        (" <i> <b>word</b></i> ", " <i> <b>word</b></i> ", "word"),
        ("a <b>word</b>", "a word", "a word"),
        ("<b>a</b> <i>word</i>", "a word", "a word"),
        ("R&amp;D", "R&amp;D", "R&amp;D"),
        ("a<br>b", "ab", "ab"),
        ("1 < 2", "1 < 2", "1 < 2"),
    ],
)
def test_markup_around_a_word_stays_and_markup_within_is_removed(content: str, text: str, word: str) -> None:
    read = read_dictionary(f"<p>The {element(content, 'x')}.</p>", is_html=True)

    assert (read.text, words(read)) == (f"<p>The {text}.</p>", [(word, "x")])


def test_markup_in_plain_text_is_text() -> None:
    assert words(read_dictionary(element("<b>a</b>", "x"), is_html=False)) == [("<b>a</b>", "x")]


TEXTS = st.text(alphabet="ab <>/&;'\"é🙂\n", max_size=8)
PARTS = st.lists(st.one_of(TEXTS, st.tuples(st.text(alphabet="ab é🙂", max_size=6), TEXTS)), max_size=8)


@given(PARTS, st.booleans())
def test_positions_refer_to_the_characters_of_the_request(parts: list[str | tuple[str, str]], is_html: bool) -> None:
    text = "".join(part if isinstance(part, str) else element(*part) for part in parts)

    read = read_dictionary(text, is_html=is_html)

    positions = [read.original_position(index) for index in range(len(read.text))]
    assert [text[position] for position in positions] == list(read.text)
    assert positions == sorted(set(positions))
    assert all(0 <= each.span.start < each.span.end <= len(read.text) for each in read.fixed_spans)
    ends = [0, *(bound for each in read.fixed_spans for bound in (each.span.start, each.span.end))]
    assert ends == sorted(ends)


@given(st.lists(st.tuples(st.from_regex(r"\A[a-z]{1,8}\Z"), st.text(max_size=12)), min_size=1, max_size=10))
def test_each_word_gets_its_translation(pairs: list[tuple[str, str]]) -> None:
    pairs = [(word, target) for word, target in pairs if html.unescape(html.escape(target)) == target]
    text = " and ".join(element(word, target) for word, target in pairs)

    read = read_dictionary(text, is_html=False)

    assert read.text == " and ".join(word for word, _ in pairs)
    assert words(read) == pairs


@pytest.mark.parametrize(
    "text",
    [
        "<mstrans:dictionary " * 20_000,
        '<mstrans:dictionary translation="x">' * 20_000,
        '<mstrans:dictionary a="' * 20_000,
        f"{element('a', 'x')}" * 10_000,
        f"{element('<b' * 20_000, 'x')}",
        f"{element('<b>' * 20_000, 'x')}",
        f"<mstrans:dictionary{' ' * 100_000}>{CLOSE}" * 3,
        CLOSE * 20_000,
    ],
)
def test_hostile_texts_are_read_in_linear_time(text: str) -> None:
    for is_html in (False, True):
        assert read_dictionary(text, is_html=is_html).text
