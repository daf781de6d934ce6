import time

import pytest

from dragoman_service.text.punctuation import corrected_ending, readable, restored_quotes


def _ending(source: str, target: str, languages: str = "en-de") -> str:
    source_language, _, target_language = languages.partition("-")
    return corrected_ending(source, target, source_language=source_language, target_language=target_language)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("“yes”", '"yes"'),
        ("„ja“", '"ja"'),
        ("»ja«", '"ja"'),
        ("« oui »", '" oui "'),
        ("‹a›", '"a"'),
        ("‘a’", "'a'"),
        ("‚a‘", "'a'"),
        ("Tom’s", "Tom's"),
        ("a – b", "a - b"),
        ("a—b", "a-b"),
        ("−5", "-5"),
        ("a‑b", "a-b"),
        ("a‐b", "a-b"),
        ("wait…", "wait."),
        ("a\xa0b", "a b"),
        ("a\u202fb\u2009c", "a b c"),
        ("5′ 6″", "5' 6\""),
        ("「a」", '"a"'),
        ("plain - \"text\" 'here'...", "plain - \"text\" 'here'..."),
        ("5 € → ü 好", "5 € → ü 好"),
        ("", ""),
    ],
)
def test_marks_outside_the_vocabulary_become_readable(text: str, expected: str) -> None:
    assert readable(text, lambda char: char.isascii()) == expected


def test_marks_in_the_vocabulary_stay() -> None:
    assert readable("“a” – „b“…", lambda char: char in '“”–"-') == '“a” – "b“…'


def test_a_mark_without_a_spelled_replacement_stays() -> None:
    assert readable("“a” – b", lambda char: char.isalnum()) == "“a” – b"
    assert readable("“a”", lambda char: char in "a'") == "'a'"  # the second choice


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", "“a”"),
        ("en-GB", "“a”"),
        ("de", "„a“"),
        ("de-AT", "„a“"),
        ("de-CH", "«a»"),
        ("fr", "«\xa0a\xa0»"),
        ("es", "«a»"),
        ("it", "«a»"),
        ("pl", "„a”"),
        ("sv", "”a”"),
        ("da", "”a”"),
        ("nl", "“a”"),
        ("cs", "„a“"),
        ("ru", "«a»"),
        ("ja", "「a」"),
        ("zh", "“a”"),
        ("zh-TW", "「a」"),
        ("pt", "“a”"),
        ("pt-PT", "«a»"),
        ("hu", "„a”"),
        ("xx", "“a”"),
        ("", "“a”"),
    ],
)
def test_straight_quotes_become_those_of_the_target_language(language: str, expected: str) -> None:
    assert restored_quotes("“x”", '"a"', target_language=language) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("He said “yes”.", 'Er sagte "ja".', "Er sagte „ja“."),
        ("“Yes,” he said, “now.”", '"Ja", sagte er, "jetzt".', "„Ja“, sagte er, „jetzt“."),
        ("“A” (“B”)", '"A" ("B")', "„A“ („B“)"),
        ("“A”–“B”", '"A"-"B"', "„A“-„B“"),
        ("»A« and »B«", '"A" und "B"', "„A“ und „B“"),
        ("“A” and “B”", 'nur "A"', "nur „A“"),  # other numbers
        ("“\ufffc”", '"\ufffc"', "„\ufffc“"),
        ("“A", '"A', "„A"),
        ("A”", 'A"', "A“"),
        ("“A”", "„A“", "„A“"),  # already typographic
        ('"A"', '"A"', '"A"'),  # straight in the source
        ("A", '"A"', '"A"'),
        ('“A” and "B"', '"A" und "B"', '„A“ und "B"'),
        ("“A” of 5″", '"A" von 5"', "„A“ von 5″"),
        ('“A” or "B"', '"A"', '"A"'),  # which one is unclear
    ],
)
def test_double_quotes(source: str, target: str, expected: str) -> None:
    assert restored_quotes(source, target, target_language="de") == expected


@pytest.mark.parametrize(
    ("source", "target", "language", "expected"),
    [
        ("Tom’s car", "l'auto", "fr", "l’auto"),
        ("l’eau", "don't", "en", "don’t"),
        ("the ‘best’", "das 'beste'", "de", "das ‚beste‘"),
        ("das ‚beste‘", "the 'best'", "en", "the ‘best’"),
        ("don’t ‘go’", "c'est 'va'", "fr", "c’est “va”"),
        ("the boys’ room", "Jans' Zimmer", "de", "Jans’ Zimmer"),
        ("Tom's", "l'auto", "fr", "l'auto"),
        ("Tom’s and Jim's", "l'auto", "fr", "l'auto"),
        ("“a”", "l'auto", "fr", "l'auto"),
        ("a 5′ wall", "eine 5' Wand", "de", "eine 5′ Wand"),
    ],
)
def test_apostrophes_and_single_quotes(source: str, target: str, language: str, expected: str) -> None:
    assert restored_quotes(source, target, target_language=language) == expected


@pytest.mark.parametrize(
    ("source", "target", "language", "expected"),
    [
        ("a — b", "a - b", "de", "a – b"),
        ("a – b", "a - b", "de", "a – b"),
        ("a – b", "a - b", "en", "a – b"),
        ("a — b", "a - b", "fr", "a — b"),
        ("a—b", "a-b", "de", "a – b"),
        ("a—b", "a-b", "fr", "a—b"),
        ("a — b — c", "a - b", "de", "a – b"),
        ("a — b", "a - b - c", "de", "a - b - c"),  # one of them is another dash
        ("well-known — a", "gut-bekannt - a", "de", "gut-bekannt – a"),
        ("1939–1945", "1939-1945", "de", "1939–1945"),
        ("−5 °C", "-5 °C", "de", "−5 °C"),
        ("a - b", "a - b", "de", "a - b"),
        ("Wait… what", "Warte... was", "de", "Warte… was"),
        ("Wait... what", "Warte... was", "de", "Warte... was"),
    ],
)
def test_dashes_and_ellipses(source: str, target: str, language: str, expected: str) -> None:
    assert restored_quotes(source, target, target_language=language) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        # Ellipses.
        ("Search...", "Suchen.", "Suchen..."),
        ("Loading…", "Laden.", "Laden…"),
        ("Please wait...", "Bitte warten", "Bitte warten..."),
        ("Save as…", "Speichern.", "Speichern…"),
        ("Wait…", "Warte...", "Warte…"),
        ("Wait...", "Warte…", "Warte..."),
        ("Wait ...", "Warte.", "Warte ..."),
        ("Open \ufffc…", "\ufffc öffnen.", "\ufffc öffnen…"),
        # Questions and exclamations.
        ("Really?!", "Wirklich?", "Wirklich?!"),
        ("Stop!!!", "Halt!", "Halt!!!"),
        ("What??", "Was?", "Was??"),
        ("Yes!", "Ja!!!", "Ja!"),
        ("What is this?", "Was ist das.", "Was ist das?"),
        ("Who", "Wer?", "Wer"),
        ("Is it 5?", "Ist es 5.", "Ist es 5?"),
        # Full stops.
        ("Hello world.", "Hallo Welt!", "Hallo Welt."),
        ("Hello", "Hallo.", "Hallo"),
        ("I go.", "Ich gehe", "Ich gehe."),
        ("In 2018.", "Im Jahr 2018", "Im Jahr 2018."),
        ("Value \ufffc", "Wert \ufffc.", "Wert \ufffc"),
        ("\ufffc left.", "\ufffc", "\ufffc."),
        # Others.
        ("Name:", "Name", "Name:"),
        ("Dear Sir,", "Sehr geehrter Herr", "Sehr geehrter Herr,"),
        ("a;", "b.", "b;"),
        ("Note -", "Hinweis:", "Hinweis -"),
        ("Note –", "Hinweis.", "Hinweis –"),
        ("Note —", "Hinweis.", "Hinweis –"),
        ("Hi ;)", "Hallo;", "Hallo ;)"),
        ("Bye! :)", "Tschüss.", "Tschüss! :)"),
        ("See you :-)", "Bis dann )", "Bis dann :-)"),
        ("Fine :D", "Gut", "Gut :D"),
        ("What?\n", "Was.\n", "Was?\n"),
        ("One. Two?", "Eins. Zwei.", "Eins. Zwei?"),
    ],
)
def test_the_target_ends_like_the_source(source: str, target: str, expected: str) -> None:
    assert _ending(source, target) == expected
    assert _ending(source, expected) == expected


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("apples, etc.", "Äpfel usw."),
        ("apples, etc.", "Äpfel und so weiter"),
        ("apples and so on", "Äpfel usw."),
        ("Smith Inc", "Smith Inc."),
        ("at 5 pm", "um 5 p. m."),
        ("on the 3rd", "am 3."),
        ("Henry the Second", "Heinrich II."),
        ("e.g.", "z. B."),
        ("for example", "z. B."),
        ("the US", "die U.S."),
        ("Part No.", "Teil-Nr."),
        ("AT&amp;T &lt;", "AT&amp;T &lt;"),
        ("Hi :smile:", "Hallo :smile:"),
    ],
)
def test_the_stop_of_an_abbreviation_or_ordinal_is_kept(source: str, target: str) -> None:
    assert _ending(source, target) == target


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ('He said "Stop!"', 'Er sagte "Stopp".', 'Er sagte "Stopp!"'),
        ('He said "no."', 'Er sagte "nein".', 'Er sagte "nein".'),  # the German place
        ("“Stop!”", "„Halt.“", "„Halt!“"),
        ('He said "Hello?"', 'Er sagte "Hallo?', 'Er sagte "Hallo?"'),
        ("He said “Hello?”", "Er sagte „Hallo?", "Er sagte „Hallo?“"),
        ("(See below.)", "(Siehe unten)", "(Siehe unten.)"),
        ("(See below.)", "(Siehe unten.", "(Siehe unten.)"),
        ("(see below).", "(siehe unten)", "(siehe unten)."),
        ("(optional)", "(optional).", "(optional)"),
        ("**Stop!**", "**Halt.**", "**Halt!**"),
        ("[Wait…]", "[Warte.]", "[Warte…]"),
        ("Stop!", 'Er rief "Halt."', 'Er rief "Halt!"'),
    ],
)
def test_marks_beside_closing_quotes_and_brackets(source: str, target: str, expected: str) -> None:
    assert _ending(source, target) == expected


@pytest.mark.parametrize(
    ("languages", "source", "target", "expected"),
    [
        ("en-es", "What?", "Qué.", "¿Qué?"),
        ("en-es", "What is it?", "¿Qué es.", "¿Qué es?"),
        ("en-es", "Hi. Stop!", "Hola. Alto.", "Hola. ¡Alto!"),
        ("en-es", "Hello.", "¡Hola!", "Hola."),
        ("es-en", "¿Qué?", "What.", "What?"),
        ("en-fr", "Stop!", "Arrêtez.", "Arrêtez\u202f!"),
        ("en-fr", "Really?", "Vraiment ?", "Vraiment ?"),
        ("en-fr", "Name:", "Nom", "Nom\xa0:"),
        ("en-fr", "Done.", "Fini !", "Fini."),
        ("en-fr", "“Stop!”", "« Halte. »", "« Halte\u202f! »"),
        ("en-fr-CA", "What?", "Quoi.", "Quoi?"),
        ("fr-en", "Quoi ?", "What.", "What?"),
        ("fr-en", "Quoi ?", "What?", "What?"),
        ("en-ja", "Wait.", "待って", "待って。"),
        ("en-ja", "Wait!", "待って。", "待って！"),
        ("en-ja", "Wait…", "待って。", "待って…"),
        ("en-zh", "What?", "什么。", "什么？"),
        ("en-zh", "Wait...", "等等。", "等等……"),
        ("en-zh", "Name:", "名称", "名称："),
        ("en-zh", "What?", "什么?", "什么?"),
        ("en-zh", "Fine?", "OK.", "OK?"),
        ("zh-en", "你好？", "Hello.", "Hello?"),
        ("zh-en", "等等……", "Wait.", "Wait…"),
        ("zh-en", "你好。", "Hello.", "Hello."),
        ("en-ar", "What?", "ماذا.", "ماذا؟"),
        ("ar-en", "ماذا؟", "What.", "What?"),
        ("en-ur", "Yes.", "ہاں", "ہاں۔"),
        ("en-el", "What?", "Τι.", "Τι;"),
        ("el-en", "Τι;", "What.", "What?"),
        ("en-hi", "Good.", "ठीक", "ठीक।"),
        ("en-hi", "Good.", "ठीक।", "ठीक।"),
        ("en-ko", "What?", "뭐.", "뭐?"),
        ("de-en", "am 3.", "on the 3rd", "on the 3rd"),
        ("de-en", "Äpfel usw.", "apples etc", "apples etc"),
        ("en-th", "What?", "อะไร", "อะไร"),
        ("xx-de", "What?", "Was.", "Was."),
        ("en-", "What?", "Was.", "Was."),
    ],
)
def test_marks_follow_the_target_language(languages: str, source: str, target: str, expected: str) -> None:
    assert _ending(source, target, languages) == expected
    assert _ending(source, expected, languages) == expected


@pytest.mark.parametrize(
    ("source", "target"),
    [("", "a."), ("a.", ""), ("...", "a."), ("a?", "."), (f"a{'!' * 40}", "b."), ("a.", f"b{'!' * 40}"), ("(:", ":(")],
)
def test_texts_without_words_or_with_many_marks_do_not_change(source: str, target: str) -> None:
    assert _ending(source, target) == target


@pytest.mark.parametrize(
    "part", ['"', "“", "-", " - ", "a-b", "'", "!", "a!", "a. ", "(", "a (", ".", "a ", " ", "&", ":a", "…"]
)
def test_time_is_linear(part: str) -> None:
    text = part * 20_000
    started_s = time.process_time()

    readable(text, str.isascii)
    for source, target in (("“x” — ‘y’… (z)!", text), (text, "'x' - \"y\"."), (f"{text}z)!", "z"), ("a?", f"{text}z.")):
        for language in ("de", "es", "fr", "zh"):
            restored_quotes(source, target, target_language=language)
            corrected_ending(source, target, source_language="en", target_language=language)

    assert time.process_time() - started_s < 5  # quadratic time takes minutes
