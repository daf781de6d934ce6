"""Texts of DeepL requests: markers of ignored tags, counts and detected languages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.calls.handlers import TranslatedText
from dragoman_service.datatypes import TextHypothesis, Translation
from dragoman_service.errors import InvalidFieldError, RequestError
from dragoman_service.request import TranslationRequest
from dragoman_service.vendor_apis.deepl import (
    CharacterCounts,
    TextParameters,
    marked_request,
    translations,
    unused_marker,
)

FIELDS = {"source_lang": "EN", "target_lang": "DE", "tag_handling": "xml", "ignore_tags": ["x", "keep"]}


def parsed(max_characters: int = 10_000, **fields: Any) -> TextParameters:
    return TextParameters.parse({**FIELDS, **fields}, max_text_characters=max_characters)


def marked(max_characters: int = 10_000, **fields: Any) -> tuple[TranslationRequest, str]:
    return marked_request(parsed(max_characters, **fields), max_characters=max_characters)


@given(st.lists(st.lists(st.sampled_from([" ", "\t", "translate='no'", "a"]), max_size=30).map("".join), max_size=4))
def test_marker_is_in_no_text(texts: list[str]) -> None:
    marker = unused_marker(texts)

    assert not any(marker in text for text in texts)
    assert marker.strip() == "translate='no'"


@pytest.mark.parametrize("text", [" " * 4_000_000, " " * 1_000_000 + "translate='no'", " translate='no'" * 100_000])
def test_marker_of_a_long_text_is_short_and_found_in_linear_time(text: str) -> None:
    assert len(unused_marker([text])) < 40  # a search that is quadratic in the spaces takes hours


def test_start_tags_of_ignored_elements_are_marked() -> None:
    request, marker = marked(text=["<x>a</x> <xy> <keep a='1'/> x <b>", "<x"])

    assert request.texts == (f"<x{marker}>a</x> <xy> <keep{marker} a='1'/> x <b>", "<x")


def test_text_that_exceeds_the_limit_with_its_markers_is_rejected() -> None:
    with pytest.raises(InvalidFieldError, match=r"text\[0\]: is 15 characters"):
        marked(text=["<x>a</x><x></x>"], max_characters=20)


@pytest.mark.parametrize("tags", [["a"] * 101, [",".join(["a"] * 101)], [7], ["a|b"], ["<a>"]])
def test_ignored_tags_are_a_limited_number_of_names(tags: list[Any]) -> None:
    with pytest.raises(RequestError, match="ignore_tags"):
        parsed(text=["a"], ignore_tags=tags)


def test_text_without_a_detected_language_keeps_that_of_the_request() -> None:
    unchanged = TranslatedText(Translation(hypotheses=(TextHypothesis(text="…", score=0.0),), sentences=()), "", None)

    languages = [
        translations([unchanged], parsed(text="a", source_lang=source), [1], "")["translations"][0]
        for source in (None, "", "en")
    ]

    assert [language["detected_source_language"] for language in languages] == ["", "", "EN"]


@pytest.mark.parametrize(
    ("fields", "version"),
    [({"tag_handling": None, "ignore_tags": None}, None), ({}, "v2"), ({"tag_handling_version": "v1"}, "v1")],
)
def test_answer_with_tags_has_the_version_of_their_handling(fields: Any, version: str | None) -> None:
    text = TranslatedText(Translation(hypotheses=(TextHypothesis(text="a", score=0.0),), sentences=()), "", None)
    (item,) = translations([text], parsed(text="a", **fields), [1], "")["translations"]

    assert item.get("tag_handling_version") == version


def test_tags_and_comments_are_not_counted() -> None:
    texts = ["<p title='A'>A <!-- big --> <b>man</b>: 1 < 2.</p>", "\U0001f600 Ä\n"]

    assert parsed(text=texts).num_characters() == [14, 4]
    assert parsed(text=texts, tag_handling=None, ignore_tags=None).num_characters() == [len(texts[0]), 4]


def test_counts_of_callers_that_have_not_translated_for_longest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman_service.vendor_apis.deepl._MAX_COUNTED_CALLERS", 2)
    counts = CharacterCounts()

    for caller in ("a", "b", "a", "c"):
        counts.add(caller, 3)

    assert [counts.of(caller) for caller in "abc"] == [6, 0, 3]
