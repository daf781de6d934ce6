import pytest

from dragoman_service.vendor_apis.libretranslate import TranslationParameters


@pytest.mark.parametrize(
    ("language", "tag"), [("pb", "pt-BR"), ("zt", "zh-Hant"), ("de_DE", "de-DE"), ("nb", "nb"), ("zh-Hans", "zh-Hans")]
)
def test_names_of_languages_become_tags(language: str, tag: str) -> None:
    request = TranslationParameters.parse({"source": language, "target": language}).translation_request(["A."])

    assert (request.source_language, request.target_language) == (tag, tag)
