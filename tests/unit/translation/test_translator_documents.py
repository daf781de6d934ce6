import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import Priority, Segment, StageTimings, TranslatedSentence, WarningKind
from dragoman_service.errors import EngineError, InvalidFieldError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import AttentionDetail, LongSentencePolicy, RequestRecord, TranslationRequest
from dragoman_service.translation.options import TranslationLimits
from tests.unit.text.text_fakes import (
    Answer,
    FakeModel,
    FakeQueue,
    make_hypothesis,
    make_request,
    make_result,
    make_translator,
    shout,
    source_text,
)


async def translated(
    model: FakeModel, request: TranslationRequest, record: RequestRecord | None = None, **arguments: Any
) -> list[TranslatedSentence]:
    sentences = make_translator(model, **arguments).translate_document(request, record or RequestRecord())
    return [sentence async for sentence in sentences]


# tests/property/test_documents.py compares spans, links, prefixes and seeds with those of a text.
async def test_sentences_index_the_whole_document() -> None:
    text = " ß one. two.\n\n- three!\n"  # the first capital is two letters

    sentences = await translated(FakeModel(FakeQueue(shout)), make_request(text, return_alignment=True))

    target = "".join(sentence.text for sentence in sentences)
    alignments = [sentence.sentence for sentence in sentences if sentence.sentence]
    assert [sentence.text for sentence in sentences] == [" SS ONE.", " TWO.", "\n\n- THREE!\n"]
    assert [text[one.source.start : one.source.end] for one in alignments] == ["ß one.", "two.", "three!"]
    assert [target[one.target.start : one.target.end] for one in alignments] == ["SS ONE.", "TWO.", "THREE!"]
    link = sentences[1].hypotheses[0].alignment[-1]
    assert (link.source.end, link.target.end) == (12, 4)  # in the document, and in the sentence


async def test_document_without_words_is_unchanged() -> None:
    (sentence,) = await translated(FakeModel(), make_request("...\n"))

    assert (sentence.text, sentence.hypotheses, sentence.sentence) == ("...\n", (), None)
    assert (sentence.model_name, sentence.model_version) == ("toy", "1")


async def test_record_and_options_reach_the_queue() -> None:
    model, record = FakeModel(), RequestRecord(deadline_s=1e12, priority=Priority.BULK)

    await translated(model, make_request("One.", beam_size=3), record)

    assert model.scheduler.context is record
    assert model.scheduler.segments[0].search.beam_size == 3


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (make_request(""), "text"),
        (make_request("a" * 101), "text"),
        (make_request("a", beam_size=0), "options.beam_size"),
        (make_request("a", target_prefix="b" * 9, max_target_tokens=9), "options.target_prefix"),
        (make_request("a" * 64, long_sentences=LongSentencePolicy.REFUSE), "text"),
    ],
)
async def test_document_beyond_a_limit_is_rejected_before_the_queue(request_: TranslationRequest, field: str) -> None:
    model = FakeModel()

    with pytest.raises(InvalidFieldError) as caught:
        await translated(model, request_, limits=TranslationLimits(max_document_characters=100))

    assert caught.value.field == field
    assert not model.scheduler.segments


async def test_attention_of_a_document_is_limited_for_each_sentence() -> None:
    sentence = "a" * 60 + ".\n"
    model, options = FakeModel(FakeQueue(shout)), {"return_attention": AttentionDetail.ALL_HEADS}

    sentences = await translated(model, make_request(sentence * 20, **options))

    assert len(sentences) == 20  # of 1,260 tokens together
    with pytest.raises(InvalidFieldError, match="512"):
        await translated(model, make_request("a" * 1000, **options))


async def test_sentences_before_an_error_are_valid() -> None:
    def answer(segment: Segment) -> Answer:
        return EngineError("decoding failed") if source_text(segment) == "Three." else shout(segment)

    translator = make_translator(FakeModel(FakeQueue(answer)))
    sentences = translator.translate_document(make_request("One. Two. Three. Four."), RequestRecord())

    assert [(await anext(sentences)).text for _ in range(2)] == ["ONE.", " TWO."]
    with pytest.raises(EngineError):
        await anext(sentences)


async def test_closing_a_document_cancels_its_segments() -> None:
    def answer(segment: Segment) -> Answer:
        return shout(segment) if source_text(segment) == "One." else None

    model = FakeModel(FakeQueue(answer))
    sentences = make_translator(model).translate_document(make_request("One. Two. Three."), RequestRecord())
    await anext(sentences)

    await sentences.aclose()

    assert [future.cancelled() for future in model.scheduler.futures] == [False, True, True]


async def test_cancelling_the_reader_cancels_the_segments() -> None:
    model = FakeModel(FakeQueue(lambda _: None))
    task = asyncio.create_task(translated(model, make_request("One. Two.")))
    while not (model.scheduler.futures or task.done()):
        await asyncio.sleep(0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert all(future.cancelled() for future in model.scheduler.futures)


async def test_only_the_window_is_queued_without_a_reader() -> None:
    model = FakeModel(FakeQueue(shout))
    translator = make_translator(model, limits=TranslationLimits(document_window_segments=5))
    sentences = translator.translate_document(make_request("One more. " * 1000), RequestRecord())

    await anext(sentences)

    assert len(model.scheduler.segments) == 5
    await sentences.aclose()


async def test_sentence_has_its_own_hypotheses_warnings_and_timings() -> None:
    def answer(segment: Segment) -> Answer:
        is_second = source_text(segment) == "Two."
        pair = ("x", -1.0), ("y", -2.0)
        hypotheses = [make_hypothesis(text, score=score, is_finished=not is_second) for text, score in pair]
        return make_result(*hypotheses, timings=StageTimings(queue_s=2.0 if is_second else 1.0))

    first, second = await translated(FakeModel(FakeQueue(answer)), make_request("One. Two.", num_hypotheses=2))

    assert (first.warnings, first.timings.queue_s) == ((), 1.0)
    assert ([warning.kind for warning in second.warnings], second.timings.queue_s) == ([WarningKind.TRUNCATED], 2.0)
    assert [hypothesis.text for hypothesis in first.hypotheses] == ["x", "y"]


async def test_time_to_the_first_sentence_is_observed_once() -> None:
    metrics = Metrics(CollectorRegistry())

    await translated(FakeModel(), make_request("One. Two."), metrics=metrics)

    assert metrics.registry.get_sample_value("dragoman_first_sentence_seconds_count") == 1
    assert metrics.registry.get_sample_value("dragoman_text_duration_seconds_count") == 1
