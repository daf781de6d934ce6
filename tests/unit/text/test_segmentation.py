from collections.abc import Callable

import pytest

from dragoman_service.datatypes import Span
from dragoman_service.text.segmentation import (
    MAX_SENTENCE_CHARACTERS,
    iterate_sentences,
    join,
    separator_between,
    split_overlong,
    trim,
)


def _sentences(text: str, *, language: str = "en") -> list[str]:
    return [text[span.start : span.end] for span in iterate_sentences(text, language=language)]


def _at_most(num_characters: int) -> Callable[[str], bool]:
    return lambda piece: len(piece) <= num_characters


def _parts(text: str, *, at_most: int) -> list[str]:
    spans = split_overlong(text, Span(start=0, end=len(text)), fits=_at_most(at_most))
    return [text[span.start : span.end] for span in spans]


def test_abbreviations_of_the_language_do_not_end_a_sentence() -> None:
    assert _sentences("Dr. Smith is here. He waits.") == ["Dr. Smith is here.", "He waits."]
    assert _sentences("Am 3. Mai kam er.", language="de") == ["Am 3. Mai kam er."]


@pytest.mark.parametrize("language", ["de-AT", "DE", "de"])
def test_primary_subtag_selects_the_rules(language: str) -> None:
    assert _sentences("Am 3. Mai kam er.", language=language) == ["Am 3. Mai kam er."]


@pytest.mark.parametrize("language", ["tlh", "", "x", "en_GB"])
def test_unknown_language_uses_the_fallback(language: str) -> None:
    assert _sentences("One here. Two there.", language=language) == ["One here.", "Two there."]


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\n\n \n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"])
def test_every_line_break_ends_a_sentence(line_break: str) -> None:
    assert _sentences(f"a line without an end{line_break}and another") == ["a line without an end", "and another"]


@pytest.mark.parametrize("marker", ["- ", "* ", "• ", "  –\t", "1) ", "(12) ", "a) ", "(b) ", "1. "])
def test_list_markers_are_not_part_of_the_sentence(marker: str) -> None:
    assert _sentences(f"{marker}Buy milk\n{marker}Sell eggs\n") == ["Buy milk", "Sell eggs"]


def test_single_number_at_the_start_of_a_line_may_be_an_ordinal() -> None:
    assert _sentences("1. Mai ist Feiertag.", language="de") == ["1. Mai ist Feiertag."]


@pytest.mark.parametrize(
    "text", ["", " ", "\r\n\t\n", "...", "***\n---", "🎉 !?", "🎉 → 🎉", "\ufeff\u200b", ". " * 1000]
)
def test_text_without_letter_or_digit_has_no_sentence(text: str) -> None:
    assert list(iterate_sentences(text, language="en")) == []
    assert trim(text) == []


def test_byte_order_and_direction_marks_are_outside_sentences() -> None:
    assert _sentences("\ufeff\u200fHello.\u200e\x00") == ["Hello."]


@pytest.mark.parametrize("text", ["Z\u2028.", "A\u3000. B", "A\xa0.", "I\u202f. am", "\ud800 Hello. \udfff"])
def test_text_that_crashes_the_library_is_split(text: str) -> None:
    assert _sentences(text)


class _PanicException(BaseException):
    """Named as what a crash of the library's Rust side raises."""


_PanicException.__name__ = "PanicException"


def _panicking(language: str, text: str) -> list[str]:
    raise _PanicException


def _failing(language: str, text: str) -> list[str]:
    raise RuntimeError


@pytest.mark.parametrize(
    "splitter",
    [_panicking, _failing, lambda _, text: [text[1:]], lambda _, text: [], lambda _, text: ["", text, ""]],
)
def test_line_stays_whole_if_the_library_fails(splitter: Callable[[str, str], list[str]]) -> None:
    text = "One. Two.\nThree."

    spans = list(iterate_sentences(text, language="en", splitter=splitter))

    assert [text[span.start : span.end] for span in spans] == ["One. Two.", "Three."]


def test_interrupt_is_raised() -> None:
    def interrupted(language: str, text: str) -> list[str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(iterate_sentences("One.", language="en", splitter=interrupted))


def test_long_line_is_split_in_windows() -> None:
    seen: list[int] = []

    def recording(language: str, text: str) -> list[str]:
        seen.append(len(text))
        return text.splitlines(keepends=True) if "\n" in text else [text]

    spans = list(iterate_sentences("word " * 20_000, language="en", splitter=recording))

    assert spans == [Span(start=start, end=start + 9_999) for start in range(0, 100_000, 10_000)]
    assert max(seen) < 5_000


@pytest.mark.parametrize("text", ["a" * 25_000, "e\u0301" * 12_000, "word " * 5_000, "word " * 1_999 + "end. More."])
def test_sentence_without_end_is_cut_between_words_or_characters(text: str) -> None:
    sentences = _sentences(text)

    assert all(len(sentence) <= MAX_SENTENCE_CHARACTERS for sentence in sentences)
    assert not any(sentence.startswith("\u0301") for sentence in sentences)
    assert "".join(sentences).replace(" ", "") == text.replace(" ", "")
    assert {word for sentence in sentences for word in sentence.split()} == set(text.split()) or " " not in text


def test_first_sentence_is_found_without_reading_the_rest() -> None:
    seen: list[str] = []

    def recording(_language: str, text: str) -> list[str]:
        seen.append(text)
        return [text]

    sentences = iterate_sentences("One.\n" + "Two.\n" * 100_000, language="en", splitter=recording)

    assert next(sentences) == Span(start=0, end=4)
    assert seen == ["One.\n"]


def test_long_line_has_the_same_sentences_as_short_lines() -> None:
    sentences = [f"This is number {number} of many sentences." for number in range(1000)]

    assert _sentences(" ".join(sentences)) == sentences


def test_fitting_sentence_stays_whole() -> None:
    assert _parts("Short enough.", at_most=13) == ["Short enough."]


def test_long_sentence_is_halved_after_the_clause_nearest_to_the_middle() -> None:
    parts = _parts("One, when it rained a little, we stayed at home, and slept.", at_most=40)

    assert parts == ["One, when it rained a little,", "we stayed at home, and slept."]


def test_sentence_without_clauses_is_halved_at_white_space() -> None:
    assert _parts("aaaa bbbb cccc dddd", at_most=10) == ["aaaa bbbb", "cccc dddd"]


def test_word_is_halved_between_characters() -> None:
    assert _parts("a" * 10, at_most=5) == ["aaaaa", "aaaaa"]


def test_chinese_clauses_need_no_white_space() -> None:
    assert _parts("今天下雨了，我们在家。", at_most=6) == ["今天下雨了，", "我们在家。"]


def test_cut_keeps_a_letter_with_its_accent() -> None:
    assert _parts("e\u0301" * 3, at_most=4) == ["e\u0301", "e\u0301" * 2]


def test_parts_without_a_letter_are_left_out() -> None:
    assert _parts("Stop" + "." * 100, at_most=10) == ["Stop.."]


def test_character_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="character at 0"):
        _parts("ab", at_most=0)


def test_join_copies_the_text_between_sentences() -> None:
    joined = join(" - a.  b!\n", [Span(start=3, end=5), Span(start=7, end=9)], ["Alpha.", ""])

    assert joined.text == " - Alpha.  \n"
    assert joined.spans == (Span(start=3, end=9), Span(start=11, end=11))


def test_join_separates_sentences_that_touch() -> None:
    spans = [Span(start=0, end=3), Span(start=3, end=6)]

    assert join("你好。再见。", spans, ["Hello.", "Bye."], separator=" ").text == "Hello. Bye."


def test_join_needs_a_target_for_each_sentence() -> None:
    with pytest.raises(ValueError, match="shorter"):
        join("a b", [Span(start=0, end=1), Span(start=2, end=3)], ["A"])


@pytest.mark.parametrize(
    ("source", "target", "separator"),
    [("zh-Hant", "en", " "), ("ja", "de", " "), ("JA", "zh", ""), ("en", "de", ""), ("en", "zh", "")],
)
def test_separator_is_a_space_from_languages_without_spaces(source: str, target: str, separator: str) -> None:
    assert separator_between(source, target) == separator


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("We waited for the bus 😀", "We waited for the bus"),
        ("👍🏽 Well done! 🎉🎉", "Well done!"),
        ("Thank you ❤️", "Thank you"),
        ("👨‍👩‍👧 My family", "My family"),
        ("Turn left →", "Turn left"),
        ("I ❤ you", "I ❤ you"),
    ],
)
def test_pictographs_at_the_edges_of_a_sentence_are_copied(text: str, sentence: str) -> None:
    (span,) = list(iterate_sentences(text, language="en"))

    assert text[span.start : span.end] == sentence


# `|` marks where a sentence ends and the next begins.
TABLE = [
    ("en", "Dr. Smith met Mr. Jones at 5 p.m. yesterday.|They talked."),
    ("en", "The U.S. economy grew by 3.5 percent.|Experts agreed."),
    ("en", "Fruits, e.g. apples, are cheap.|See fig. 3 for details."),
    ("en", "He asked: “Where are you going?”|She did not answer."),
    ("en", '"I am tired," she said.|"So am I," he replied.'),
    ("en", "Wait... what?|Yes!|Really?!|Of course."),
    ("en", "Write to me@a.example.com or see http://a.example/x?y=z.|Thank you."),
    ("en", "Version 2.0.1 costs $3.50.|It ships on Jan. 5."),
    ("de", "Am 1. Mai ist Feiertag.|Dann ruht die Arbeit."),
    ("de", "Dr. Müller und Prof. Schmidt kommen um 9 Uhr.|Sie bleiben lange."),
    ("de", "Es gibt Obst, z. B. Äpfel und Birnen.|Das kostet ca. 3,50 Euro."),
    ("de", "Das gilt z.B. für Hunde, d.h. nicht für Katzen.|Klar?"),
    ("de", "„Wo bist du?“|„Hier!“"),
    ("de", "Er zögerte … und ging.|Niemand sah ihn."),
    ("de", "Die 3. Auflage erschien im 19. Jahrhundert.|Sie ist vergriffen."),
    ("fr", "M. Dupont habite à Paris.|Il y travaille."),
    ("fr", "Qui est là ?|Moi !|Entrez donc."),
    ("fr", "« Où vas-tu ? »|« Nulle part. »"),
    ("fr", "Il a vu Mme. Martin, p. ex. hier.|Elle allait bien."),
    ("fr", "Cela coûte 3,50 euros.|C'est cher..."),
    ("es", "El Sr. López vive en Madrid.|Trabaja allí."),
    ("es", "¿Dónde está la Sra. García?|¡Aquí!"),
    ("es", "Ella dijo: «Ya voy».|Nadie la oyó."),
    ("es", "El 3.5 por ciento votó.|Los demás no."),
    ("es", "Bueno... no sé.|Tal vez."),
]


@pytest.mark.parametrize(("language", "marked"), TABLE)
def test_sentences_end_where_their_language_ends_them(language: str, marked: str) -> None:
    text = marked.replace("|", " ")

    spans = list(iterate_sentences(text, language=language))

    assert [text[span.start : span.end] for span in spans] == marked.split("|")


@pytest.mark.parametrize("language", ["en", "de", "fr", "es"])
@pytest.mark.parametrize("gap", ["\n\n", " \t", "\r\n", "\n- ", "\n\n\n* ", "\n1) "])
def test_gaps_between_paragraphs_belong_to_no_sentence(language: str, gap: str) -> None:
    text = f"Alpha.{gap}Beta."

    first, second = list(iterate_sentences(text, language=language))

    assert (text[: first.end], text[first.end : second.start], text[second.start :]) == ("Alpha.", gap, "Beta.")
