import pytest

from dragoman_export.data.cleaning import CleaningRules, SeenText
from dragoman_export.data.reader import Pair

ENGLISH = "The weather is nice today and we are going to the lake."
GERMAN = "Das Wetter ist heute schön, und wir gehen an den See."


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        (ENGLISH, GERMAN, None),
        ("Yes.", "Jawohl, mein Herr.", None),
        ("OK", "OK", None),
        ("Caf\ufffd", "Cafe", "encoding"),
        ("Cafe", "CafÃ©", "encoding"),
        ("It\u0007s", "Es ist", "encoding"),
        ("Tâche À la crème", "Aufgabe mit Sahne", None),
        ("a " * 20, "b " * 21, "too long"),
        ("Short.", "Ein Satz, der viel länger ist als das.", "length ratio"),
        ("one two three four", "one two three four", "copied"),
        ("Press <b>Start</b>.", "Drücken Sie <b>Start</b>.", None),
        ("Press <b>Start</b>.", "Drücken Sie Start.", "markup"),
        ("Use `ls`.", "Nutzen Sie ls.", "markup"),
        ("{name} is here.", "{nome} ist hier.", "markup"),
        ("x < 3 and y > 4", "x < 3 und y > 4", None),
        (GERMAN, GERMAN.upper(), "language"),
        (ENGLISH, ENGLISH[:-1], "language"),
    ],
)
def test_first_reason_that_applies(source: str, target: str, reason: str | None) -> None:
    rules = CleaningRules(max_words=20, max_copied_words=3, languages=("en", "de"))

    assert rules.reason(source, target) == reason


def test_languages_are_optional() -> None:
    assert CleaningRules().reason(GERMAN, GERMAN.upper()) is None


def test_share_of_labels_is_kept_and_depends_on_the_text_only() -> None:
    rules = CleaningRules(label_share=0.25)
    labels = [(f"Open file {number}", f"Datei {number} öffnen") for number in range(1000)]

    reasons = [rules.reason(*label) for label in labels]

    assert set(reasons) == {None, "label"}
    assert 200 < reasons.count(None) < 300
    assert [rules.reason(*label) for label in reversed(labels)] == reasons[::-1]
    assert all(rules.reason(f"{source} now", target) is None for source, target in labels)


def test_held_out_sides_and_repeated_pairs_are_recognised() -> None:
    def pair(source: str, target: str) -> Pair:
        return Pair(source=source, target=target, location="a:1")

    seen = SeenText([pair("Held out", "Zurückgehalten")])

    reasons = [
        seen.reason(pair(*sides))
        for sides in (("a", "b"), ("A ", "b"), ("a", "c"), ("held  OUT", "x"), ("y", "zurückgehalten"))
    ]

    assert reasons == [None, "duplicate", None, "held out", "held out"]
