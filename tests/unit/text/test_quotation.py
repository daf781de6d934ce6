import pytest

from dragoman_service.text.quotation import localized_marks, missing_marks


def _completed(source: str, target: str) -> str:
    for span, mark in reversed(missing_marks(source, target)):
        target = target[: span.start] + mark + target[span.end :]
    return target


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ('Setzen Sie den Wert auf "true".', "Set the value to true.", 'Set the value to "true".'),
        ("Das Modul „NumPy“ fehlt.", "The NumPy module is missing.", 'The "NumPy" module is missing.'),
        ("Das Modul „NumPy“ fehlt.", 'The "NumPy module is missing.', 'The "NumPy" module is missing.'),
        ("Wir sahen «Titanic» im Kino.", "We saw Titanic in the cinema.", 'We saw "Titanic" in the cinema.'),
        ("Die Taste „F5“ startet „Excel“.", "The F5 key starts Excel.", 'The "F5" key starts "Excel".'),
        ("Die Taste „F5“ startet „Excel“.", 'The "F5" key starts Excel.', 'The "F5" key starts "Excel".'),
        ("Der Ordner „⟦1⟧“ ist leer.", "The ⟦1⟧ folder is empty.", 'The "⟦1⟧" folder is empty.'),
        ("Die Stadt Rom und „Rom“ im Film.", "The city of Rom and Rom on film.", 'The city of Rom and "Rom" on film.'),
        ('Call "Save As Copy" now.', "Rufen Sie jetzt Save As Copy auf.", 'Rufen Sie jetzt "Save As Copy" auf.'),
        ('Use "-Wait" here.', "Verwenden Sie hier -Wait.", 'Verwenden Sie hier "-Wait".'),
        ("Die Version „2.0“ ist neu.", "Version 2.0 is new.", 'Version "2.0" is new.'),
    ],
)
def test_a_copied_text_gets_the_marks_of_its_source(source: str, target: str, expected: str) -> None:
    assert _completed(source, target) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ('"Wir kommen morgen", sagte er.', '"We come tomorrow, he said.', '"We come tomorrow", he said.'),
        ('"Wir kommen morgen," sagte er.', '"We come tomorrow, he said.', '"We come tomorrow," he said.'),
        ("„Ich mag Tee“, sagt Anna.", "“I like tea, Anna says.", '“I like tea", Anna says.'),
        (
            '"Das ist gut, aber teuer", sagt Max, der Koch.',
            '"That is good, but expensive, says Max, the cook.',
            '"That is good, but expensive", says Max, the cook.',
        ),
        (
            '"Alle kamen", erzählt der "Chef", der lacht.',
            '"All came, the "boss" says, laughing.',
            '"All came", the "boss" says, laughing.',
        ),
        (
            'Er sagt: "Wir gehen", aber er bleibt.',
            'He says: "We are going, but he stays.',
            'He says: "We are going", but he stays.',
        ),
    ],
)
def test_a_mark_before_a_comma_closes_a_quotation(source: str, target: str, expected: str) -> None:
    assert _completed(source, target) == expected


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ('Open "Edit text" now.', 'Öffnen Sie jetzt "Edit"-Text".'),
        ('The "Save copy" menu is new.', 'Das Menü "Save"-Kopie" ist neu.'),
    ],
)
def test_a_surplus_mark_within_a_compound_is_removed(source: str, target: str) -> None:
    assert _completed(source, target).count('"') == 2


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ('Er nannte es "schön".', "He called it nice."),  # the translation of the quoted text is unknown
        ('"Nein", sagte "er".', "No, he said."),
        ('Das "A" und das "A".', "The A and the B."),  # which one is unclear
        ('A 15" screen', "Ein 15-Zoll-Bildschirm"),
        ('Er sagte: "Ja".', 'He said: "Yes".'),
        ("« Oui », dit-il.", "Yes, he said."),
        ('"Ja", sagte er nach einer langen Pause.', '"Yes I do and we all know it well, ok.'),  # lengths differ
        ('"Wir gehen" sagte er.', '"We go, he said.'),
    ],
)
def test_marks_with_an_unclear_place_are_not_placed(source: str, target: str) -> None:
    assert missing_marks(source, target) == []


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ('"Hello, my friend.', "Hallo, mein Freund.", '"Hallo, mein Freund.'),
        ("“Hello, my friend.", "Hallo, mein Freund.", '"Hallo, mein Freund.'),
        ('The dog is here."', "Der Hund ist hier.", 'Der Hund ist hier."'),
        ("Der Hund ist hier.“", "The dog is here.", 'The dog is here."'),
        ("Ist er hier?“ ", "Is he here?", 'Is he here?"'),
        ('He said "hello.', "Er sagte hallo.", "Er sagte hallo."),
        ("We saw ” in", "Wir sahen", "Wir sahen"),
        ('" is a mark.', "ist ein Zeichen.", "ist ein Zeichen."),
        ('He is "here"."', "Er ist hier.", "Er ist hier."),
    ],
)
def test_the_mark_of_a_quotation_of_several_sentences_is_at_the_same_edge(
    source: str, target: str, expected: str
) -> None:
    assert _completed(source, target) == expected


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("We “saw” it", "de", {3: "„", 7: "“"}),
        ("He said hello” yesterday.", "de", {13: "“"}),
        ("He said “hello yesterday.", "de", {8: "„"}),
        ("Das Zeichen » ist neu.", "en", {}),
        ("We saw ”", "de", {}),
        ('We "saw" it', "de", {}),
        ("We “saw” it", "xx", {}),
    ],
)
def test_protected_marks_have_the_style_of_the_target_language(
    text: str, language: str, expected: dict[int, str]
) -> None:
    positions = [index for index, char in enumerate(text) if char in '"“”»']
    assert localized_marks(text, positions, target_language=language) == expected
