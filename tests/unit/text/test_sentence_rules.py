"""What ends a sentence, language by language: `|` marks where one ends and the next begins."""

import pytest

from service.text.segmentation import split_sentences

TABLE = [
    ("en", "Dr. Smith met Mr. Jones at 5 p.m. yesterday.|They talked."),
    ("en", "The U.S. economy grew by 3.5 percent.|Nobody knew why."),
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

    spans = split_sentences(text, language=language)

    assert [text[span.start : span.end] for span in spans] == marked.split("|")


@pytest.mark.parametrize("language", ["en", "de", "fr", "es"])
@pytest.mark.parametrize("gap", ["\n\n", " \t", "\r\n", "\n- ", "\n\n\n* ", "\n1) "])
def test_what_is_between_paragraphs_belongs_to_no_sentence(language: str, gap: str) -> None:
    text = f"Alpha.{gap}Beta."

    first, second = split_sentences(text, language=language)

    assert (text[: first.end], text[first.end : second.start], text[second.start :]) == ("Alpha.", gap, "Beta.")
