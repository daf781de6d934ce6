import re

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman_service.datatypes import Span
from dragoman_service.text.segmentation import ESCAPED_BREAKS, iterate_sentences, join, split_overlong, trim

LANGUAGES = st.sampled_from(["en", "de", "fr", "zh", "ja", "hy", "am", "en-GB", "", "xx"])

# Parts of sentences, lines and lists, and characters that libraries fail on: wide white space, all line breaks,
# terminators of several scripts, combining marks, joiners, surrogates.
_SNIPPETS = st.sampled_from(
    [
        *".?!…。！？؟,;:、，", "...", "?!", "'", '"', "“", "”", "«", "»", "「", "」", "(", ")", "[1]",
        " ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\u2028",
        "\u2029", "\xa0", "\u202f", "\u3000", "\u200b", "\u200d", "\ufeff", "\u200f", "\x00", "\x7f",
        "- ", "* ", "• ", "1. ", "2) ", "(a) ", "#", "&nbsp;", "<b>", "http://a.example/?b=c", "me@a.example",
        "   ", "\\n", "\\t", "\\\\", "|", "<br>", "usw. ", "No. ", "3. ", "Mai", "Friedrich II. ", "J. R. R. ", "etc. ",
        "Dr. ", "e.g. ", "z.B. ", "U.S. ", "A.", "I", "Z", "the", "House", "3.5", "10", "你好", "再见", "हिन्दी", "ไทย",
        "é", "e\u0301", "ß", "İ", "🎉", "👨\u200d👩\u200d👧", "\U0001f1e9\U0001f1ea", "\ud800", "\udfff", "\ufffd",
    ]
)  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(_SNIPPETS).map("".join), st.lists(st.one_of(_SNIPPETS, st.text())).map("".join))


def _parts(text: str, spans: list[Span]) -> list[str]:
    return [text[span.start : span.end] for span in spans]


def _assert_is_a_split(text: str, spans: list[Span]) -> None:
    """Spans are in order, disjoint and within the text."""
    copied_to = 0
    for span in [*spans, Span(start=len(text), end=len(text))]:
        assert copied_to <= span.start <= span.end <= len(text)
        copied_to = span.end


@settings(max_examples=100)
@given(TEXTS, LANGUAGES)
def test_joined_sentences_are_the_text(text: str, language: str) -> None:
    spans = list(iterate_sentences(text, language=language))

    joined = join(text, spans, _parts(text, spans))

    assert joined.text == text
    assert list(joined.spans) == spans


@settings(max_examples=100)
@given(TEXTS, LANGUAGES, st.data())
def test_sentences_between_ends_and_breaks_are_the_text(text: str, language: str, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, len(text)), unique=True, max_size=6).map(sorted))
    ends = [Span(start=start, end=end) for start, end in zip(positions[::2], positions[1::2], strict=False)]
    breaks = data.draw(st.sampled_from([None, ESCAPED_BREAKS]))

    spans = list(iterate_sentences(text, language=language, ends=ends, breaks=breaks))

    _assert_is_a_split(text, spans)
    assert join(text, spans, _parts(text, spans)).text == text
    assert not any(span.start < end.end and end.start < span.end for span in spans for end in ends)
    if breaks:
        for span in spans:
            assert not breaks.search(text, span.start, span.end)


@settings(max_examples=100)
@given(TEXTS, LANGUAGES)
def test_sentences_contain_every_letter_and_stay_on_their_line(text: str, language: str) -> None:
    spans = list(iterate_sentences(text, language=language))

    _assert_is_a_split(text, spans)
    for sentence in _parts(text, spans):
        assert sentence == sentence.strip()
        assert len(sentence.splitlines()) == 1
    letters_between = [char for char in join(text, spans, [""] * len(spans)).text if char.isalpha()]
    assert all(char.isascii() for char in letters_between)  # list markers such as `a)`
    assert len(letters_between) <= len(re.findall(r"[A-Za-z][.)]", text))


@given(TEXTS, LANGUAGES, st.lists(st.text()))
def test_target_spans_index_the_joined_text(text: str, language: str, words: list[str]) -> None:
    spans = list(iterate_sentences(text, language=language))
    targets = [words[index % len(words)] if words else "" for index in range(len(spans))]

    for separator in ("", " "):
        joined = join(text, spans, targets, separator=separator)
        assert [joined.text[span.start : span.end] for span in joined.spans] == targets


@given(st.lists(st.integers(1, 1_900), max_size=10))
def test_long_lines_are_split_where_short_ones_are(lengths: list[int]) -> None:
    sentences = ["word " * length + "end." for length in lengths]
    line = " ".join(sentences)

    def splitter(_: str, window: str) -> list[str]:
        return re.findall(r"[^.]*\. ?|[^.]+$", window)

    spans = list(iterate_sentences(line, language="en", splitter=splitter))

    assert _parts(line, spans) == sentences


@settings(max_examples=100)
@given(TEXTS, st.integers(1, 20))
def test_parts_of_a_long_sentence_fit_and_contain_every_letter(text: str, limit: int) -> None:
    for sentence in trim(text):
        parts = split_overlong(text, sentence, fits=lambda part: len(part) <= limit)

        _assert_is_a_split(text, parts)
        assert all(0 < len(part) <= limit for part in _parts(text, parts))
        assert not any(char.isalnum() for char in join(text, parts, [""] * len(parts)).text)
