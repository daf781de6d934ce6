"""Names of languages for the language lists of other services' APIs."""

import babel.localedata
import pytest

from dragoman_service.vendor_apis.language_names import (
    dialect_name,
    is_right_to_left,
    language_name,
    native_language_name,
)


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("de", "German"),
        ("pt-BR", "Portuguese (Brazil)"),
        ("zh_Hans", "Chinese (Simplified)"),
        ("sr-Cyrl-ME", "Serbian (Cyrillic, Montenegro)"),
        ("ary", "Moroccan Arabic"),
        ("eng_Latn", "English (Latin)"),
        ("tl", "Tagalog"),
        ("iw", "Hebrew"),
    ],
)
def test_tag_gets_its_english_name(tag: str, name: str) -> None:
    assert language_name(tag) == name


@pytest.mark.parametrize("tag", ["", "xx", "qaa", "x-y", "../de", "de\0", "\ud800", "a" * 10_000])
def test_language_without_a_name_keeps_its_tag(tag: str) -> None:
    assert (language_name(tag), native_language_name(tag), dialect_name(tag)) == (tag, tag, tag)
    assert not is_right_to_left(tag)


def test_name_is_in_the_language_asked_for() -> None:
    assert language_name("en", locale="de-AT") == "Englisch"
    assert language_name("en", locale="xx") == "English"
    assert [native_language_name(tag) for tag in ("de", "ar", "pt-BR")] == ["Deutsch", "العربية", "português (Brasil)"]


def test_dialect_is_named_by_its_adjective() -> None:
    tags = ("EN-GB", "PT-BR", "PT-PT", "ZH-HANS", "DE", "DE-LU")
    assert [dialect_name(tag) for tag in tags] == [
        "English (British)",
        "Portuguese (Brazilian)",
        "Portuguese (European)",
        "Chinese (Simplified)",
        "German",
        "German (Luxembourg)",
    ]


def test_direction_is_that_of_the_script() -> None:
    right_to_left = ("ar", "he", "fa", "ur", "yi", "ps", "sd", "ug", "dv", "az-Arab", "pes_Arab")
    assert [tag for tag in (*right_to_left, "de", "az", "zh", "el") if is_right_to_left(tag)] == list(right_to_left)


def test_locales_are_not_kept_in_memory() -> None:
    num_before = len(babel.localedata._cache)

    for tag in ("fr", "es", "it", "nl", "pl", "cs"):
        native_language_name(tag)

    assert len(babel.localedata._cache) <= max(num_before, 2)
