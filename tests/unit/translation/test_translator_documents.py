import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import Segment, StageTimings, WarningKind
from dragoman_service.errors import EngineError, InvalidFieldError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import AttentionDetail, RequestContext
from dragoman_service.translation.settings import TranslationLimits
from tests.unit.text.text_fakes import (
    Answer,
    FakeModel,
    FakeQueue,
    encipher,
    make_hypothesis,
    make_request,
    make_result,
    make_translator,
    shout,
    source_text,
    translate_document,
)


# tests/property/test_documents.py compares spans, links, prefixes and seeds with those of a text.
async def test_sentences_index_the_whole_document() -> None:
    text = " ß one. two.\n\n- three!\n"  # the first capital is two letters

    sentences = await translate_document(
        make_translator(FakeModel(FakeQueue(shout))), make_request(text, return_alignment=True)
    )

    target = "".join(sentence.text for sentence in sentences)
    alignments = [sentence.sentence for sentence in sentences if sentence.sentence]
    assert [sentence.text for sentence in sentences] == [" SS ONE.", " TWO.", "\n\n- THREE!\n"]
    assert [text[one.source.start : one.source.end] for one in alignments] == ["ß one.", "two.", "three!"]
    assert [target[one.target.start : one.target.end] for one in alignments] == ["SS ONE.", "TWO.", "THREE!"]
    link = sentences[1].hypotheses[0].alignment[-1]
    assert (link.source.end, link.target.end) == (12, 4)  # in the document, and in the sentence


async def test_document_without_words_is_unchanged() -> None:
    (sentence,) = await translate_document(make_translator(FakeModel()), make_request("...\n"))

    assert (sentence.text, sentence.hypotheses, sentence.sentence) == ("...\n", (), None)
    assert (sentence.model_name, sentence.model_version) == ("toy", "1")


async def test_attention_of_a_document_is_limited_for_each_sentence() -> None:
    sentence = "a" * 60 + ".\n"
    model, options = FakeModel(FakeQueue(shout)), {"return_attention": AttentionDetail.ALL_HEADS}

    sentences = await translate_document(make_translator(model), make_request(sentence * 20, **options))

    assert len(sentences) == 20  # of 1,260 tokens together
    with pytest.raises(InvalidFieldError, match="512"):
        await translate_document(make_translator(model), make_request("a" * 1000, **options))


async def test_sentences_before_an_error_are_valid() -> None:
    def answer(segment: Segment) -> Answer:
        return EngineError("decoding failed") if source_text(segment) == "Three." else shout(segment)

    translator = make_translator(FakeModel(FakeQueue(answer)))
    sentences = translator.translate_document(make_request("One. Two. Three. Four."), RequestContext())

    assert [(await anext(sentences)).text for _ in range(2)] == ["ONE.", " TWO."]
    with pytest.raises(EngineError):
        await anext(sentences)


async def test_closing_a_document_cancels_its_segments() -> None:
    def answer(segment: Segment) -> Answer:
        return encipher(segment) if source_text(segment) == "One." else None

    model = FakeModel(FakeQueue(answer))
    sentences = make_translator(model).translate_document(make_request("One. Two. Three."), RequestContext())
    await anext(sentences)

    await sentences.aclose()

    assert [future.cancelled() for future in model.scheduler.futures] == [False, True, True]


async def test_only_the_window_is_queued_without_a_reader() -> None:
    model = FakeModel(FakeQueue(encipher))
    translator = make_translator(model, limits=TranslationLimits(document_window_segments=5))
    sentences = translator.translate_document(make_request("One more. " * 1000), RequestContext())

    await anext(sentences)

    assert len(model.scheduler.segments) == 5
    await sentences.aclose()


async def test_sentence_has_its_own_hypotheses_warnings_and_timings() -> None:
    def answer(segment: Segment) -> Answer:
        is_second = source_text(segment) == "Two."
        pair = ("x.", -1.0), ("y.", -2.0)
        hypotheses = [make_hypothesis(text, score=score, is_finished=not is_second) for text, score in pair]
        return make_result(*hypotheses, timings=StageTimings(queue_s=2.0 if is_second else 1.0))

    first, second = await translate_document(
        make_translator(FakeModel(FakeQueue(answer))), make_request("One. Two.", num_hypotheses=2)
    )

    assert (first.warnings, first.timings.queue_s) == ((), 1.0)
    assert ([warning.kind for warning in second.warnings], second.timings.queue_s) == ([WarningKind.TRUNCATED], 2.0)
    assert [hypothesis.text for hypothesis in first.hypotheses] == ["x.", "y."]


async def test_time_to_the_first_sentence_is_observed_once() -> None:
    metrics = Metrics(CollectorRegistry())

    await translate_document(make_translator(FakeModel(), metrics=metrics), make_request("One. Two."))

    assert metrics.registry.get_sample_value("dragoman_first_sentence_seconds_count") == 1
    assert metrics.registry.get_sample_value("dragoman_text_duration_seconds_count") == 1
