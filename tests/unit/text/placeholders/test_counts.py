import pytest

from dragoman_service.request import ProtectedKind
from dragoman_service.text.placeholders.counts import is_count, with_english_ordinals, with_separated_counts


@pytest.mark.parametrize("span", ["$name", "$user.name", "$!place"])
def test_variable_without_braces_stands_alone(span: str) -> None:
    assert is_count(span, ProtectedKind.VARIABLE, "")


@pytest.mark.parametrize(
    "span",
    [
        "{n}",
        "{count}",
        "{{count}}",
        "{{ count }}",
        "%{count}",
        "${fileCount}",
        "{num_items}",
        "{numFiles}",
        "{total, number}",
        "{itemCount:N0}",
        "%d",
        "%i",
        "%1$d",
        "%,d",
        "%'d",
        "%ld",
        "%I64d",
        "%n",
        "%Ln",
        "#",
        "%(count)d",
        "%(num)s",
        "{user.messages.length}",
        "{days}",
    ],
)
def test_names_and_formats_of_numbers_are_counts(span: str) -> None:
    assert is_count(span, ProtectedKind.BRACES, "")


@pytest.mark.parametrize(
    "span", ["{name}", "{user}", "%s", "{0}", "{}", "%@", "{url}", "{{title}}", "%(name)s", "{x!r}"]
)
def test_other_spans_are_not_counts(span: str) -> None:
    assert not is_count(span, ProtectedKind.BRACES, " has sent a message")
    assert not is_count(span, ProtectedKind.BRACES, "")


@pytest.mark.parametrize("span", ["%s", "%1$s", "{0}", "{}", "{{0}}", "%@", "%1"])
def test_spans_without_name_before_a_plural_are_counts(span: str) -> None:
    assert is_count(span, ProtectedKind.PRINTF, " files were deleted")


def test_patterns_terms_and_tags_are_not_counts() -> None:
    assert not is_count("{n}", None, " files")
    assert not is_count("<n>", ProtectedKind.TAG, " files")


@pytest.mark.parametrize(("span", "expected"), [("5", True), ("1,000.5", True), ("25 °C", False), ("12:30", False)])
def test_numbers_without_unit_are_counts(span: str, expected: bool) -> None:
    assert is_count(span, ProtectedKind.NUMBER, " files") is expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("The 5 files weigh 2 kg.", "Die 5-Dateien wiegen 2 kg.", "Die 5 Dateien wiegen 2 kg."),
        ("12 users and 3 groups", "12-Benutzer und 3-Gruppen", "12 Benutzer und 3 Gruppen"),
        ("a 5 star hotel", "ein 5-Sterne-Hotel", "ein 5-Sterne-Hotel"),
        ("a 5-year plan", "ein 5-Jahresplan", "ein 5-Jahresplan"),
        ("5 files", "5 Dateien", "5 Dateien"),
        ("Version 5", "Version 5-Beta", "Version 5-Beta"),
        ("Chapter 2.5 files", "Kapitel 2.5-Dateien", "Kapitel 2.5-Dateien"),
        ("10 KB", "10-KB", "10-KB"),
        ("A4 pages", "A4-Seiten", "A4-Seiten"),
        ("1000 items", "1000-Elemente", "1000 Elemente"),
        ("7 of 9 tests", "7 von 9-Tests", "7 von 9 Tests"),
        ("no digits", "keine-Ziffern", "keine-Ziffern"),
    ],
)
def test_number_and_noun_of_a_count_are_two_words(source: str, target: str, expected: str) -> None:
    assert with_separated_counts(source, target) == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("in the 3th quarter", "in the 3rd quarter"),
        ("the 1th, 2th and 4rd day", "the 1st, 2nd and 4th day"),
        ("the 11st, 12nd and 13rd", "the 11th, 12th and 13th"),
        ("the 21th, 22th, 23th and 24st", "the 21st, 22nd, 23rd and 24th"),
        ("the 101th and 111st", "the 101st and 111th"),
        ("the 1st, 2nd, 3rd, 4th and 100th", "the 1st, 2nd, 3rd, 4th and 100th"),
        ("3three, 1.3th, a3th", "3three, 1.3th, a3th"),
    ],
)
def test_english_ordinals(target: str, expected: str) -> None:
    assert with_english_ordinals(target) == expected
