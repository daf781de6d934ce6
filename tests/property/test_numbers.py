"""Numbers and identifiers in any text."""

import re
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import pytest
from babel import Locale
from babel.numbers import parse_decimal
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.datatypes import Span
from dragoman_service.request import NumberFormat, ProtectedKind
from dragoman_service.text.placeholders import numbers
from dragoman_service.text.placeholders.number_values import is_same_number, numbers_in
from dragoman_service.text.placeholders.numbers import NumberFinder
from dragoman_service.text.placeholders.spans import ProtectedSpan

_KINDS = frozenset({ProtectedKind.NUMBER, ProtectedKind.IDENTIFIER})
_LANGUAGES = st.sampled_from(["en", "de", "fr", "de-CH", "en-IN", "ja", "pl", "fr-CH", "xx", ""])
_PIECES = [
    "1", "12", "345", "2026", "67890", ".", ",", "-", "/", ":", " ", "'", "’", "\xa0", "$", "€", " EUR", "%", " kg",
    "+",
    "(", ")", "#", "@", "_", "a", "A", "AB", "x", "e", "v", ".txt", "円", "१", "２", "word", "\n", "²", "–", "::", "ff",
]  # fmt: skip
_TEXTS = st.lists(st.sampled_from(_PIECES), max_size=40).map("".join) | st.text(max_size=60)
_CONVENTIONS = {"en": (".", ","), "de": (",", "."), "fr": (",", "\u202f"), "de-CH": (".", "’"), "es": (",", ".")}


def _written(digits: str, fraction: str, language: str) -> str:
    decimal, group = _CONVENTIONS[language]
    first = len(digits) % 3 or 3
    groups = [digits[:first], *(digits[index : index + 3] for index in range(first, len(digits), 3))]
    return group.join(groups) + (decimal + fraction if fraction else "")


@given(_TEXTS, st.lists(st.integers(0, 60), max_size=8), _LANGUAGES, _LANGUAGES)
def test_spans_are_in_order_and_within_the_gaps(text: str, edges: list[int], source: str, target: str) -> None:
    limits = sorted({min(edge, len(text)) for edge in edges})
    given_spans = [
        ProtectedSpan(span=Span(start=start, end=end), kind=None) for start, end in list(pairwise(limits))[::2]
    ]

    merged = NumberFinder(_KINDS, source, target, NumberFormat.LOCALIZED).add_to(given_spans, text)

    assert [one for one in merged if one.kind is None] == given_spans
    assert all(0 <= one.span.start < one.span.end <= len(text) for one in merged)
    assert all(first.span.end <= second.span.start for first, second in pairwise(merged))
    for one in merged:
        found = text[one.span.start : one.span.end]
        if one.target is not None:
            assert one.kind is ProtectedKind.NUMBER
            assert one.target != found
            assert re.findall(r"\d", one.target) == re.findall(r"\d", found)
        if one.kind is not None:
            assert re.search(r"[_#@]|\.\w", found) or any(map(str.isnumeric, found))
            assert found == found.strip()


@given(_TEXTS, st.integers(20, 60))
def test_spans_do_not_depend_on_the_window(text: str, window: int) -> None:
    text += " " * numbers._CANDIDATE.reach
    finder = NumberFinder(_KINDS, "en", "de", NumberFormat.LOCALIZED)
    expected = finder.add_to([], text)
    narrow = replace(numbers._CANDIDATE, window=window)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbers, "_CANDIDATE", narrow)
        assert finder.add_to([], text) == expected


@given(
    st.integers(1, 10**12).map(str),
    st.text("0123456789", min_size=1, max_size=4),
    st.sampled_from(sorted(_CONVENTIONS)),
    st.sampled_from(["en", "de", "fr", "pl", "sv", "es", "pt-BR"]),
    st.sampled_from(["{} EUR", "${}", "{} %", "{} kg", "it is {} km long", "({} °C)"]),
)
def test_localized_number_has_the_same_value(digits: str, fraction: str, source: str, target: str, frame: str) -> None:
    written = _written(digits, fraction, source)
    text = frame.format(written)

    (found,) = NumberFinder(_KINDS, source, target, NumberFormat.LOCALIZED).add_to([], text)

    protected = text[found.span.start : found.span.end] if found.target is None else found.target
    (token,) = numbers_in(protected)
    is_unchanged = token.text == written
    is_ambiguous = len(digits) <= 3 and len(fraction) == 3
    if not (is_unchanged and is_ambiguous):
        locale = Locale.parse(target.replace("-", "_"))
        assert parse_decimal(token.text, locale=locale) == Decimal(f"{digits}.{fraction}")
        assert is_same_number(written, token.text, source_language=source, target_language=target)


@given(st.integers(0, 10**9).map(str), st.integers(0, 10**9).map(str), _LANGUAGES, _LANGUAGES)
def test_numbers_with_different_digits_differ(first: str, second: str, source: str, target: str) -> None:
    assert is_same_number(first, second, source_language=source, target_language=target) == (first == second)


@given(_TEXTS, _LANGUAGES)
def test_numbers_of_a_text_cover_all_its_digits(text: str, language: str) -> None:
    tokens = list(numbers_in(text))

    assert "".join(re.findall(r"\d", "".join(token.text for token in tokens))) == "".join(re.findall(r"\d", text))
    assert all(text[token.span.start : token.span.end] == token.text for token in tokens)
    assert all(first.span.end <= second.span.start for first, second in pairwise(tokens))
    assert all(
        is_same_number(token.text, token.text, source_language=language, target_language="de") for token in tokens
    )
