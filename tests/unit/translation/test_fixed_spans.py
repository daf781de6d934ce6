import pytest

from dragoman_service.datatypes import Span
from dragoman_service.request import FixedSpan
from dragoman_service.translation.fixed_spans import inserted_spans


def inserted(translation: str, *targets: str, text: str = "word", is_markup: bool = False) -> list[str]:
    fixed = [FixedSpan(span=Span(start=0, end=len(text)), target=target) for target in targets]
    spans = inserted_spans(translation, fixed, text, is_markup=is_markup)
    assert all(each.target == "" for each in spans)
    return [translation[each.span.start : each.span.end] for each in spans]


@pytest.mark.parametrize(
    ("translation", "targets", "expected"),
    [
        ("Le mot wordomatic.", ("wordomatic",), ["wordomatic"]),
        ("wordomatic wordomatic", ("wordomatic",), ["wordomatic"] * 2),
        ("b puis a", ("a", "b"), ["b", "a"]),
        ("la maison", ("a",), []),
        ("la maison a", ("a",), ["a"]),
        ("C++ et C", ("C", "C++"), ["C++", "C"]),
        ("le mot", ("",), []),
        ("le word", ("",), ["word"]),
        ("« Zürich »", ("Zürich",), ["Zürich"]),
        ("Zürichs Zürich-West", ("Zürich",), ["Zürich"]),
        ("これはwordomaticです", ("wordomatic",), ["wordomatic"]),
        ("これは東京です", ("東京",), ["東京"]),
        ("New York et York", ("New York",), ["New York"]),
        ("prix : $5.", ("$5",), ["$5"]),
        ("(a.b)", ("a.b",), ["a.b"]),
        ("axb", ("a.b",), []),
        ("", ("a",), []),
    ],
)
def test_fixed_translations_are_found_as_whole_words(
    translation: str, targets: tuple[str, ...], expected: list[str]
) -> None:
    assert inserted(translation, *targets) == expected


def test_tags_and_escapes_of_markup_are_respected() -> None:
    translation = '<b title="b">R&amp;D b</b>'

    assert inserted(translation, "b", "R&D", is_markup=True) == ["R&amp;D", "b"]
    assert inserted("a b", is_markup=True) == []


def test_hostile_texts_take_linear_time() -> None:
    assert inserted("<" * 100_000, "b", is_markup=True) == []
    assert len(inserted("a " * 10_000, *(f"a{number}" for number in range(100)), "a")) == 10_000
