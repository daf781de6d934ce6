"""Variations keep both sides of a pair in agreement."""

import re
from collections.abc import Callable
from random import Random

import pytest

from dragoman_export.data.variation import (
    single_word,
    with_ending,
    with_names,
    with_numbers,
    with_other_quotation_marks,
    with_symbols,
)

Vary = Callable[[str, str, Random], tuple[str, str]]


def drawn(vary: Vary, source: str, target: str) -> set[tuple[str, str]]:
    random = Random(1)  # noqa: S311
    return {vary(source, target, random) for _ in range(400)}


@pytest.mark.parametrize(
    ("source", "target", "patterns"),
    [
        ("It has 12 rooms.", "Es hat 12 Zimmer.", (r"It has (\d+) rooms\.", r"Es hat (\d+) Zimmer\.")),
        ("Pay 1,250.75 now", "Zahle 1.250,75 jetzt", (r"Pay (\d,\d{3}\.\d\d) now", r"Zahle (\d\.\d{3},\d\d) jetzt")),
        ("On 12.5.2021", "Am 12.5.2021", (r"On (\d\d\.\d\.\d{4})", r"Am (\d\d\.\d\.\d{4})")),
        ("(45)", "45!", (r"\((\d+)\)", r"(\d+)!")),
    ],
)
def test_numbers_get_the_same_digits_on_both_sides(source: str, target: str, patterns: tuple[str, str]) -> None:
    found = drawn(with_numbers, source, target)

    assert len(found) > 50
    for left, right in found:
        numbers = [re.fullmatch(pattern, text) for pattern, text in zip(patterns, (left, right), strict=True)]
        first, second = ("".join(filter(str.isdigit, match[1])) for match in numbers if match)
        assert first == second
        assert first[0] != "0"
        assert int(first) >= 2


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("1 file", "1 Datei"),
        ("0 files", "0 Dateien"),
        ("2 of 2 files", "2 von 2 Dateien"),
        ("12 files", "zwölf Dateien"),
        ("version v12", "Version v12"),
        ("at 12:30", "um 12:30"),
        ("COVID-19", "COVID-19"),
        ("A4-12", "A4-12"),
        ("⟦12⟧ and ⟪3⟫", "⟦12⟧ und ⟪3⟫"),
        ("no number", "keine Zahl"),
    ],
)
def test_other_numbers_stay(source: str, target: str) -> None:
    assert drawn(with_numbers, source, target) == {(source, target)}


def test_names_are_replaced_by_the_same_name_on_both_sides() -> None:
    found = drawn(with_names, "Ask Tom about it.", "Frag Tom danach.")

    names = {left.removeprefix("Ask ").removesuffix(" about it.") for left, _ in found}
    assert found == {(f"Ask {name} about it.", f"Frag {name} danach.") for name in names}
    assert any(re.fullmatch(r"[A-Z]\. [A-Z]\. .+", name) for name in names)
    assert any(name.endswith("& Co. KG") for name in names)
    assert any(not name.isascii() for name in names)


@pytest.mark.parametrize("text", ["Windows 10", "MP3", "ask him", "I am"])
def test_other_words_stay(text: str) -> None:
    assert drawn(with_names, text, text) == {(text, text)}


def test_symbols_stand_at_the_same_place() -> None:
    found = drawn(with_symbols, "Tom sleeps.", "Tom schläft.")

    assert found == {(left, left.replace("sleeps", "schläft")) for left, _ in found}
    assert {"• Tom sleeps.", "Tom sleeps. →", "(Tom sleeps.)", "Tom 🙂 sleeps."} <= {left for left, _ in found}


@pytest.mark.parametrize(
    ("source", "target", "examples"),
    [
        ("Go on.", "Weiter.", {("Go on...", "Weiter..."), ("Go on!!!", "Weiter!!!"), ("Go on :)", "Weiter :)")}),
        ("Who?", "Wer?", {("Who?!", "Wer?!"), ("Who …?", "Wer …?")}),
    ],
)
def test_endings_change_on_both_sides(source: str, target: str, examples: set[tuple[str, str]]) -> None:
    assert drawn(with_ending, source, target) >= examples


@pytest.mark.parametrize(("source", "target"), [("Go on.", "Weiter!"), ("Go on", "Weiter"), ("So...", "Also...")])
def test_other_endings_stay(source: str, target: str) -> None:
    assert drawn(with_ending, source, target) == {(source, target)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('He said "yes".', "He said “yes”."),
        ("I don't know", "I don’t know"),
        ("He said “yes”.", 'He said "yes".'),
        ("Er sagte „ja“.", 'Er sagte "ja".'),
        ("I don’t know", "I don't know"),
        ('a 5" disk', 'a 5" disk'),
        ("plain", "plain"),
    ],
)
def test_quotation_marks_of_the_source_change(source: str, expected: str) -> None:
    assert with_other_quotation_marks(source) == expected


def test_single_word_is_a_translation_of_the_pair() -> None:
    translations = {"house": frozenset(("haus",)), "garden": frozenset(("garten",))}

    def vary(source: str, target: str, random: Random) -> tuple[str, str]:
        return single_word(source, target, random, translations)

    assert drawn(vary, "A house, a garden", "Ein Haus, ein Garten") == {("house", "Haus"), ("garden", "Garten")}
    assert drawn(vary, "A tree", "Ein Baum") == {("A tree", "Ein Baum")}
