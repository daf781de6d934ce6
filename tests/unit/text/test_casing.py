import time

import pytest

from dragoman_service.text.casing import capitalized_like, capitals, is_in_capitals, lowered_words, sentence_case


@pytest.mark.parametrize(
    "text",
    [
        "DID YOU KNOW?", "COUNTRY", "GREEN", "YESTERDAY", "PLEASE READ THIS CAREFULLY.", "NO", "OFF", "YES", "GO",
        "STOP", "BITTE NICHT STÖREN", "ERBSENSUPPE", "AUS", "NEU", "STRASSE", "STRAßE", "SCHLAUCH", "USB PORT",
        "PDF VIEWER", "NATO SUMMIT", "LOUIS XIV", "DON'T", "E-MAIL", "\ufffc WAS DELETED", "LINE ONE\\nLINE TWO",
        "TERMS &amp; CONDITIONS", "SEE https://a.example/page FOR DETAILS", "ΚΑΛΗΜΕΡΑ", "ПРИВЕТ", "ÉTÉ CHAUD",
        "İSTANBUL", "E\u0301COLE", "1. OPEN THE FILE", "1ª CLASE", "PRZYCISK", "TSCHÜSS", "SAM ATE",
        "*** ATTENTION ***",
    ],
)  # fmt: skip
def test_ordinary_text_is_in_capitals(text: str) -> None:
    assert is_in_capitals(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "123", "你好", "\ufffc", "USB", "PDF", "EU", "UK", "IBM PC", "HTTP", "HTML CSS", "NASA", "UNESCO", "ASCII",
        "JSON API", "DSGVO", "KFZ", "XVIII", "BMW AG", "STVO", "IPHONE", "URLS", "CDS", "MAX_VALUE", "ISO 9001", "H2O",
        "MP3", "COVID-19", "U.S.A.", "A", "B 2", "CD-ROM", "README.TXT", "WARNING: do not open", "iPHONE", "Undo",
        "undo", "McDONALD", "\\n", "&AMP;", "WWW.EXAMPLE.COM",
    ],
)  # fmt: skip
def test_acronyms_identifiers_and_mixed_text_are_not_in_capitals(text: str) -> None:
    assert not is_in_capitals(text)


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        # Sentences.
        ("en", "Please read this carefully. You can stop at any time."),
        ("en", "Did you know? Yes! No… Maybe."),
        ("en", "Warning: do not open."),
        ("en", "1. Open the file\n2. Close it"),
        ("en", "Line one\\nLine two"),
        ("en", '"Stop." He ran.'),
        ("en", "\ufffc is missing. Open \ufffc and \ufffc."),
        ("en", "\ufffcImportant\ufffc text"),  # a tag is joined to its word
        ("fr", "C'est fini. L'eau et l'air"),
        ("ru", "Здравствуй, мир. Пока"),
        ("el", "Που ειναι ο δρομος; Εδω"),
        # Acronyms, numerals and words with digits.
        ("en", "Connect the USB cable to the PC"),
        ("en", "Download the PDF file (2 MB) via HTTPS"),
        ("en", "The NATO summit in the USA"),
        ("en", "World championship IX and chapter XIV"),
        ("en", "Convert MP3 to MP4 on the 20th"),
        ("en", "The US army helps us"),
        ("en", "All URLs and CDs, see the FAQs"),
        ("en", "CSS, HTTPS and DNS"),
        ("en", "Section B, a letter"),
        ("de", "Die DSGVO der EU und das ZDF"),
        ("fr", "L'OTAN et l'ONU"),
        ("cs", "Strč prst skrz krk"),  # words without vowels
        # English pronoun, names, languages, days and months.
        ("en", "If I'm late, I will call"),
        ("en", "We saw Tom and Mary on Monday"),
        ("en", "They speak French and Japanese in Canada"),
        ("en", "It is cold in New York in January"),
        ("en", "We may go in May or on 3rd March"),
        ("en", "The United States and the United Kingdom"),
        ("en", "Tom O'Brien met Dr. Weaver at eight o'clock"),
        ("en", "Tom's phone, not Mary's"),
        ("en", "Use Windows or Linux with Firefox"),
        ("en", "Charge your iPhone with PayPal and WhatsApp"),
        ("es", "Vivo en Madrid y uso Google"),
        # German nouns, verbs as nouns, and the formal pronoun.
        ("de", "Weitere Informationen zum Einkaufen"),
        ("de", "Die Katze schläft auf dem Sofa"),
        ("de", "Ich habe keine Zeit für deine Fragen"),
        ("de", "Das Essen ist fertig, wir wollen essen"),
        ("de", "Achtung: bitte geben Sie Ihr Passwort ein"),
        ("de", "Alle Rechte vorbehalten, z. B. die Übersetzung"),
        ("de", "Der Vertrag endet am 3. Mai"),
        ("de", "Tom hat Maria ein neues Fahrrad gekauft"),
        ("de", "Die Müller GmbH zahlt keine MwSt"),
        ("de", "Du weißt, dass er mich kennt"),
        # Addresses, escapes and references stay.
        ("en", "See https://A.EXAMPLE/B and ask ME@A.EXAMPLE"),
        ("en", "Open README.TXT on EXAMPLE.COM"),
        ("en", "Terms &amp; conditions"),
        ("en", "Set MAX_VALUE now"),
    ],
)
def test_sentence_case(language: str, expected: str) -> None:
    text = capitals(expected, language=language)
    # Letters that capitals do not restore.
    expected = expected.replace("weißt", "weisst")

    assert sentence_case(text, language=language) == expected


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("ISTANBUL IŞIK", "tr", "Istanbul ışık"),
        ("İYİ GÜNLER", "tr", "İyi günler"),
        ("DİQQƏT: ŞƏHƏR", "az", "Diqqət: şəhər"),
        ("İZMİR", "en", "İzmir"),
        ("GROẞE STRAẞE", "de", "Große Straße"),
        ("ΛΟΓΟΣ ΚΑΙ ΦΩΣ", "el", "Λογος και φως"),
        ("ǄEP I ǄEM", "hr", "ǅep i ǆem"),
        ("ᲒᲐᲛᲐᲠᲯᲝᲑᲐ", "ka", "გამარჯობა"),
        ("undo THIS iPhone", "en", "undo this iPhone"),
        ("", "en", ""),
    ],
)
def test_sentence_case_of_other_letters(text: str, language: str, expected: str) -> None:
    assert sentence_case(text, language=language) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DIE STRASSE", "Die Straße"),
        ("ZU FUSS GEHEN", "Zu Fuß gehen"),
        ("EIN GROSSER SPASS", "Ein großer Spaß"),
        ("BITTE SCHLIESSEN", "Bitte schließen"),
        ("ICH WEISS", "Ich weiß"),
        ("ES HEISST", "Es heißt"),
        ("AUSSERDEM", "Außerdem"),
        ("DRAUSSEN", "Draußen"),
        ("FLEISSIG", "Fleißig"),
        ("SÜSSE GRÜSSE", "Süße Grüße"),
        ("GROSSVATER", "Großvater"),
        ("ÄUSSERST", "Äußerst"),
        ("DREISSIG", "Dreißig"),
        ("REGELMÄSSIG", "Regelmäßig"),
    ],
)
def test_a_filler_gives_german_words_their_sharp_s(text: str, expected: str) -> None:
    result = sentence_case(text, language="de", filler="\x7f")

    assert len(result) == len(text)
    assert result.replace("\x7f", "") == expected


@pytest.mark.parametrize(
    "word",
    [
        "WASSER", "MÜSSEN", "KLASSE", "WISSEN", "DASS", "MESSE", "PASSWORT", "KÜSSE", "DIESSEITS", "AUSSEHEN",
        "SCHLUSS", "EINFLUSS", "INTERESSE", "ADRESSE",
    ],
)  # fmt: skip
def test_a_filler_keeps_double_s_after_a_short_vowel(word: str) -> None:
    assert "ß" not in sentence_case(word, language="de", filler="\x7f")


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Große Straße", "de", "GROSSE STRASSE"),
        ("iyi ışık", "tr", "İYİ IŞIK"),
        ("iki", "az", "İKİ"),
        ("information", "en", "INFORMATION"),
        ("été", "fr", "ÉTÉ"),
        ("Привет", "ru", "ПРИВЕТ"),
        ("café \ufffc", "en", "CAFÉ \ufffc"),
        ("one\\ntwo", "en", "ONE\\nTWO"),
        ("a &amp; b &#x20ac;", "en", "A &amp; B &#x20ac;"),
        ("see https://a.example/b now", "en", "SEE https://a.example/b NOW"),
        ("ask me@a.example", "en", "ASK me@a.example"),
        ("გამარჯობა", "ka", "გამარჯობა"),
    ],
)
def test_capitals(text: str, language: str, expected: str) -> None:
    assert capitals(text, language=language) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Undo", "undo"),
        ("Paste Special", "paste special"),
        ("Save as", "save as"),
        ("Left", "left"),
        ("Search...", "search..."),
        ("Open \ufffc", "open \ufffc"),
        ("(Cash)", "(cash)"),
        ("Wi-Fi", "wi-fi"),
        ("Don't Know", "don't know"),
        ("Train Here Now", "train here now"),
        ("I'm Here", "I'm here"),
        ("Meet Tom", "meet Tom"),
        ("Über uns", "über uns"),
    ],
)
def test_lowered_words(text: str, expected: str) -> None:
    assert lowered_words(text, language="en") == expected


@pytest.mark.parametrize(
    "text",
    [
        "undo", "PDF", "iPhone", "McDonald", "Mp3", "Open 3 Files", "One Two Three Four", "Berlin", "Monday", "Tom",
        "I", "", "...", "U.S. law", "Readme.txt", "Line\\nTwo", "A&amp;B",
    ],
)  # fmt: skip
def test_other_texts_are_not_lowered(text: str) -> None:
    assert lowered_words(text, language="en") is None


def test_lowered_words_follow_the_language() -> None:
    assert lowered_words("Islak", language="tr") == "ıslak"
    assert lowered_words("Rückgängig", language="de") == "rückgängig"


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("Undo", "rückgängig", "Rückgängig"),
        ("Left", "links", "Links"),
        ("“Yes”", "„ja“", "„Ja“"),
        ("Été", "été", "Été"),
        ("Ещё", "ещё", "Ещё"),
        ("Paste", "einfügen", "Einfügen"),
        ("(Cash)", "(bar)", "(Bar)"),
        ("¿Qué?", "was?", "Was?"),
        ("undo", "rückgängig", "rückgängig"),
        ("Undo", "Rückgängig", "Rückgängig"),
        ("Phone", "iPhone", "iPhone"),
        ("Acid", "pH-Wert", "pH-Wert"),
        ("\ufffc Undo", "\ufffc ist", "\ufffc ist"),
        ("Files", "3 dateien", "3 dateien"),
        ("3 Files", "dateien", "dateien"),
        ("", "a", "a"),
        ("A", "", ""),
        ("Escape", "\\nab", "\\nab"),
    ],
)
def test_capitalized_like(source: str, target: str, expected: str) -> None:
    assert capitalized_like(source, target) == expected


def test_capital_follows_the_language() -> None:
    assert capitalized_like("Good", "iyi", language="tr") == "İyi"
    assert capitalized_like("Ice", "ijs", language="nl") == "IJs"


@pytest.mark.parametrize(
    "part", ["A", "A.", "A.B", "I'", "@A", "A@", "\\N", "&A", "\ufffcA", "SS ", "WWW.", "HTTP://", "_", '."']
)
def test_time_is_linear(part: str) -> None:
    text = part * 10_000
    started_s = time.process_time()

    is_in_capitals(text)
    for language in ("en", "de", "fr"):
        sentence_case(text, language=language, filler="\x7f")
        capitals(text, language=language)
        lowered_words(text, language=language)

    assert time.process_time() - started_s < 5  # quadratic time takes minutes
