import unicodedata

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman_service.translation.language_detection import UNKNOWN_LANGUAGE, LanguageDetector, has_letters
from dragoman_service.translation.unicode_scripts import language_scripts, script_of

_DETECTOR = LanguageDetector()
_LETTERS = st.characters(categories=["Lu", "Ll", "Lo", "Lm"])
_SERVED = st.sets(st.sampled_from(["en", "de", "ru", "el", "ja", "zh-Hant", "sr-Latn", "ar", "pt-BR", "tlh"]))


@settings(max_examples=100)
@given(text=st.text(_LETTERS | st.characters(codec="utf-8"), max_size=40), served=_SERVED)
@example(text="Привет", served={"en"})
@example(text="ＨＥＬＬＯ ｶﾀｶﾅ ʼ", served={"en"})
def test_text_contains_the_script_of_the_likeliest_language(text: str, served: set[str]) -> None:
    candidates = _DETECTOR.detect(text, served)

    assert bool(candidates) is has_letters(text)
    if not candidates or candidates[0].language == UNKNOWN_LANGUAGE:
        return
    first = candidates[0]
    assert 0 <= first.confidence <= 1 + 1e-9
    label = first.language.partition("-")[0]
    assert language_scripts(label) & {script_of(character) for character in text}


@given(character=st.characters(categories=["L", "M", "N", "P", "S", "Z"]))
def test_only_letters_have_a_script(character: str) -> None:
    script = script_of(character)

    assert script is None or unicodedata.category(character).startswith("L")
