import pytest

from dragoman_service.request import TextFormat
from dragoman_service.text.placeholders.markdown import markdown_units
from dragoman_service.text.placeholders.markup import markup_units
from dragoman_service.text.placeholders.masking import Placeholders
from dragoman_service.text.placeholders.restoration import Assembler, restore
from dragoman_service.text.placeholders.superscripts import SUPERSCRIPT, superscript_codes
from dragoman_service.text.placeholders.text_units import TextUnit, plain_unit

READ = [
    ("20 cm<sup>2</sup>", "20 cm²"),
    ("H<sub>2</sub>O", "H₂O"),
    ("10<sup>-12</sup> or 2<SUP>10</SUP>", "10⁻¹² or 2¹⁰"),
    ("SO<sub>4</sub><sup>2-</sup>", "SO₄²⁻"),
    ("3.5 m/s<sup>2</sup> today", "3.5 m/s² today"),
    ("(a + b)<sup>2</sup>", "(a + b)²"),
    ("x<sub>1</sub> and x<sub>2</sub>", "x₁ and x₂"),
    ("π<sub>1</sub> and λ<sub>12</sub>", "π₁ and λ₁₂"),
    ("a m<sup>2</sup> <b>m<sup>3</sup></b>", "a m² m³"),
]


def _unit(text: str, text_format: TextFormat) -> TextUnit:
    placeholders = Placeholders(text)
    if text_format is TextFormat.PLAIN:
        return plain_unit(text, has_tags=True)
    if text_format is TextFormat.MARKDOWN:
        return markdown_units(text, placeholders=placeholders)[0]
    return markup_units(text, is_xml=text_format is TextFormat.XML, placeholders=placeholders)[0]


@pytest.mark.parametrize("text_format", TextFormat)
@pytest.mark.parametrize(("text", "read"), READ[:-1])
def test_digits_are_read_as_characters_and_written_as_tags(text: str, read: str, text_format: TextFormat) -> None:
    if text_format is TextFormat.XML and "SUP" in text:
        text = text.replace("SUP", "sup")
    unit = _unit(text, text_format)
    assert unit.text == read
    fragments = restore(unit, read, None).fragments
    assert Assembler(text, [(unit.source, fragments)]).assemble().text == text


def test_other_tags_stay_codes() -> None:
    text, read = READ[-1]
    assert _unit(text, TextFormat.HTML).text == read


@pytest.mark.parametrize(
    "text",
    [
        "a note<sup>1</sup>",  # of a word
        "the 20<sup>th</sup> century",
        "a <sup>2</sup>",
        "x<sub>max</sub>",
        "m<sup>12345</sup>",
        "m<sup>2</sub>",
        "m<sup class='x'>2</sup>",
    ],
)
def test_other_elements_are_not_digits_of_a_word(text: str) -> None:
    assert SUPERSCRIPT.search(text) is None


@pytest.mark.parametrize("text", ["m<sup>2</sup>", "10<sup>-12</sup>", "a<sub>1</sub><sup>2+</sup>"])
def test_codes_cover_the_element(text: str) -> None:
    for match in SUPERSCRIPT.finditer(text):
        spans = [span for span, _ in superscript_codes(match)]
        assert "".join(text[span.start : span.end] for span in spans) == match[0]


@pytest.mark.parametrize(
    "text",
    [
        "See note<sup>1</sup> below.",
        "The house is old<sup>2</sup> and big<sup>[3]</sup>.",
    ],
)
def test_the_mark_of_a_note_is_a_placeholder(text: str) -> None:
    (unit,) = markup_units(text, is_xml=False, placeholders=Placeholders(text))
    assert unit.has_placeholders
    assert not unit.needs_alignment
