"""Sentences in letters that the model cannot spell stay as they are, with a warning."""

import pytest

from dragoman_service.datatypes import TranslationWarning, WarningKind
from dragoman_service.request import RequestContext, Term, TextFormat
from tests.unit.text.text_fakes import (
    CharacterTokenizer,
    FakeModel,
    FakeQueue,
    encipher,
    make_request,
    make_translator,
    source_text,
    translate,
    translate_document,
)


class LatinTokenizer(CharacterTokenizer):
    """A tokenizer with pieces for Latin letters and ordinary punctuation."""

    def spells(self, character: str) -> bool:
        return character < "\u0250" or "\u2010" <= character <= "\u203a"


def latin_model() -> FakeModel:
    return FakeModel(FakeQueue(encipher), tokenizer=LatinTokenizer())


_FOREIGN = [
    "Привет, мир.",
    "Это очень важный вопрос!",
    "Καλημέρα κόσμε.",
    "مرحبا بالعالم.",
    "שלום עולם.",
    "नमस्ते दुनिया.",
    "สวัสดีชาวโลก.",
    "안녕하세요 세계.",
    "გამარჯობა მსოფლიო.",
    "Բարեւ աշխարհ.",
    "こんにちは世界.",
    "Ђорђе ЧИТА књигу?",
]


def untranslated(warnings: tuple[TranslationWarning, ...], text: str) -> list[str]:
    """Return the parts of a text that the warnings are about."""
    spans = [warning.source for warning in warnings if warning.kind is WarningKind.UNTRANSLATED]
    return [text[span.start : span.end] for span in spans if span]


@pytest.mark.parametrize("foreign", _FOREIGN)
@pytest.mark.parametrize("template", ["{}", "Now. {}", "{}\nThen.", "Now. {} Then."])
async def test_unspelled_sentence_stays_with_a_warning_about_its_span(template: str, foreign: str) -> None:
    text = template.format(foreign)
    model = latin_model()

    result = await make_translator(model).translate(make_request(text), RequestContext())
    sentences = await translate_document(make_translator(latin_model()), make_request(text))

    (translation,) = result.translations
    expected = text.replace("Now.", "Abj.").replace("Then.", "Gura.")
    assert translation.hypotheses[0].text == expected
    assert untranslated(translation.warnings, text) == [foreign]
    assert "".join(sentence.text for sentence in sentences) == expected
    assert untranslated(tuple(warning for each in sentences for warning in each.warnings), text) == [foreign]
    assert not any(ord(char) > 0x2FF for segment in model.scheduler.segments for char in source_text(segment))


def test_warning_counts_neither_as_a_sentence_nor_as_a_segment() -> None:
    result = translate(latin_model(), "Now. Привет, мир. Then.")

    (translation,) = result.translations
    assert len(translation.sentences) == 2
    (warning,) = translation.warnings
    assert (warning.sentence_index, warning.target) == (None, None)


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("We met Иван yesterday.", ["We met 2013 yesterday."]),
        ("We ate борщ and щи today.", ["We ate 2013 and 1947 today."]),
        ("The word φιλία is Greek.", ["The word 2013 is Greek."]),
        ("Press ⌘ to go on.", ["Press 2013 to go on."]),
        ("It was fun 😀 today.", ["It was fun 2013 today."]),
        ("Note: π is three.", ["Note: 2013 is three."]),
        ("See ☃ there.", ["See 2013 there."]),
        ("He said שלום to us.", ["He said 2013 to us."]),
        ("Mix of один two три four.", ["Mix of 2013 two 1947 four."]),
        ("A → B is a map.", ["A 2013 B is a map."]),
    ],
)
def test_unspelled_words_of_a_sentence_are_placeholders(text: str, sources: list[str]) -> None:
    model = latin_model()

    (translation,) = translate(model, text).translations

    assert list(map(source_text, model.scheduler.segments)) == sources
    assert untranslated(translation.warnings, text) == []
    unspelled = [word for word in text.split() if not all(map(LatinTokenizer().spells, word))]
    assert all(word in translation.hypotheses[0].text for word in unspelled)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("Take ∑<b>i</b> and λ<b>k</b> now.", "Take 2013 i and 1947 k now."),
        ("Let π<b>1</b> and π<b>2</b> go.", "Let 2013 1 and 1947 2 go."),
        ("Let Ж<b>u</b> and <i>un</i>Ж go.", "Let 2013 u and un 1947 go."),
    ],
)
def test_unspelled_part_of_a_word_that_a_tag_divides_is_a_placeholder(text: str, source: str) -> None:
    model = latin_model()

    (translation,) = translate(model, text, format=TextFormat.HTML).translations

    assert [source_text(segment) for segment in model.scheduler.segments][:1] == [source]
    assert all(char in translation.hypotheses[0].text for char in text if not LatinTokenizer().spells(char))


@pytest.mark.parametrize("text", ["", "...", "😀😀", "☃", "→ ⌘", "{name}", "- 😀\n- ☃"])
def test_symbols_alone_are_copied_without_a_warning(text: str) -> None:
    model = latin_model()

    (translation,) = translate(model, text).translations

    assert translation.hypotheses[0].text == text
    assert translation.warnings == ()
    assert model.scheduler.segments == []


@pytest.mark.parametrize(
    ("text", "translation"),
    [
        ("Москва", "Moskau"),
        ("Москва.", "Moskau."),
        ("Visit Москва.", "Ivfvg Moskau."),
        ("Москва is big.", "Moskau vf ovt."),
        ("See Москва or Москва now.", "Frr Moskau be Moskau abj."),
    ],
)
def test_unspelled_term_has_its_translation(text: str, translation: str) -> None:
    (translated,) = translate(latin_model(), text, terms=(Term(source="Москва", target="Moskau"),)).translations

    assert translated.hypotheses[0].text == translation
    assert translated.warnings == ()
