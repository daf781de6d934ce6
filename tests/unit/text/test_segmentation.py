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


def _parts(text: str, *, at_most: int) -> list[str]:
    spans = split_overlong(text, Span(start=0, end=len(text)), fits=lambda part: len(part) <= at_most)
    return [text[span.start : span.end] for span in spans]


# `|` marks where a sentence ends and the next begins.
TABLE = [
    ("en", "Dr. Smith is here.|He waits."),
    ("de", "1. Mai ist Feiertag."),
    *((language, "Am 3. Mai kam er.") for language in ("de", "de-AT", "DE")),  # the primary subtag decides
    *((language, "One here.|Two there.") for language in ("tlh", "", "x", "en_GB")),  # unknown
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
    assert _sentences(marked.replace("|", " "), language=language) == marked.split("|")


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\n\n \n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"])
def test_every_line_break_ends_a_sentence(line_break: str) -> None:
    assert _sentences(f"a line without an end{line_break}and another") == ["a line without an end", "and another"]


@pytest.mark.parametrize("marker", ["- ", "* ", "• ", "  –\t", "1) ", "(12) ", "a) ", "(b) ", "1. ", "\t"])
def test_list_markers_are_not_part_of_the_sentence(marker: str) -> None:
    assert _sentences(f"{marker}Buy milk\n\n{marker}Sell eggs\n") == ["Buy milk", "Sell eggs"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\ufeff\u200fHello.\u200e\x00", "Hello."),
        ("We waited for the bus 😀", "We waited for the bus"),
        ("👍🏽 Well done! 🎉🎉", "Well done!"),
        ("Thank you ❤️", "Thank you"),
        ("👨‍👩‍👧 My family", "My family"),
        ("Turn left →", "Turn left"),
        ("I ❤ you", "I ❤ you"),
    ],
)
def test_invisible_characters_and_pictographs_at_the_edges_are_outside_sentences(text: str, sentence: str) -> None:
    assert _sentences(text) == [sentence]


@pytest.mark.parametrize(
    "text", ["", " ", "\r\n\t\n", "...", "***\n---", "🎉 !?", "🎉 → 🎉", "\ufeff\u200b", ". " * 1000]
)
def test_text_without_letter_or_digit_has_no_sentence(text: str) -> None:
    assert list(iterate_sentences(text, language="en")) == []
    assert trim(text) == []


@pytest.mark.parametrize("text", ["Z\u2028.", "A\u3000. B", "A\xa0.", "I\u202f. am", "\ud800 Hello. \udfff"])
def test_text_that_crashes_the_library_is_split(text: str) -> None:
    assert _sentences(text)


class _PanicException(BaseException):
    """Named like the error of a crash in the Rust code of the library."""


_PanicException.__name__ = "PanicException"


def _panicking(language: str, text: str) -> list[str]:
    raise _PanicException


def _failing(language: str, text: str) -> list[str]:
    raise RuntimeError


@pytest.mark.parametrize(
    "splitter", [_panicking, _failing, lambda _, text: [text[1:]], lambda _, text: [], lambda _, text: ["", text, ""]]
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


CUTS = {
    "fits": ("Short enough.", 13, ["Short enough."]),
    "clause": (
        "One, when it rained a little, we stayed at home, and slept.",
        40,
        ["One, when it rained a little,", "we stayed at home, and slept."],
    ),
    "Chinese clause": ("今天下雨了，我们在家。", 6, ["今天下雨了，", "我们在家。"]),
    "white space": ("aaaa bbbb cccc dddd", 10, ["aaaa bbbb", "cccc dddd"]),
    "clause far from the middle": ("So, bbbb cccc dddd", 15, ["So, bbbb", "cccc dddd"]),
    "characters": ("a" * 10, 5, ["aaaaa", "aaaaa"]),
    "accents": ("e\u0301" * 3, 4, ["e\u0301", "e\u0301" * 2]),
    "part without letter": ("Stop" + "." * 100, 10, ["Stop.."]),
}


@pytest.mark.parametrize(("text", "at_most", "parts"), CUTS.values(), ids=CUTS)
def test_long_sentence_is_halved_at_the_best_cut_nearest_to_the_middle(
    text: str, at_most: int, parts: list[str]
) -> None:
    assert _parts(text, at_most=at_most) == parts


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
