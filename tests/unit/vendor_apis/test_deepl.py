"""Requests of DeepL's clients as requests of the contract."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import InvalidFieldError
from dragoman_service.vendor_apis import deepl
from dragoman_service.vendor_apis.base import Translated, fields_of
from dragoman_service.vendor_apis.deepl import answer, counted_characters, translate_request, unused_marker

FIELDS = {"source_lang": "EN", "target_lang": "DE", "tag_handling": "xml", "ignore_tags": ["x", "keep"]}


def requested(max_characters: int = 10_000, **fields: Any) -> tuple[pb.TranslateRequest, str]:
    return translate_request({**FIELDS, **fields}, max_characters=max_characters)


@pytest.mark.parametrize("texts", [["a" * 11], ["a", "a" * 11], ["a"] * 129, ["a", 7], []])
def test_texts_are_checked_before_any_work_on_them(texts: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepl, "unused_marker", lambda _texts: pytest.fail("worked on the texts"))

    with pytest.raises(InvalidFieldError, match="text"):
        requested(text=texts, max_characters=10)


@given(st.lists(st.lists(st.sampled_from([" ", "\t", "translate='no'", "a"]), max_size=30).map("".join), max_size=4))
def test_marker_is_in_no_text(texts: list[str]) -> None:
    marker = unused_marker(texts)

    assert not any(marker in text for text in texts)
    assert marker.strip() == "translate='no'"


@pytest.mark.parametrize("text", [" " * 4_000_000, " " * 1_000_000 + "translate='no'", " translate='no'" * 100_000])
def test_marker_of_a_long_text_is_short_and_found_in_linear_time(text: str) -> None:
    assert len(unused_marker([text])) < 40  # a search that is quadratic in the spaces takes hours


def test_start_tags_of_ignored_elements_are_marked() -> None:
    request, marker = requested(text=["<x>a</x> <xy> <keep a='1'/> x <b>", "<x"])

    assert list(request.texts) == [f"<x{marker}>a</x> <xy> <keep{marker} a='1'/> x <b>", "<x"]


def test_text_that_is_too_long_with_its_marks_is_refused_by_its_own_length() -> None:
    with pytest.raises(InvalidFieldError, match=r"text\[0\]: is 15 characters, .* for each start tag"):
        requested(text=["<x>a</x><x></x>"], max_characters=20)


@pytest.mark.parametrize("tags", [["a"] * 101, [",".join(["a"] * 101)], [7], ["a|b"], ["<a>"]])
def test_ignored_tags_are_names_of_a_limited_number(tags: list[Any]) -> None:
    with pytest.raises(InvalidFieldError, match="ignore_tags"):
        requested(text=["a"], ignore_tags=tags)


def test_text_without_a_detected_language_is_answered() -> None:
    unchanged = Translated(pb.Translation(hypotheses=[pb.Hypothesis(text="…")]), "", None)

    answers = [answer([unchanged], {"source_lang": source}, [1], "") for source in (None, "", "en")]

    assert [one["translations"][0]["detected_source_language"] for one in answers] == ["", "", "EN"]


def test_tags_and_comments_are_not_counted() -> None:
    texts = ["<p title='A'>A <!-- big --> <b>man</b>: 1 < 2.</p>", "\U0001f600 Ä\n"]

    assert counted_characters({"text": texts, "tag_handling": "html"}) == [14, 4]
    assert counted_characters({"text": texts}) == [len(texts[0]), 4]


TEXT_FIELDS = ("source_lang", "target_lang", "context", "formality", "glossary_id", "tag_handling", "model_type")


@pytest.mark.parametrize(
    "change",
    [
        {"text": []},
        {"text": None},
        {"text": ["A.", 7]},
        {"text": ["A."] * 129},
        {"text": ["\ud800"]},
        {"source_lang": None, "glossary_id": "it"},
        {"target_lang": 7},
        {"formality": "more"},
        {"formality": {}},
        {"context": "About dogs."},
        {"split_sentences": "nonewlines"},
        {"split_sentences": 2},
        {"tag_handling": "md"},
        {"outline_detection": False, "tag_handling": "xml"},
        {"splitting_tags": ["p"], "tag_handling": "xml"},
        {"ignore_tags": ["x"]},
        {"ignore_tags": ["a|b"], "tag_handling": "xml"},
        {"preserve_formatting": "maybe"},
        {"glossary_ids": ["it", "both"]},
        {"glossary_id": 7},
        {"style_id": "x"},
        {"model_type": "best"},
        {"auth_key": "x"},
        *({name: "\ud800"} for name in (*TEXT_FIELDS, "ignore_tags")),
        {"glossary_ids": ["\ud800"]},
    ],
)
def test_wrong_fields_are_refused(change: dict[str, Any]) -> None:
    body = json.dumps({"text": ["A."], "source_lang": "EN", "target_lang": "DE", **change}).encode()

    with pytest.raises(InvalidFieldError):
        translate_request(fields_of(body, "application/json", repeated=()), max_characters=100)
