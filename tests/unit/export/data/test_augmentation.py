import re
from random import Random

import pytest

from dragoman_export.data.augmentation import (
    PLACEHOLDERS,
    TAGS,
    AugmentationConfig,
    augment,
    augment_all,
    translations_of,
)
from tests.unit.export.tiny_training import make_pairs

_ALL = AugmentationConfig(placeholders=0.5, tags=0.2, capitals=0.2, full_stops=0.2)
_PAIRS = [
    ("See `main.c` of Tom's files, 42 in all.", "Siehe `main.c` aus Toms Dateien, 42 insgesamt."),
    ('Write to "Ann" at ann@example.org!', "Schreibe an „Ann“ unter ann@example.org!"),
]


_TRANSLATIONS = {
    "house": frozenset(("haus", "hauses")),
    "garden": frozenset(("garten",)),
    "old": frozenset(("alte", "alten")),
    "tom": frozenset(("tom",)),
    "go": frozenset(("geh",)),
}


def drawn(source: str, target: str, **shares: float) -> set[tuple[str, str]]:
    """Return the variants of a pair over 300 epochs, whose two sides have the same placeholders."""
    random, config = Random(1), AugmentationConfig(**shares)  # noqa: S311
    found = {augment(source, target, config, random, _TRANSLATIONS) for _ in range(300)}
    assert all(sorted(marks(left)) == sorted(marks(right)) for left, right in found)
    return found


def marks(text: str) -> list[str]:
    return re.findall("⟦.+?⟧", text)


def numbered(pair: tuple[str, str]) -> tuple[str, str]:
    """Return the pair with {0}, {1} for its placeholders, in the order of the source."""
    source, target = pair
    for index, mark in enumerate(dict.fromkeys(marks(source))):
        source, target = (side.replace(mark, f"{{{index}}}") for side in (source, target))
    return source, target


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("Set `ID` of `x`.", "`x`: `ID` setzen.", {("Set {0} of {1}.", "{1}: {0} setzen.")}),
        (
            "Mail me@a.org or see https://a.org/b.",
            "Mail an me@a.org oder https://a.org/b.",
            {("Mail {0} or see {1}.", "Mail an {0} oder {1}.")},
        ),
        ("`a` and `a`", "`a` und `a`", {("{0} and {1}", "{0} und {1}")}),
        ("`a` and `a` and `b`", "`a` und `b`", {("`a` and `a` and {0}", "`a` und {0}")}),
        ("Use `a` here.", "Hier verwenden.", {("Use `a` here.", "Hier verwenden.")}),
        ("Press <b>`OK`</b>", "<b>`OK`</b> drücken", {("Press <b>{0}</b>", "<b>{0}</b> drücken")}),
    ],
)
def test_protected_spans_become_placeholders_on_both_sides(
    source: str, target: str, expected: set[tuple[str, str]]
) -> None:
    found = drawn(source, target, placeholders=1e-9)

    assert ({numbered(pair) for pair in found if marks(pair[0])} or found) == expected


@pytest.mark.parametrize(
    ("source", "target", "copied"),
    [
        ("Tom likes Visual Studio 2017.", "Tom mag Visual Studio 2017.", {"Tom", "Visual Studio 2017"}),
        ("I met Ann and Ann.", "Ich traf Ann und Ann.", set()),
        ("In 1969 the man was in Rom.", "In Rom war der Mann 1969.", {"1969", "Rom"}),
        ("Was it the end? Die!", "Was ist das Ende? Die!", {"Die"}),
        ("Run Write-Verbose now", "Jetzt Write-Verbose ausführen", set()),
        ("a b c", "a b c", set()),
    ],
)
def test_unique_names_and_numbers_become_placeholders(source: str, target: str, copied: set[str]) -> None:
    found = drawn(source, target, placeholders=0.99)

    assert {part for left, _ in found for part in copied if part not in left} == copied
    assert any(marks(left) for left, _ in found) == bool(copied)


def test_words_of_a_compound_become_separate_placeholders() -> None:
    assert any(marks(left) for left, _ in drawn("The HTTP API", "Die HTTP-API", placeholders=0.99))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("The house has a garden.", "Das Haus hat einen Garten.", {"", "house Haus", "garden Garten", "both"}),
        ("İİİ house", "Das Haus", {"", "house Haus"}),  # two letters each in lower case
        ("a house", "zwei Dinge", {""}),
        ("a house, a house", "ein Haus", {""}),
        ("a house", "ein Haus des Hauses", {""}),
        ("the old ones", "die alte und die alten", {""}),
        ("go home", "Geh heim", {""}),
        ("house-boat", "Haus", {""}),
        ("`house`", "`house` im Haus", {""}),
    ],
)
def test_only_mutual_translations_become_placeholders(source: str, target: str, expected: set[str]) -> None:
    replaced = set()
    for variant in drawn(source, target, placeholder_words=0.5):
        missing = [
            " ".join(word for word in re.findall(r"\w+", side) if word not in varied)
            for side, varied in zip((source, target), variant, strict=True)
        ]
        replaced.add("both" if len(marks(variant[0])) == 2 else " ".join(missing).strip())
    assert replaced == expected


def test_placeholders_do_not_overlap() -> None:
    found = drawn("Tom has a house", "Tom hat ein Haus", placeholders=0.9, placeholder_words=0.9)

    assert {numbered(pair) for pair in found} == {
        ("Tom has a house", "Tom hat ein Haus"),
        ("{0} has a house", "{0} hat ein Haus"),
        ("Tom has a {0}", "Tom hat ein {0}"),
        ("{0} has a {1}", "{0} hat ein {1}"),
    }


def test_translations_exclude_rare_and_frequent_words() -> None:
    pairs = [(f"The Tree{number % 200}!", f"Der Baum{number % 200}!") for number in range(1200)]

    found = translations_of(pairs, num_pairs=len(pairs))

    assert found == {f"tree{number}": {f"baum{number}"} for number in range(200)}


def test_all_placeholders_occur() -> None:
    found = drawn("Set `ID`", "`ID` setzen", placeholders=0.1)

    assert {left for left, _ in found} == {"Set `ID`", *(f"Set {mark}" for mark in PLACEHOLDERS)}


def test_number_of_placeholders_is_limited() -> None:
    source = " ".join(f"`a{number}`" for number in range(20))

    found = drawn(source, source, placeholders=1e-9)

    assert max(len(marks(left)) for left, _ in found) == 16
    assert all(left == right for left, right in found)


def test_tags_enclose_mutual_translations() -> None:
    found = drawn('Open the "old file" of Ann.', "Öffne die „alte Datei“ von Ann.", tags=1 - 1e-9)

    tagged = {
        (match[1], other[1])
        for left, right in found
        if (match := re.search(r"⟪\d⟫(.+)⟪/\d⟫", left)) and (other := re.search(r"⟪\d⟫(.+)⟪/\d⟫", right))
    }
    assert tagged == {
        ("old file", "alte Datei"),
        ("Ann", "Ann"),
        ('Open the "old file" of Ann', "Öffne die „alte Datei“ von Ann"),
    }
    assert {tag for left, _ in found for tag in re.findall("⟪.+?⟫", left)} == {tag for pair in TAGS for tag in pair}


@pytest.mark.parametrize(
    ("source", "target", "shares", "expected"),
    [
        ("Stop it.", "Hör auf.", {"full_stops": 0.5}, {("Stop it.", "Hör auf."), ("Stop it", "Hör auf")}),
        ("Stop it!", "Hör auf.", {"full_stops": 0.5}, {("Stop it!", "Hör auf.")}),
        ("And so on...", "Und so weiter...", {"full_stops": 0.5}, {("And so on...", "Und so weiter...")}),
        (
            "a large house",
            "ein großes Haus",
            {"capitals": 0.6},
            {
                ("a large house", "ein großes Haus"),
                ("A Large House", "ein großes Haus"),
                ("A LARGE HOUSE", "EIN GROSSES HAUS"),
            },
        ),
        ("the `id`", "die `id`", {"capitals": 0.6}, {("the `id`", "die `id`")}),
    ],
)
def test_full_stops_and_capitals(
    source: str, target: str, shares: dict[str, float], expected: set[tuple[str, str]]
) -> None:
    assert drawn(source, target, **shares) == expected


def test_augmentation_depends_on_seed_and_epoch() -> None:
    pairs = _PAIRS * 20

    first, again, other_seed, other_epoch = (
        list(augment_all(pairs, _ALL, seed=seed)) for seed in ((1, 2), (1, 2), (2, 2), (1, 3))
    )

    assert first == again
    assert first != other_seed
    assert first != other_epoch
    assert len(set(first)) > 20


def test_no_augmentation_by_default() -> None:
    pairs = _PAIRS + make_pairs(20)

    assert list(augment_all(pairs, AugmentationConfig(), seed=(1, 1))) == pairs
    assert AugmentationConfig().reserved == ()
    assert AugmentationConfig(placeholders=0.1).reserved == PLACEHOLDERS
    assert AugmentationConfig(placeholder_words=0.1).reserved == PLACEHOLDERS
    assert set(_ALL.reserved) == {*PLACEHOLDERS, *(piece for pair in TAGS for piece in pair)}


def test_variations_apply_to_pairs_of_sentences() -> None:
    pair = ('Tom\'s "house" costs 12 euros.', "Toms „Haus“ kostet 12 Euro.")

    found = drawn(*pair, numbers=0.3, symbols=0.2, endings=0.2, quotation_marks=0.2, single_words=0.1)

    assert pair in found
    assert ("house", "Haus") in found
    assert ("Tom’s “house” costs 12 euros.", pair[1]) in found
    assert any(left.startswith("[12:30] Tom") and right.startswith("[12:30] Tom") for left, right in found)
    assert len({left for left, _ in found}) > 100
    assert AugmentationConfig(single_words=0.1).needs_lexicon
    assert not AugmentationConfig(numbers=0.1).needs_lexicon


def test_variations_that_are_off_leave_a_run_unchanged() -> None:
    with_all = AugmentationConfig(placeholders=0.5, tags=0.2, capitals=0.2, full_stops=0.2, single_words=0.0)

    assert list(augment_all(_PAIRS, with_all, seed=(1, 2))) == list(augment_all(_PAIRS, _ALL, seed=(1, 2)))
