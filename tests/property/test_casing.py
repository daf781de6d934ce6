"""Properties of sentence case, capitals, readable marks and endings."""

import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman_service.text.casing import capitalized_like, capitals, is_in_capitals, lowered_words, sentence_case
from dragoman_service.text.endings import corrected_ending
from dragoman_service.text.punctuation import readable, restored_quotes

LANGUAGES = st.sampled_from(["en", "de", "de-AT", "fr", "es", "tr", "az", "el", "ru", "nl", "cs", "ja", "zh", "", "xx"])
TARGETS = st.sampled_from(["en", "de", "de-CH", "fr", "fr-CA", "es", "el", "ar", "hi", "ja", "zh", "th", ""])

_WORDS = st.sampled_from(
    [
        "READ", "THIS", "USB", "PORT", "NATO", "XIV", "I", "I'M", "O'BRIEN", "A", "MAY", "MONDAY", "US", "MP3", "A4",
        "20TH", "GROSSE", "STRAßE", "SIE", "GEBEN", "IHRE", "ESSEN", "DAS", "GMBH", "IPHONE", "URLS", "DR.", "Z. B.",
        "U.S.", "IŞIK", "İSTANBUL", "ΛΟΓΟΣ", "ПРИВЕТ", "Ǆ", "ẞ", "É", "E\u0301", "L'EAU", "EXAMPLE.COM",
        "HTTP://A.EXAMPLE/B",
        "\\n", "&amp;", "&AMP;", "A@B.EXAMPLE", "MAX_VALUE", "undo", "iPhone", "word", "\ufffc",
        "\ufffc\ufffc", "1.", "3",
    ]
)  # fmt: skip
_MARKS = st.sampled_from(
    [
        *".?!…:;,–—-·*", "...", "?!", "!!!", ". ", "! ", "\n", " ", "  ", "\xa0", "\u202f", "“", "”", "„", "«", "»",
        "‹",
        "›", "‘", "’", "‚", '"', "'", "(", ")", "[", "]", " ;)", ":-)", " :D", "。", "？", "！", "、", "……", "؟", "۔",
        "।", "¿", "¡", "etc.", "usw.", "z. B.", "am 3.", "II.", "5″", " - ", " — ", ":smile:", "\ud800", "İ", "ß",
    ]
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.one_of(_WORDS, _MARKS, st.just(" "))).map("".join),
    st.lists(_WORDS).map(" ".join),
    st.lists(st.one_of(_WORDS, _MARKS, st.text(max_size=4))).map("".join),
)


def _without_case(text: str) -> str:
    return "".join({"ı": "i", "İ": "i", "I": "i", "ẞ": "ß"}.get(char, char.lower().lower()) for char in text)


def _letters(text: str) -> str:
    return "".join(char for char in text if char.isalnum() or char == "\ufffc")


@settings(max_examples=100)
@given(TEXTS, LANGUAGES)
def test_sentence_case_changes_only_the_case(text: str, language: str) -> None:
    result = sentence_case(text, language=language)

    assert len(result) == len(text)
    normalize = str.maketrans("σς", "σσ")
    assert _without_case(result).translate(normalize) == _without_case(text).translate(normalize)


@settings(max_examples=100)
@given(TEXTS, LANGUAGES)
def test_sentence_case_of_its_result_is_the_result(text: str, language: str) -> None:
    result = sentence_case(text, language=language)

    assert sentence_case(result, language=language) == result


@settings(max_examples=100)
@given(TEXTS)
def test_a_filler_keeps_the_length(text: str) -> None:
    result = sentence_case(text, language="de", filler="\x7f")

    assert len(result) == len(text)
    assert result.replace("ß\x7f", "ss").lower().replace("ß", "ss") == (
        sentence_case(text, language="de").replace("ß\x7f", "ss").lower().replace("ß", "ss")
    )


@given(TEXTS, LANGUAGES)
def test_capitals_of_capitals_do_not_change(text: str, language: str) -> None:
    result = capitals(text, language=language)

    assert capitals(result, language=language) == result


@given(TEXTS)
def test_a_text_in_capitals_has_a_capital_letter(text: str) -> None:
    if is_in_capitals(text):
        assert any(unicodedata.category(char) == "Lu" for char in text)


@given(TEXTS, LANGUAGES)
def test_lowered_words_change_only_the_case(text: str, language: str) -> None:
    result = lowered_words(text, language=language)

    assert result is None or (result != text and _without_case(result) == _without_case(text))


@given(TEXTS, TEXTS)
def test_capitalizing_changes_at_most_one_letter(source: str, target: str) -> None:
    result = capitalized_like(source, target)

    assert capitalized_like(source, result) == result
    assert result.lower() == target.lower() or len(result) != len(target)  # `ß` becomes `Ss`


@settings(max_examples=100)
@given(TEXTS, st.frozensets(st.characters(max_codepoint=0x250)))
def test_readable_replaces_only_what_the_model_does_not_spell(text: str, spelled: frozenset[str]) -> None:
    result = readable(text, spelled.__contains__)

    assert len(result) == len(text)
    assert _letters(result) == _letters(text)
    for old, new in zip(text, result, strict=True):
        assert old == new or (old not in spelled and new in spelled)
    assert readable(result, spelled.__contains__) == result


@settings(max_examples=100)
@given(TEXTS, TEXTS, TARGETS)
def test_restored_quotes_change_no_letter_and_are_stable(source: str, target: str, language: str) -> None:
    result = restored_quotes(source, target, target_language=language)

    assert _letters(result) == _letters(target)
    assert restored_quotes(source, result, target_language=language) == result


@settings(max_examples=100)
@given(TEXTS, TEXTS, TARGETS, TARGETS)
def test_a_corrected_ending_changes_no_letter_and_is_stable(
    source: str, target: str, source_language: str, target_language: str
) -> None:
    languages = {"source_language": source_language, "target_language": target_language}

    result = corrected_ending(source, target, **languages)

    # The letter of an emoticon such as `:D` is a mark.
    assert _letters(result).rstrip("DPp") == _letters(target).rstrip("DPp")
    assert corrected_ending(source, result, **languages) == result
