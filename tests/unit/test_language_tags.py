import pytest

from dragoman_service.errors import InvalidFieldError
from dragoman_service.language_tags import check_language_tag, is_same_language, matching_tags


@pytest.mark.parametrize(
    ("tag", "available", "matches"),
    [
        ("en", {"en", "en-GB"}, ["en", "en-GB"]),
        ("EN-gb", {"en", "en-GB", "en-US"}, ["en-GB", "en"]),
        ("de-CH", {"de"}, ["de"]),
        ("de-x-foo", {"de", "de-x-foo"}, ["de-x-foo", "de"]),
        ("ca-valencia", {"ca"}, ["ca"]),
        ("zh-Hant-TW", {"zh-Hant", "zh"}, ["zh-Hant"]),
        ("pt", {"pt-BR", "en"}, ["pt-BR"]),
        ("pt", {"pt-BR", "pt-PT"}, []),
        ("pt", {"pt-BR", "pt"}, ["pt", "pt-BR"]),
        ("pt-PT", {"pt-BR"}, []),
        ("xx", {"xx-Latn"}, ["xx-Latn"]),
        ("den", {"de"}, []),
    ],
)
def test_a_tag_matches_the_closest_tags(tag: str, available: set[str], matches: list[str]) -> None:
    assert matching_tags(tag, available) == matches


_ALIASES = [("nb", "no"), ("iw", "he"), ("in", "id"), ("jw", "jv"), ("fil", "tl"), ("eng", "en"), ("mo", "ro")]


@pytest.mark.parametrize(("tag", "other"), [*_ALIASES, *((other, tag) for tag, other in _ALIASES)])
def test_aliases_match_in_both_directions_and_with_subtags(tag: str, other: str) -> None:
    assert matching_tags(tag, {other}) == [other]
    assert matching_tags(f"{tag}-ZZ", {other}) == [other]
    assert matching_tags(tag, {other, tag})[0] == tag


def test_nynorsk_is_not_an_alias_of_bokmal() -> None:
    assert matching_tags("nn", {"no", "nb"}) == []


@pytest.mark.parametrize(
    ("tag", "other"),
    [
        ("zh-TW", "zh"),
        ("zh-Hant", "zh"),
        ("zh", "zh-Hant"),
        ("zh-Hans", "zh-TW"),
        ("sr-Latn", "sr"),
        ("sh", "sr"),
        ("sr-ME", "sr"),
        ("uz-Cyrl", "uz"),
        ("pa-PK", "pa"),
    ],
)
def test_tags_with_different_likely_scripts_do_not_match(tag: str, other: str) -> None:
    assert matching_tags(tag, {other}) == []
    assert not is_same_language(tag, other)


@pytest.mark.parametrize(
    ("tag", "other"),
    [
        ("zh-TW", "zh-Hant"),
        ("zh-Hant", "zh-TW"),
        ("zh-CN", "zh"),
        ("zh-CN", "zh-Hans"),
        ("sr-Cyrl", "sr"),
        ("sh", "sr-Latn"),
    ],
)
def test_tags_with_equal_likely_scripts_match(tag: str, other: str) -> None:
    assert matching_tags(tag, {other}) == [other]
    assert is_same_language(tag, other)


@pytest.mark.parametrize("tag", ["", "e", "de_DE", "de--DE", "d e", "en-toolongsubtag"])
def test_other_values_are_not_language_tags(tag: str) -> None:
    with pytest.raises(InvalidFieldError, match="a BCP-47 tag"):
        check_language_tag("source_language", tag)
