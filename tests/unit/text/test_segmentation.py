import re
from collections.abc import Callable
from itertools import product

import pytest

from dragoman_service.datatypes import Span
from dragoman_service.text.segmentation import (
    ESCAPED_BREAKS,
    MAX_SENTENCE_CHARACTERS,
    iterate_sentences,
    join,
    separator_between,
    split_overlong,
    trim,
)


def _sentences(
    text: str, *, language: str = "en", ends: str | None = None, breaks: re.Pattern[str] | None = None
) -> list[str]:
    matches = re.finditer(ends, text) if ends else ()
    spans = [Span(start=match.start(), end=match.end()) for match in matches]
    return [
        text[span.start : span.end] for span in iterate_sentences(text, language=language, ends=spans, breaks=breaks)
    ]


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


WHOLE_ENGLISH = [
    "We sell fruit, e.g. apples and pears.",
    "Use a filter (e.g. Gmail) to sort mail.",
    "It is late, i.e. after ten.",
    "See No. 5 for details.",
    "He lives at No. 12 in our street.",
    "Chanel No. 5 is famous.",
    "It is England vs. France tonight.",
    "This is Microsoft vs. Apple again.",
    "It costs approx. 5 euros.",
    "Dr. Smith is here.",
    "I met Prof. Brown and Dr. Miller.",
    "Mr. and Mrs. Jones left.",
    "Ms. Green called.",
    "See Fig. 3 on the left.",
    "See fig. 3 on the left.",
    "Figs. 3 and 4 show it.",
    "See p. 12 and pp. 14-16.",
    "See Art. 5 of the law.",
    "See para. 3 of the contract.",
    "J. R. R. Tolkien wrote it.",
    "J.K. Rowling wrote it.",
    "George R. R. Martin wrote it.",
    "John F. Kennedy was president.",
    "C. S. Lewis knew T. S. Eliot.",
    "The U.S. Army arrived.",
    "The U.S. Senate voted.",
    "He left the U.K. Parliament.",
    "The U.N. Security Council met.",
    "She has a Ph.D. in physics.",
    "At 9 a.m. Monday we start.",
    "At 9 a.m. we start.",
    "Acme Inc. said so.",
    "Acme Inc. Chairman Smith said so.",
    "Smith & Co. Ltd. is closed.",
    "It ships on Jan. 5.",
    "On Sept. 11 it rained.",
    "On Feb. 3, Dec. 4 and Oct. 5 it snowed.",
    "St. John is a town.",
    "St. Peter's is in Rome.",
    "Mt. Everest is high.",
    "Gen. Lee and Col. Brown met Sgt. Pepper.",
    "Sen. Warren and Rep. Lee agreed.",
    "Gov. Brown spoke.",
    "Rev. King spoke.",
    "Capt. Cook and Lt. Kirk sailed.",
    "Sammy Davis Jr. sang.",
    "John Smith Jr. Esq. came.",
    "Vol. 3 is out.",
    "See vol. 3 and ch. 4.",
    "See Sec. 4 of the act.",
    "See Ch. 4 below.",
    "See Eq. 4 and Tab. 5.",
    "See Ref. 12 below.",
    "Smith et al. found this.",
    "Cf. Smith (2003) and cf. Jones.",
    "The office is at 5 Main St. Suite 4.",
    "It is 5 ft. long and 3 in. wide.",
    "It weighs 5 lbs. or more.",
    "Call ext. 5 or Tel. 12345.",
    "Max. 5 people and min. 3.",
    "It was built ca. 1900 by Smith.",
    "It was built c. 1900 by Smith.",
    "Born Dec. 25, he died Jan. 1.",
    "He works for the Dept. of Energy.",
    "The Univ. of Kent is large.",
    "Hon. Judge Smith spoke.",
    "Apples, pears, etc. are fruit.",
    "Washington, D.C. is large.",
    "In Washington, D.C. Smith lives.",
    "The E.U. Commission spoke.",
    "He came with Adm. Nelson.",
    "Ave. Foch is in Paris.",
    "Bldg. 5 is open.",
    "He is a.k.a. Bob.",
    "Order nos. 5 and 6.",
    "Approx. 5 people came.",
    "E.g. Apples.",
    "I.e. Peter.",
    "He said (cf. Smith) so.",
    "incl. VAT and excl. Shipping.",
    "P.S. I love you.",
    "P.O. Box 5 is closed.",
    "A.D. 79 was bad.",
    "In 44 B.C. Caesar died.",
]

WHOLE_GERMAN = [
    "Es gibt Obst, z. B. Äpfel.",
    "Es gibt Obst, z.B. Äpfel.",
    "Das heißt viel, d. h. Arbeit.",
    "Er mag u. a. Äpfel.",
    "Äpfel bzw. Birnen kosten viel.",
    "Siehe Abs. 3 Nr. 4 BGB dazu.",
    "Siehe Art. 5 GG dazu.",
    "Er wohnt in der Bahnhofstr. 5 in Ulm.",
    "Er wohnt in der Berliner Str. 5 in Ulm.",
    "Das kostet ca. 5 Euro.",
    "J. R. R. Tolkien schrieb es.",
    "St. Gallen ist schön.",
    "Siehe S. 12 dazu.",
    "Hrsg. Müller schrieb es.",
    "Die Hrsg. Schmidt und Müller kamen.",
    "Das gilt gem. § 3 nicht.",
    "Das ist i. d. R. Arbeit.",
    "Das ist i.d.R. Arbeit.",
    "Er kam am 3. Mai an.",
    "Friedrich II. war König.",
    "König Friedrich II. Preußens war klug.",
    "Am 24. Dezember feiern wir.",
    "Der 1. Platz ist frei.",
    "Das 20. Jahrhundert war lang.",
    "Im 3. Stock wohnt er.",
    "Er wurde 5. Sieger.",
    "Dr. Müller kam.",
    "Prof. Dr. Schmidt kam.",
    "Dipl.-Ing. Maier kam.",
    "Hr. Müller und Fr. Maier kamen.",
    "Die Fa. Müller liefert.",
    "Müller u. Co. KG liefert.",
    "Das ist sog. Recht.",
    "Vgl. Müller dazu.",
    "Siehe vgl. Schmidt.",
    "Das kostet 5 Euro zzgl. Versand.",
    "Das kostet 5 Euro inkl. Versand.",
    "Evtl. Fehler melden.",
    "Das sind evtl. Fehler.",
    "Das ist ggf. Arbeit.",
    "Die o. g. Punkte gelten.",
    "Er hat v. a. Hunger.",
    "Es ist z. T. Holz.",
    "Es ist z. Zt. Winter.",
    "Es sind u. U. Kosten.",
    "Das kostet 5 Mio. Euro.",
    "Das kostet 5 Mrd. Dollar.",
    "Das gilt lt. Vertrag.",
    "Das gilt lt. Müller.",
    "Nr. 5 lebt.",
    "Siehe Abb. 3 und Tab. 4.",
    "Siehe Kap. 3 und Bd. 2.",
    "Siehe Anm. Müller.",
    "Siehe Ziff. 5 dazu.",
    "Das sind max. 5 Tage, mind. Tage.",
    "Um 44 v. Chr. starb er.",
    "Cäsar n. Chr. Geburt.",
    "Das gilt i. V. m. Art. 5.",
    "Das war i. A. Müller.",
    "Oberst a. D. Müller kam.",
    "Tel. 12345 anrufen.",
    "Die 3. Aufl. Berlin ist alt.",
    "Geb. Müller ist sie.",
    "Anna Müller geb. Schmidt kam.",
    "Die Abt. Einkauf bestellt.",
    "Das Ministerium f. Arbeit.",
    "Das Hotel in Bad Homburg v. d. Höhe.",
    "Er kam Jan. 5 an.",
    "Am 5. Okt. kam er.",
    "Uhrzeit Mo. bis Fr. von 8 bis 12.",
    "Bitte bspw. Äpfel kaufen.",
    "Das ist insb. Arbeit.",
    "Das ist insbes. Arbeit.",
    "Die Parteien i. S. d. Gesetzes.",
    "Das ist ders. Autor.",
    "Das steht a. a. O. Seite 5.",
    "Er zahlt p. a. Zinsen.",
    "Die GmbH & Co. KG haftet.",
    "Das ist Art. 3 Abs. 1 S. 2 GG.",
    "Das sind §§ 3 ff. BGB.",
    "Das ist usw. und so weiter.",
    "Das ist allg. Recht.",
    "Das ist bes. Recht.",
    "Er arbeitet im Bereich d. Technik.",
    "Das ist öffentl. Recht.",
    "Das ist ehem. Militär.",
    "Das ist vorl. Recht.",
    "Das ist ev. Kirche.",
    "Das ist kath. Kirche.",
    "Hl. Martin hilf.",
    "Der hl. Martin hilft.",
    "Das war 5 Min. Arbeit.",
    "Das war 5 Std. Arbeit.",
    "Es ist 5 km entf. Ulm.",
    "Ing. Müller und Mag. Huber kamen.",
]

# `|` marks where a sentence ends and the next begins.
ENGLISH_ENDS = [
    "We saw apples, etc.|The next one came.",
    "It left at 5 p.m.|He slept.",
    "He lives in the U.S.|He likes it.",
    "Is it here?|No.|I do not know.",
    "The answer is no.|I do not know.",
    "The answer is no.|We must go.",
    "No. 5 is here.|No. 6 is there.",
    "She has a Ph.D.|She works.",
    "He works at Acme Inc.|He likes it.",
    "I like plan B.|It works.",
    "He got an A.|She got a B.",
    "It is 5 in.|The rest is gone.",
    "It was 44 B.C.|The king died.",
    "Open at 9 a.m.|We wait.",
    "He came in Jan.|The rest came later.",
    "He lives on Main St.|The house is red.",
    "So did Sammy Davis Jr.|The crowd cheered.",
    "It was written by Smith et al.|The paper is long.",
    "See p. 5.|It is short.",
    "Give me vitamin C.|It helps.",
    "He weighs 150 lbs.|She weighs less.",
    "It measures 5 ft.|It is long.",
    "We meet on Mon.|The room is open.",
    "Say no.|Then go.",
    "He lives in the U.K.|They moved.",
    "Buy milk, eggs etc.|Then come home.",
    "Write to Acme Corp.|They will answer.",
    "He is No. 1.|She is No. 2.",
    "It was World War II.|Many died.",
    "It is fig.|The other is a plum.",
    "Meet Henry VIII.|He was king.",
]

GERMAN_ENDS = [
    "Er kam um 5 Uhr usw.|Dann ging er.",
    "Äpfel, Birnen usw.|Der Rest fehlt.",
    "Äpfel, Birnen usw.|Kunden warten.",
    "Äpfel etc.|Der Rest fehlt.",
    "Es kostet 5 Euro inkl. MwSt.|Der Versand ist frei.",
    "Das war Friedrich II.|Er war König.",
    "Er wurde 3.|Sie wurde 4.",
    "Das war 44 v. Chr.|Danach kam Augustus.",
    "Siehe S. 12.|Dort steht es.",
    "Das gilt s. o.|Der Rest nicht.",
    "Er wohnt in der Bahnhofstr.|Sie wohnt hier.",
    "Wir kaufen Äpfel o. Ä.|Dann gehen wir.",
    "Das ist Plan B.|Er ist gut.",
    "Er hat 5 Mio.|Sie hat nichts.",
    "Es dauert 5 Min.|Dann geht es.",
    "Er kam 2005.|Sie kam 2006.",
    "Er kam am 3.|Sie kam am 4.",
    "Wir kommen Mo.|Die anderen kommen Di.",
    "Das ist die Müller GmbH.|Sie liefert.",
    "Er hat die Nr. 5.|Sie hat die Nr. 6.",
    "Nein.|Das geht nicht.",
    "Das ist § 3.|Er gilt.",
    "Äpfel, Birnen u. v. m.|Wir liefern.",
    "Er wohnt in Frankfurt a. M.|Sie auch.",
    "Er kam, sah usw.|Sie auch.",
    "Fehler dieser Art.|Das ist neu.",
]


_WHOLE = [*product(["en"], WHOLE_ENGLISH), *product(["de"], WHOLE_GERMAN)]
_ENDS = [*product(["en"], ENGLISH_ENDS), *product(["de"], GERMAN_ENDS)]


@pytest.mark.parametrize(("language", "sentence"), _WHOLE)
def test_abbreviations_do_not_end_a_sentence(language: str, sentence: str) -> None:
    assert _sentences(sentence, language=language) == [sentence]


@pytest.mark.parametrize(("language", "marked"), _ENDS)
def test_sentences_end_after_an_abbreviation_or_a_number(language: str, marked: str) -> None:
    assert _sentences(marked.replace("|", " "), language=language) == marked.split("|")


@pytest.mark.parametrize("label", ["approx.", "vol.", "Vol.", "ch.", "para.", "figs.", "eq.", "nos.", "p.", "ext."])
@pytest.mark.parametrize("number", ["5", "12", "300"])
def test_english_label_of_a_number_does_not_end_a_sentence(label: str, number: str) -> None:
    text = f"This is {label} {number} of the set. It is new."

    assert _sentences(text) == [text.removesuffix(" It is new."), "It is new."]


@pytest.mark.parametrize(
    "abbreviation", ["inkl.", "zzgl.", "bspw.", "insb.", "z. B.", "d.h.", "ehem.", "mind.", "sog."]
)
@pytest.mark.parametrize("noun", ["Äpfel", "Versand", "Kosten"])
def test_german_abbreviation_before_a_noun_does_not_end_a_sentence(abbreviation: str, noun: str) -> None:
    text = f"Wir liefern {abbreviation} {noun} nach Ulm. Das ist neu."

    assert _sentences(text, language="de") == [text.removesuffix(" Das ist neu."), "Das ist neu."]


@pytest.mark.parametrize("day", [1, 3, 12, 20, 31])
@pytest.mark.parametrize("month", ["Januar", "Mai", "August", "Dezember"])
@pytest.mark.parametrize("words", ["Wir kommen am {}. {} an.", "Der {}. {} ist frei.", "Es war der Abend, {}. {}."])
def test_german_date_does_not_end_a_sentence(day: int, month: str, words: str) -> None:
    text = words.format(day, month)

    assert _sentences(text, language="de") == [text]


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("Name\tAge\tCity", ["Name", "Age", "City"]),
        ("Copy\tCtrl+C", ["Copy", "Ctrl+C"]),
        ("Open file\t\tCtrl+O\nClose\tAlt+F4", ["Open file", "Ctrl+O", "Close", "Alt+F4"]),
        ("A    B    C", ["A", "B", "C"]),
        ("Price   Amount\xa0\xa0\xa0Total", ["Price", "Amount", "Total"]),
        ("Hello.   World.", ["Hello.", "World."]),
        ("Two  spaces are within a sentence.", ["Two  spaces are within a sentence."]),
        ("a)\tBuy milk\nb)\tSell eggs", ["Buy milk", "Sell eggs"]),
        ("1.\tBuy milk\n2.\tSell eggs", ["Buy milk", "Sell eggs"]),
        ("    indented text", ["indented text"]),
    ],
)
def test_tabs_and_columns_end_a_sentence(text: str, cells: list[str]) -> None:
    assert _sentences(text) == cells


@pytest.mark.parametrize("gap", ["\t", "\t\t", "   ", " \t ", "      ", "\xa0\xa0\xa0"])
@pytest.mark.parametrize("cells", [["First name", "City"], ["Left", "Right", "Up"], ["Undo", "Ctrl+Z"]])
def test_each_cell_is_a_sentence(gap: str, cells: list[str]) -> None:
    assert _sentences(gap.join(cells)) == cells


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (r"Line one\nLine two", ["Line one", "Line two"]),
        (r"Name:\tAge", ["Name:", "Age"]),
        (r"\n\nHello\r\nWorld\n", ["Hello", "World"]),
        (r"Do it now.\nThen call %1$s\nat %2$s.", ["Do it now.", "Then call %1$s", "at %2$s."]),
        (r"Q:\nWhat is it?", ["Q:", "What is it?"]),
        (r"a)\tBuy milk", ["Buy milk"]),
        (r"An escaped \\n is text", [r"An escaped \\n is text"]),
        (r"A backslash \\\n and a break", ["A backslash", "and a break"]),
        (r"Save it in C:\notes now", [r"Save it in C:\notes now"]),
        (r"Open docs\readme.txt now", [r"Open docs\readme.txt now"]),
        (r"Write \textbf{word} here", [r"Write \textbf{word} here"]),
        (r"Press \u0041 here", [r"Press \u0041 here"]),
    ],
)
def test_escaped_breaks_end_a_sentence(text: str, sentences: list[str]) -> None:
    assert _sentences(text, breaks=ESCAPED_BREAKS) == sentences


def test_escaped_breaks_are_text_by_default() -> None:
    assert _sentences(r"Line one\nLine two") == [r"Line one\nLine two"]


@pytest.mark.parametrize("bar", ["|", "||||", "<br>", "<br/><br/>"])
@pytest.mark.parametrize("gap", ["", " "])
def test_ranges_end_a_sentence_and_belong_to_none(bar: str, gap: str) -> None:
    text = gap.join(["One file", bar, "Many files", bar, "No. 5 is here. It is new."])

    sentences = _sentences(text, ends=r"(?:\||<br/?>)+")

    assert sentences == ["One file", "Many files", "No. 5 is here.", "It is new."]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("1. Eggs<br>2. Milk", ["Eggs", "Milk"]),
        ("<br>5. Mai", ["5. Mai"]),
        ("One<br><br><br>", ["One"]),
        ("<br>", []),
        ("a<br>- b<br>1) c", ["a", "b", "c"]),
    ],
)
def test_text_after_a_range_is_a_line(text: str, sentences: list[str]) -> None:
    assert _sentences(text, language="de", ends="<br>") == sentences


@pytest.mark.parametrize(
    "part", ["|a", "a. ", "z. B. ", "A. Die ", "usw. ", "no. ", r"\n", "\\", "\t", "   ", "J. R. ", "1. Mai "]
)
@pytest.mark.parametrize("language", ["de", "en"])
def test_repetitive_text_is_split_completely(part: str, language: str) -> None:
    text = part * 2_000

    spans = list(iterate_sentences(text, language=language, breaks=ESCAPED_BREAKS))

    assert join(text, spans, [text[span.start : span.end] for span in spans]).text == text


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
