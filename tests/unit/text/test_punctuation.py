import time

import pytest

from dragoman_service.text.endings import corrected_ending
from dragoman_service.text.punctuation import readable, restored_quotes, without_added_comma


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
        ("We saw ” in", 'Wir sahen " in', "Wir sahen ” in"),
        ("The « sign", 'Das Zeichen "', "Das Zeichen «"),
        ("“Come in.", '" Komm.', "„Komm."),
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
        ("(1939–1945)", "(1939 –1945)", "de", "(1939–1945)"),
        ("Mon–Fri", "Mo –Fr", "de", "Mo–Fr"),
        ("Mon–Fri, Sat–Sun", "Mo –Fr, Sa– So", "de", "Mo–Fr, Sa–So"),
        ("London–Paris", "London— Paris", "fr", "London—Paris"),
        ("Mo–Fr 8–18 Uhr", "Mo –Fr 8-18 h", "en", "Mo–Fr 8–18 h"),
        ("A – B", "A –B", "de", "A – B"),
        ("A – B", "A– B", "de", "A – B"),
        ("1–2 of 3-4", "1-2 von 3-4", "de", "1–2 von 3-4"),
        ("1-2 of 2–3", "1-2-3", "de", "1-2–3"),
        ("pages 12–15", "Seiten 12-15", "de", "Seiten 12–15"),
        ("a–b – c", "a –b – c", "de", "a –b – c"),  # it may be either
        ("a –b", "a –b", "de", "a –b"),  # as in the source
        ("pro– and con", "pro- und kontra", "de", "pro- und kontra"),
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
        ("\ufffc Bitte warten", "\ufffc, please wait", "\ufffc please wait"),
        ("\ufffc \ufffc Bitte warten", "\ufffc \ufffc, please wait", "\ufffc \ufffc please wait"),
        ("\ufffc, bitte warten", "\ufffc, please wait", "\ufffc, please wait"),
        ("Bitte warten", "Now, wait", "Now, wait"),
        ("\ufffc und ich", "Me, and \ufffc, not you", "Me, and \ufffc, not you"),
    ],
)
def test_a_comma_after_protected_spans_comes_from_the_source(source: str, target: str, expected: str) -> None:
    assert without_added_comma(source, target) == expected


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
