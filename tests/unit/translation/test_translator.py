import asyncio
import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import Priority, Segment, StageTimings, WarningKind
from dragoman_service.errors import (
    DeadlineExceededError,
    EngineError,
    InvalidFieldError,
    ModelNotFoundError,
    OverloadedError,
    UnsupportedFieldError,
)
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import (
    AttentionDetail,
    LongSentencePolicy,
    RequestContext,
    SamplingOptions,
    Term,
    TextFormat,
    TranslationRequest,
)
from dragoman_service.translation.settings import TranslationLimits
from dragoman_service.translation.translator import Translator
from tests.unit.text.text_fakes import (
    TOKENIZER,
    Answer,
    CharacterTokenizer,
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

OVERLOADED = OverloadedError(queued=9, limit=10, unit="segments", retry_after_s=1.0)


async def translated(model: FakeModel, *texts: str, **options: Any) -> Any:
    return await make_translator(model).translate(make_request(*texts, **options), RequestContext())


async def called(
    translator: Translator, request: TranslationRequest, context: RequestContext | None = None, *, is_document: bool
) -> Any:
    if is_document:
        return await translate_document(translator, request, context)
    return await translator.translate(request, context or RequestContext())


async def pending(model: FakeModel, *texts: str, is_document: bool = False) -> "asyncio.Task[Any]":
    """Start a translation and run it until it waits for its segments."""
    task = asyncio.create_task(called(make_translator(model), make_request(*texts), is_document=is_document))
    while not (model.scheduler.futures or task.done()):
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("is_document", [False, True])
async def test_text_in_the_target_language_is_returned_unchanged_and_costs_no_tokens(*, is_document: bool) -> None:
    async def take_tokens(*_: object) -> Any:
        raise AssertionError("charged")

    class NoModel(FakeModel):
        def resolve(self, model: str, source_language: str, target_language: str) -> FakeModel:
            raise ModelNotFoundError("source_language", f"{source_language} to {target_language}", ())

    translator = make_translator(NoModel(), take_tokens=take_tokens)
    request = replace(make_request("One. Two."), source_language="de-CH", target_language="DE")

    answer = await called(translator, request, is_document=is_document)

    if is_document:
        assert [(each.text, each.is_unchanged, each.model_name) for each in answer] == [("One. Two.", True, "")]
    else:
        assert [(each.hypotheses[0].text, each.is_unchanged) for each in answer.translations] == [("One. Two.", True)]
        assert (answer.model_name, answer.num_source_tokens) == ("", 0)


async def test_served_model_translates_an_identical_pair() -> None:
    request = replace(make_request("One."), target_language="en")
    result = await make_translator(FakeModel(FakeQueue(shout))).translate(request, RequestContext())

    assert (result.translations[0].hypotheses[0].text, result.translations[0].is_unchanged) == ("ONE.", False)


async def test_texts_are_translated_in_order_with_the_selected_model() -> None:
    model = FakeModel(FakeQueue(shout), name="small", version="7")

    result = await translated(model, "One. Two.", "", " three\n")

    assert [translation.hypotheses[0].text for translation in result.translations] == ["ONE. TWO.", "", " THREE\n"]
    assert model.resolved == ("toy", "en", "de")
    assert (result.model_name, result.model_version) == ("small", "7")
    assert result.num_source_tokens == result.num_target_tokens == 5 + 5 + 6


async def test_number_of_tokens_is_that_of_the_best_returned_hypothesis() -> None:
    model = FakeModel(FakeQueue(lambda _: (make_hypothesis(""), make_hypothesis("abc"))))

    result = await translated(model, "One.", num_hypotheses=2)

    (translation,) = result.translations
    assert [hypothesis.text for hypothesis in translation.hypotheses] == ["abc."]
    assert result.num_target_tokens == translation.sentences[0].num_target_tokens == 4


@pytest.mark.parametrize("is_document", [False, True])
async def test_all_segments_are_queued_at_once_with_context_and_options(is_document: bool) -> None:
    model, context = FakeModel(FakeQueue(encipher)), RequestContext(deadline_s=1e12, priority=Priority.BULK)
    request = make_request("One. Two.", beam_size=3, num_hypotheses=2, suppressed_tokens=("x",), target_prefix="Ei")

    await called(make_translator(model), request, context, is_document=is_document)

    assert list(map(source_text, model.scheduler.segments)) == ["One.", "Two."]
    assert model.scheduler.context is context
    search = model.scheduler.segments[0].search
    assert (search.beam_size, search.num_hypotheses) == (3, 2)
    assert search.suppressed_tokens == set(TOKENIZER.encode("x"))
    assert search.target_prefix == tuple(TOKENIZER.encode("Ei"))


@pytest.mark.parametrize("texts", [("",), (" \n", "...")])
async def test_texts_without_words_are_not_queued(texts: tuple[str, ...]) -> None:
    model = FakeModel()

    result = await translated(model, *texts)

    assert tuple(translation.hypotheses[0].text for translation in result.translations) == texts
    assert model.scheduler.context is None
    assert result.num_source_tokens == result.num_target_tokens == 0


@pytest.mark.parametrize(
    ("is_document", "request_", "field"),
    [
        (False, make_request(), "texts"),
        (False, make_request("a", max_target_tokens=201), "options.max_target_tokens"),
        (False, make_request("a b. " * 30), "texts"),
        (False, make_request("a" * 60, return_attention=AttentionDetail.ALL_HEADS, num_hypotheses=16), "texts"),
        (False, make_request("a" * 64, long_sentences=LongSentencePolicy.REFUSE), "texts[0]"),
        (True, make_request(""), "text"),
        (True, make_request("a" * 101), "text"),
        (True, make_request("a", target_prefix="b" * 9, max_target_tokens=9), "options.target_prefix"),
        (True, make_request("a" * 64, long_sentences=LongSentencePolicy.REFUSE), "text"),
    ],
)
async def test_request_beyond_a_limit_is_rejected_before_the_queue(
    is_document: bool, request_: TranslationRequest, field: str
) -> None:
    model = FakeModel()
    limits = TranslationLimits(max_request_source_tokens=130, max_document_characters=100)

    with pytest.raises(InvalidFieldError) as caught:
        await called(make_translator(model, limits=limits), request_, is_document=is_document)

    assert caught.value.field == field
    assert model.scheduler.segments == []


@pytest.mark.parametrize(
    ("option", "value"),
    [("coverage_penalty", 0.1), ("return_alignment", True), ("return_attention", AttentionDetail.AVERAGED)],
)
async def test_model_without_attention_rejects_options_that_need_it(option: str, value: Any) -> None:
    model = FakeModel(has_attention=False)

    with pytest.raises(UnsupportedFieldError) as caught:
        await translated(model, "One.", **{option: value})

    assert caught.value.field == f"options.{option}"
    assert model.scheduler.segments == []
    assert (await translated(model, "One.", coverage_penalty=0.0)).translations[0].hypotheses[0].text == "One."


async def drawn_seeds(seed: int | None, *, server_seed: int = 0) -> list[int]:
    model = FakeModel()
    request = make_request("One. Two.", sampling=SamplingOptions(seed=seed))
    await make_translator(model, draw_seed=lambda: server_seed).translate(request, RequestContext())
    return [segment.search.sampling.seed for segment in model.scheduler.segments if segment.search.sampling]


async def test_seed_of_the_request_is_used_or_a_new_one_is_drawn() -> None:
    assert await drawn_seeds(7) == await drawn_seeds(7, server_seed=1)
    assert await drawn_seeds(7) != await drawn_seeds(8)
    assert await drawn_seeds(None, server_seed=1) != await drawn_seeds(None, server_seed=2)
    assert len(await drawn_seeds(None)) == 2


async def test_first_failure_is_raised_and_cancels_the_rest() -> None:
    def answer(segment: Segment) -> Answer:
        return DeadlineExceededError("decode") if source_text(segment) == "Two." else None

    model = FakeModel(FakeQueue(answer))

    with pytest.raises(DeadlineExceededError):
        await translated(model, "One. Two. Three.")

    assert [future.cancelled() for future in model.scheduler.futures] == [True, False, True]


async def test_further_failures_are_marked_as_retrieved() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    model = FakeModel(FakeQueue(lambda _: EngineError("decoding failed")))

    with pytest.raises(EngineError):
        await translated(model, "One. Two. Three.")
    await asyncio.sleep(0)

    assert complaints == []


@pytest.mark.parametrize("is_document", [False, True])
async def test_cancelled_call_cancels_its_segments(is_document: bool) -> None:
    model = FakeModel(FakeQueue(lambda _: None))
    task = await pending(model, "One. Two.", is_document=is_document)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(future.cancelled() for future in model.scheduler.futures)


async def test_segment_cancelled_by_the_engine_is_an_engine_error() -> None:
    model = FakeModel(FakeQueue(lambda _: None))
    task = await pending(model, "One. Two.")

    for future in model.scheduler.futures:
        future.cancel()

    with pytest.raises(EngineError):
        await task


async def test_results_may_come_from_another_thread_in_any_order() -> None:
    model = FakeModel(FakeQueue(lambda _: None))
    task = await pending(model, "One. Two.")

    def answer() -> None:
        for text, future in reversed(list(zip(("Eins.", "Zwei."), model.scheduler.futures, strict=True))):
            future.set_result(make_result(make_hypothesis(text)))

    await asyncio.to_thread(answer)

    assert (await task).translations[0].hypotheses[0].text == "Eins. Zwei."


async def test_request_rejected_early_is_not_tokenized() -> None:
    class UntouchedTokenizer(CharacterTokenizer):
        def encode(self, text: str) -> list[int]:
            raise AssertionError(f"tokenized {text}")

    model = FakeModel(FakeQueue(rejection=OVERLOADED), tokenizer=UntouchedTokenizer())

    with pytest.raises(OverloadedError):
        await translated(model, "One.")


async def test_timings_are_those_of_the_slowest_segment_and_all_text_work() -> None:
    model = FakeModel(FakeQueue(timings=StageTimings(queue_s=0.5, encode_s=0.25, decode_s=2.0)))
    ticks = itertools.count()

    translator = make_translator(model, clock=lambda: float(next(ticks)))
    result = await translator.translate(make_request("A. B."), RequestContext())

    assert result.timings == StageTimings(queue_s=0.5, encode_s=0.25, decode_s=2.0, text_s=2.0)


async def test_text_time_and_warnings_are_recorded() -> None:
    registry = CollectorRegistry()
    model = FakeModel(FakeQueue(lambda _: (make_hypothesis("abc.", is_finished=False),)))

    translator = make_translator(model, metrics=Metrics(registry))
    result = await translator.translate(make_request("One. Two."), RequestContext())

    assert [warning.kind for warning in result.translations[0].warnings] == [WarningKind.TRUNCATED] * 2
    assert registry.get_sample_value("dragoman_translation_warnings_total", {"kind": "truncated"}) == 2
    assert registry.get_sample_value("dragoman_text_duration_seconds_count") == 1


class ThreadRecorder(CharacterTokenizer):
    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def encode(self, text: str) -> list[int]:
        self.threads.add(threading.get_ident())
        return super().encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        self.threads.add(threading.get_ident())
        return super().decode(token_ids)


@pytest.mark.parametrize(
    ("num_sentences", "options", "is_here"),
    [
        (1, {}, True),
        (200, {"num_hypotheses": 4}, True),
        (1000, {}, False),
        (200, {"num_hypotheses": 4, "return_alignment": True}, False),
        (100, {"terms": tuple(Term(source=f"term {number}") for number in range(128))}, False),
        (200, {"format": TextFormat.HTML}, False),
    ],
    ids=["small", "many hypotheses", "large", "many alignments", "many terms", "markup"],
)
async def test_long_texts_are_processed_outside_the_event_loop(
    num_sentences: int, options: dict[str, Any], is_here: bool
) -> None:
    tokenizer = ThreadRecorder()

    await translated(FakeModel(tokenizer=tokenizer), "One. " * num_sentences, **options)

    assert (threading.get_ident() in tokenizer.threads) is is_here


class BlockedTokenizer(CharacterTokenizer):
    """Blocks until it is released, and counts the threads inside."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self.released = threading.Event()
        self.num_encoded = self.num_inside = self.most_inside = 0
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        with self._lock:
            self.num_encoded += 1
            self.num_inside += 1
            self.most_inside = max(self.most_inside, self.num_inside)
        self.entered.release()
        assert self.released.wait(TIMEOUT_S)
        with self._lock:
            self.num_inside -= 1
        return super().encode(text)


NUM_SENTENCES = 200
LONG_TEXT = "A man walks. " * NUM_SENTENCES
TIMEOUT_S = 30.0


@pytest.mark.parametrize("is_document", [False, True])
async def test_text_work_of_a_cancelled_call_ends_at_the_next_sentence(is_document: bool) -> None:
    tokenizer = BlockedTokenizer()
    translator = make_translator(FakeModel(FakeQueue(encipher), tokenizer=tokenizer))
    context = RequestContext(caller="cancelled")
    call = asyncio.ensure_future(called(translator, make_request(LONG_TEXT), context, is_document=is_document))
    await asyncio.to_thread(tokenizer.entered.acquire, timeout=TIMEOUT_S)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    tokenizer.released.set()
    await translator.translate(make_request(LONG_TEXT), context)  # starts when the cancelled work has ended

    assert tokenizer.num_encoded == 1 + NUM_SENTENCES


async def test_long_texts_are_processed_one_at_a_time_for_each_caller() -> None:
    tokenizer = BlockedTokenizer()
    translator = make_translator(FakeModel(FakeQueue(encipher), tokenizer=tokenizer))
    calls = [
        asyncio.ensure_future(translator.translate(make_request(LONG_TEXT), RequestContext(caller=caller)))
        for caller in ("busy", "busy", "busy", "other")
    ]
    for _ in range(2):
        await asyncio.to_thread(tokenizer.entered.acquire, timeout=TIMEOUT_S)

    tokenizer.released.set()
    await asyncio.gather(*calls)

    assert (tokenizer.most_inside, tokenizer.num_encoded) == (2, 4 * NUM_SENTENCES)
