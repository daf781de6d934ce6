import asyncio
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import Priority, Segment, Span, StageTimings, TranslatedSentence, WarningKind
from dragoman_service.errors import EngineError, InvalidFieldError, OverloadedError, UnsupportedFieldError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import (
    AttentionDetail,
    LongSentencePolicy,
    RequestRecord,
    SamplingOptions,
    TranslationOptions,
    TranslationRequest,
)
from dragoman_service.translation.options import TranslationLimits
from dragoman_service.translation.translator import Translator
from tests.unit.text.text_fakes import (
    Answer,
    FakeModel,
    FakeQueue,
    make_hypothesis,
    make_result,
    shout,
    source_text,
)


def _request(text: str, **options: Any) -> TranslationRequest:
    return TranslationRequest(
        texts=(text,),
        source_language="en",
        target_language="de",
        model="toy",
        options=TranslationOptions(**options),
    )


def _documents(model: FakeModel, **arguments: Any) -> Translator:
    return Translator(model, metrics=arguments.pop("metrics", None) or Metrics(CollectorRegistry()), **arguments)


async def _sentences(
    model: FakeModel, request: TranslationRequest, context: RequestRecord | None = None, **arguments: Any
) -> list[TranslatedSentence]:
    sentences = _documents(model, **arguments).translate_document(request, context or RequestRecord())
    return [sentence async for sentence in sentences]


async def test_sentences_are_ordered_and_add_up_to_the_translation() -> None:
    sentences = await _sentences(FakeModel(FakeQueue(shout)), _request(" one. two.\n\n- three!\n"))

    assert [sentence.text for sentence in sentences] == [" ONE.", " TWO.", "\n\n- THREE!\n"]
    assert [sentence.hypotheses[0].text for sentence in sentences] == ["ONE.", "TWO.", "THREE!"]


async def test_spans_index_the_whole_document() -> None:
    text = "ß one. two."  # the first capital is two letters

    sentences = await _sentences(FakeModel(FakeQueue(shout)), _request(text))

    target = "".join(sentence.text for sentence in sentences)
    places = [sentence.sentence for sentence in sentences if sentence.sentence]
    assert [text[one.source.start : one.source.end] for one in places] == ["ß one.", "two."]
    assert [target[one.target.start : one.target.end] for one in places] == ["SS ONE.", "TWO."]


async def test_links_start_in_the_document_and_end_in_the_sentence() -> None:
    sentences = await _sentences(FakeModel(FakeQueue(shout)), _request("one. two.", return_alignment=True))

    last = sentences[1].hypotheses[0].alignment[-1]
    assert (last.source.end, last.target.end) == (9, 4)


async def test_document_without_words_is_unchanged() -> None:
    (sentence,) = await _sentences(FakeModel(), _request("...\n"))

    assert (sentence.text, sentence.hypotheses, sentence.sentence) == ("...\n", (), None)
    assert (sentence.model_name, sentence.model_version) == ("toy", "1")


async def test_context_and_options_reach_the_queue() -> None:
    model, context = FakeModel(), RequestRecord(deadline_s=1e12, priority=Priority.BULK)

    await _sentences(model, _request("One.", beam_size=3), context)

    assert model.scheduler.context is context
    assert model.scheduler.segments[0].search.beam_size == 3


async def test_only_the_first_sentence_has_the_prefix_and_each_has_its_own_seed() -> None:
    model = FakeModel()

    await _sentences(model, _request("One. Two.", target_prefix="x", sampling=SamplingOptions(seed=3)))

    searches = [segment.search for segment in model.scheduler.segments]
    assert [bool(search.target_prefix) for search in searches] == [True, False]
    assert len({search.sampling.seed for search in searches if search.sampling}) == 2


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (_request(""), "text"),
        (_request("a" * 101), "text"),
        (_request("\ud800"), "text"),
        (_request("a", beam_size=0), "options.beam_size"),
        (_request("a", target_prefix="b" * 9, max_target_tokens=9), "options.target_prefix"),
        (_request("a" * 64, long_sentences=LongSentencePolicy.REFUSE), "text"),
    ],
)
async def test_document_beyond_a_limit_is_rejected_before_the_queue(request_: TranslationRequest, field: str) -> None:
    model = FakeModel()

    with pytest.raises(InvalidFieldError) as caught:
        await _sentences(model, request_, limits=TranslationLimits(max_document_characters=100))

    assert caught.value.field == field
    assert not model.scheduler.segments


async def test_model_without_attention_rejects_an_alignment() -> None:
    model = FakeModel(has_attention=False)

    with pytest.raises(UnsupportedFieldError, match="return_alignment"):
        await _sentences(model, _request("a", return_alignment=True))


async def test_attention_of_a_document_is_limited_for_each_sentence() -> None:
    sentence = "a" * 60 + ".\n"
    model = FakeModel(FakeQueue(shout))

    sentences = await _sentences(model, _request(sentence * 20, return_attention=AttentionDetail.ALL_HEADS))

    assert len(sentences) == 20  # of 1,260 tokens together
    with pytest.raises(InvalidFieldError, match="512"):
        await _sentences(model, _request("a" * 1000, return_attention=AttentionDetail.ALL_HEADS))


async def test_sentences_before_an_error_are_valid() -> None:
    def answer(segment: Segment) -> Answer:
        return EngineError("decoding failed") if source_text(segment) == "Three." else shout(segment)

    sentences = _documents(FakeModel(FakeQueue(answer))).translate_document(
        _request("One. Two. Three. Four."), RequestRecord()
    )

    assert [(await anext(sentences)).text for _ in range(2)] == ["ONE.", " TWO."]
    with pytest.raises(EngineError):
        await anext(sentences)


async def test_full_queue_rejects_the_document() -> None:
    class FullQueue(FakeQueue):
        def submit(self, segments: Any, *_: Any, **__: Any) -> Any:
            raise OverloadedError(queued=1, limit=1, unit="segments", retry_after_s=1.0)

    with pytest.raises(OverloadedError):
        await _sentences(FakeModel(FullQueue()), _request("One."))


async def test_closing_a_document_cancels_its_segments() -> None:
    def answer(segment: Segment) -> Answer:
        return shout(segment) if source_text(segment) == "One." else None

    model = FakeModel(FakeQueue(answer))
    sentences = _documents(model).translate_document(_request("One. Two. Three."), RequestRecord())
    await anext(sentences)

    await sentences.aclose()

    assert [future.cancelled() for future in model.scheduler.futures] == [False, True, True]


async def test_cancelling_the_reader_cancels_the_segments() -> None:
    model = FakeModel(FakeQueue(lambda _: None))
    task = asyncio.create_task(_sentences(model, _request("One. Two.")))
    while not (model.scheduler.futures or task.done()):
        await asyncio.sleep(0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert all(future.cancelled() for future in model.scheduler.futures)


async def test_only_the_window_is_queued_without_a_reader() -> None:
    model = FakeModel(FakeQueue(shout))
    limits = TranslationLimits(document_window_segments=5)
    sentences = _documents(model, limits=limits).translate_document(_request("One more. " * 1000), RequestRecord())

    await anext(sentences)

    assert len(model.scheduler.segments) == 5
    await sentences.aclose()


async def test_sentence_has_its_own_warnings_and_timings() -> None:
    def answer(segment: Segment) -> Answer:
        is_second = source_text(segment) == "Two."
        return make_result(
            make_hypothesis("x", is_finished=not is_second), timings=StageTimings(queue_s=2.0 if is_second else 1.0)
        )

    first, second = await _sentences(FakeModel(FakeQueue(answer)), _request("One. Two."))

    assert (first.warnings, first.timings.queue_s) == ((), 1.0)
    assert ([warning.kind for warning in second.warnings], second.timings.queue_s) == ([WarningKind.TRUNCATED], 2.0)


async def test_time_to_the_first_sentence_is_observed_once() -> None:
    metrics = Metrics(CollectorRegistry())

    await _sentences(FakeModel(), _request("One. Two."), metrics=metrics)

    assert metrics.registry.get_sample_value("dragoman_first_sentence_seconds_count") == 1
    assert metrics.registry.get_sample_value("dragoman_text_duration_seconds_count") == 1


async def test_parts_of_a_long_sentence_are_one_sentence() -> None:
    model = FakeModel(FakeQueue(shout), max_source_tokens=10)

    (sentence,) = await _sentences(model, _request("one two three four five"))

    assert sentence.sentence
    assert sentence.sentence.is_split
    assert sentence.text == "ONE TWO THREE FOUR FIVE"
    assert sentence.sentence.target == Span(start=0, end=23)


async def test_sentence_has_its_own_hypotheses() -> None:
    def answer(segment: Segment) -> Answer:
        return make_hypothesis(source_text(segment).upper()), make_hypothesis("b", score=-2.0)

    request = _request("one. two.", num_hypotheses=2)

    sentences = await _sentences(FakeModel(FakeQueue(answer)), replace(request))

    assert [[one.text for one in sentence.hypotheses] for sentence in sentences] == [["ONE.", "b"], ["TWO.", "b"]]
