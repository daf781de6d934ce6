"""A document is translated like the same text in one request, whatever the size of the window."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman_service.datatypes import TranslatedSentence, Translation
from dragoman_service.request import (
    ProtectionOptions,
    RequestContext,
    SamplingOptions,
    TranslationRequest,
)
from dragoman_service.text.segmentation import iterate_sentences
from dragoman_service.translation.settings import TranslationLimits
from tests.property.test_text_segmentation import LANGUAGES, TEXTS
from tests.unit.text.text_fakes import (
    FakeModel,
    FakeQueue,
    echo,
    make_request,
    make_translator,
    shout,
    translate_document,
)

_TEXTS = TEXTS.filter(lambda text: text and not any(0xD800 <= ord(char) < 0xE000 for char in text))
_OPTIONS = st.sampled_from(
    [
        {},
        {"num_hypotheses": 2},
        {"return_alignment": True, "return_scores": True, "return_tokens": True},
        {"sampling": SamplingOptions(seed=3), "num_hypotheses": 2},
        {"target_prefix": "x"},
    ]
)
_SOURCES = LANGUAGES.filter(bool)  # an empty language would be detected
_PAIRS = st.tuples(_SOURCES, st.sampled_from(["de", "zh"]))


def _request(text: str, pair: tuple[str, str], options: dict[str, Any]) -> TranslationRequest:
    request = make_request(text, **options)
    return replace(request, source_language=pair[0], target_language=pair[1])


def _document(request: TranslationRequest, queue: FakeQueue, *, window: int, longest: int) -> list[TranslatedSentence]:
    limits = TranslationLimits(document_window_segments=window)
    translator = make_translator(FakeModel(queue, max_source_tokens=longest), limits=limits)
    return asyncio.run(translate_document(translator, request))


def _text(request: TranslationRequest, queue: FakeQueue, *, longest: int) -> Translation:
    translator = make_translator(FakeModel(queue, max_source_tokens=longest))
    return asyncio.run(translator.translate(request, RequestContext())).translations[0]


@settings(max_examples=50, deadline=None)
@given(_TEXTS, _PAIRS, _OPTIONS, st.integers(1, 5), st.integers(3, 40))
@example("<A> {b}. C <d> e@f.org!", ("en", "de"), {}, 1, 40)
def test_document_is_translated_like_a_text(
    text: str, pair: tuple[str, str], options: dict[str, Any], window: int, longest: int
) -> None:
    request = _request(text, pair, options)
    queue, other = FakeQueue(shout), FakeQueue(shout)

    sentences = _document(request, queue, window=window, longest=longest)

    whole = _text(request, other, longest=longest)
    translated = [sentence for sentence in sentences if sentence.sentence]
    assert "".join(sentence.text for sentence in sentences) == whole.hypotheses[0].text
    assert tuple(sentence.sentence for sentence in translated) == whole.sentences
    # With prefixes and seeds. A document is decoded again sentence by sentence.
    assert sorted(queue.segments, key=repr) == sorted(other.segments, key=repr)
    links = [link.source for sentence in translated for link in sentence.hypotheses[0].alignment]
    assert links == [link.source for link in whole.hypotheses[0].alignment]


@settings(max_examples=50, deadline=None)
@given(_TEXTS.filter(lambda text: "İ" not in text), _SOURCES, st.integers(1, 5))  # sentence case lacks `İ`
@example("<A>", "en", 1)
def test_text_between_sentences_is_copied(text: str, language: str, window: int) -> None:
    unprotected = ProtectionOptions(is_enabled=False)  # with protection, a tag alone is not a sentence
    request = _request(text, (language, language), {"protection": unprotected, "repetition_guard": False})

    sentences = _document(request, FakeQueue(echo), window=window, longest=10_000)  # no sentence is split

    assert "".join(sentence.text for sentence in sentences) == text
    spans = [sentence.sentence.source for sentence in sentences if sentence.sentence]
    assert spans == [sentence.sentence.target for sentence in sentences if sentence.sentence]
    # An abbreviation alone is copied, and a mark or abbreviation at an end of a sentence is not cut.
    whole = list(iterate_sentences(text, language=language))
    assert all(any(span.start < each.end and each.start < span.end for each in whole) for span in spans)
    assert all(first.end <= second.start for first, second in pairwise(spans))
