from service.models.names import language_lookup


def test_a_language_tag_is_shortened_from_its_end() -> None:
    assert language_lookup("source_language", "zh-Hant-TW") == ["zh-hant-tw", "zh-hant", "zh"]
    assert language_lookup("source_language", "de-x-foo") == ["de-x-foo", "de"]
