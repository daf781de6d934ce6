"""The short path of ordinary texts gives the results of the long one."""

from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from dragoman_service.datatypes import SearchConfig
from dragoman_service.text.candidates import Candidate, CandidateReader
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.plans import ModelText, TextPart
from tests.unit.text.text_fakes import FakeModel, make_hypothesis, make_request

# fmt: off
_PIECES = st.sampled_from((
    "a", "I", "am", "dog", "Dog", "dogs'", "it's", "don't", "well-known", "Tom", "etc", "Mr", "No", "Nr", "UN", "GmbH",
    "AT", "Größe", "über", "the", "The", "und", "tausend", "usw", "vs", "Inc", "St", "mailto", "data", "true", "one",
    "iPhone", "HallO", "e.g", "5",
))
# fmt: on
_SEPARATORS = st.sampled_from([" ", " ", " ", " ", ". ", ", ", "! ", "-", "  ", "'"])
_ENDINGS = st.sampled_from(["", ".", "?", "!", ":", "...", " "])


@st.composite
def _texts(draw: st.DrawFn) -> str:
    pieces = draw(st.lists(st.tuples(_PIECES, _SEPARATORS), min_size=1, max_size=8))
    return "".join(piece + separator for piece, separator in pieces).strip() + draw(_ENDINGS)


_ANY = st.one_of(_texts(), st.text("abzAZäÖß ,.!?;:'-", max_size=20))


@given(_ANY)
@example("Please call Mr. Smith, etc.")
@example("I")
def test_ordinary_text_is_read_as_it_is(text: str) -> None:
    pipeline = TextPipeline(make_request(text), model=FakeModel(), search=SearchConfig(max_target_tokens=200))
    pipeline.plan()  # the characters of the text are known afterwards

    short = pipeline.plan()
    with patch("dragoman_service.text.planning.is_ordinary", lambda _: False):
        assert short == pipeline.plan()


@given(_ANY, _ANY)
@example("Tom is here now.", "Tom is here now.")
@example("A dog.", "ein Hund.")
def test_ordinary_translation_has_no_other_corrections_and_violations(source: str, target: str) -> None:
    source, target = source.strip() or "a", target.strip() or "a"

    def candidate() -> Candidate:
        reader = CandidateReader(
            source_language="en", target_language="de", spells=lambda _: True, is_word=lambda word: word == "dog"
        )
        return reader.read(source, _part(source), make_hypothesis(target), target, None)

    short = candidate()
    with patch("dragoman_service.text.candidates.is_ordinary", lambda _: False):
        assert short == candidate()


def _part(source: str) -> TextPart:
    pipeline = TextPipeline(make_request("a"), model=FakeModel(), search=SearchConfig(max_target_tokens=200))
    ((part,),) = [plan.parts for plan in pipeline.plan()]
    return TextPart(span=part.span, segment=part.segment, sentence_index=0, model_text=ModelText(text=source))
