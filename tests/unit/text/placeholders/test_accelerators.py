import pytest

from dragoman_service.datatypes import Span
from dragoman_service.text.placeholders.accelerators import (
    accelerator_position,
    find_accelerator,
    find_doubled_ampersands,
    is_label,
)

WORDS = frozenset(
    ("settings", "table", "search", "suchen", "such", "speichern", "einstellungen", "bearbeiten", "loading", "load")
)
PARTS = frozenset(("overview", "over", "view", "h", "b", "plan"))


def is_word(word: str) -> bool:
    return word.lower() in WORDS | PARTS


@pytest.mark.parametrize(
    ("label", "letter"),
    [
        ("&File", "F"),
        ("&Edit", "E"),
        ("St&art", "a"),
        ("E&xit", "x"),
        ("Sa&ve", "v"),
        ("Set_tings", "t"),
        ("Insert tab_le", "l"),
        ("b_earbeiten", "e"),
        ("B&ack", "a"),
        ("N&o", "o"),
        ("E&XIT", "X"),
        ("Save &As...", "A"),
        ("&Open…", "O"),
        ("Co&py to…", "p"),
        ("Don't &ask again", "a"),
        ("&Save as\tCtrl+Shift+S", "S"),
        (r"&Copy\tCtrl+C", "C"),
        ("&Löschen", "L"),
        ("Ö&ffnen", "f"),
        ("Datei(&D)", "D"),
        ("ファイル(&F)", "F"),
        ("<b>&Open</b>", "O"),
        ("&1 report.txt", "1"),
        ("_Open", "O"),
        ("Save _as", "a"),
        ("E_xit", "x"),
        ("Pr_eferences", "e"),
        ("Zoom _In", "I"),
        ("Find && &Replace", "R"),
        ("Black & &White", "W"),
        ("Such_en", "e"),
        ("Searc_h", "h"),
        ("Searc_h...", "h"),
        ("Speic_hern", "h"),
        ("Einste_llungen", "l"),
        ("Load_ing", "i"),
        ("Text bear_beiten", "b"),
    ],
)
def test_mark_of_a_label_is_found(label: str, letter: str) -> None:
    mark = find_accelerator(label, is_word)

    assert mark is not None
    assert label[mark.start] in "&_"
    assert label[mark.end] == letter


@pytest.mark.parametrize(
    "text",
    [
        "Q&A",
        "AT&T",
        "R&D",
        "R&b",
        "H&M",
        "P&L report",
        "S&P 500",
        "M&Ms",
        "PB&J",
        "&amp;",
        "&nbsp;Text",
        "Fish &amp; chips",
        "Terms &amp conditions",
        "black & white",
        "Ben & Jerry",
        "Drag&Drop",
        "Copy&paste",
        "Rock&roll",
        "a&b",
        "x&y=1",
        "a &b=c",
        "foo(&x)",
        "https://a.b/?a=1&b=2",
        "snake_case",
        "Over_view",
        "Plan_b",
        "Searc_H",
        "User_id",
        "Table_name",
        "_private_name",
        "__init__",
        "_name",
        "file_name",
        "User_name",
        "My_file",
        "_note_",
        "&File &Edit",
        "You &may.",
        "This &is a longer sentence",
        "One\n&Two",
        "&&",
        "&",
        "",
        " ",
    ],
)
def test_other_texts_have_no_mark(text: str) -> None:
    assert find_accelerator(text, is_word) is None


@pytest.mark.parametrize("mark", ["&", "_", "&&", "&a", "_a", "&amp;"])
def test_repeated_marks_are_text(mark: str) -> None:
    assert find_accelerator(mark * 10_000, is_word) is None
    assert find_accelerator(mark * 8, is_word) is None


def test_doubled_ampersands_of_a_label_are_found() -> None:
    assert find_doubled_ampersands("Find && Replace") == [Span(start=5, end=7)]
    assert find_doubled_ampersands("a &&& b") == []
    assert find_doubled_ampersands("This is a longer text with && in it.") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Save as", True), ("Save as...", True), ("Save.", False), ("one two three four five", False), ("a\nb", False)],
)
def test_labels_are_short(text: str, expected: bool) -> None:
    assert is_label(text) is expected


@pytest.mark.parametrize(
    ("letter", "target", "expected"),
    [
        ("F", "Datei", 0),
        ("E", "Bearbeiten", 0),
        ("S", "Alles speichern", 6),
        ("s", "Alles Speichern", 6),
        ("n", "Öffnen", 0),
        ("x", "…Ende", 1),
        ("F", "\ufffc\ufffc Fehler", 3),
        ("D", "Datei (D)", 0),
        ("a", "Fang an", 5),
        ("1", "1 Bericht", 0),
        ("z", "!", 0),
        ("ß", "Straße", 0),
    ],
)
def test_mark_precedes_the_same_letter_or_the_first(letter: str, target: str, expected: int) -> None:
    assert accelerator_position(letter, target) == expected
