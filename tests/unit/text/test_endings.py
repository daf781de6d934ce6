import pytest

from dragoman_service.text.endings import corrected_ending


def _ending(source: str, target: str, languages: str = "en-de") -> str:
    source_language, _, target_language = languages.partition("-")
    return corrected_ending(source, target, source_language=source_language, target_language=target_language)


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
