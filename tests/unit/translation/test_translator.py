import asyncio
import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import (
    Degeneration,
    DegenerationKind,
    GuardReport,
    Priority,
    Segment,
    SegmentResult,
    StageTimings,
    WarningKind,
)
from dragoman_service.errors import (
    DeadlineExceededError,
    EngineError,
    InvalidFieldError,
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
    TranslationOptions,
    TranslationRequest,
)
from dragoman_service.translation.options import TranslationLimits
from dragoman_service.translation.translator import Translator
from tests.unit.text.text_fakes import (
    TOKENIZER,
    Answer,
    CharacterTokenizer,
    FakeModel,
    FakeQueue,
    make_hypothesis,
    make_result,
    shout,
    source_text,
)

REFUSE = LongSentencePolicy.REFUSE


def _request(*texts: str, **options: Any) -> TranslationRequest:
    return TranslationRequest(
        texts=texts,
        source_language="en",
        target_language="de",
        model="toy",
        options=TranslationOptions(**options),
    )


def _translator(model: FakeModel, **arguments: Any) -> Translator:
    return Translator(model, metrics=arguments.pop("metrics", None) or Metrics(CollectorRegistry()), **arguments)


async def _pending(model: FakeModel, *texts: str) -> "asyncio.Task[Any]":
    """Start a translation and let it come to where it waits for its segments."""
    task = asyncio.create_task(_translator(model).translate(_request(*texts), RequestContext()))
    while not (model.engine.futures or task.done()):
        await asyncio.sleep(0)
    return task


async def test_every_text_is_answered_in_order() -> None:
    result = await _translator(FakeModel(FakeQueue(shout))).translate(
        _request("One. Two.", "", " three\n"), RequestContext()
    )

    assert [translation.hypotheses[0].text for translation in result.translations] == ["ONE. TWO.", "", " THREE\n"]


async def test_the_result_names_the_model_and_counts_tokens() -> None:
    model = FakeModel(FakeQueue(lambda _: (make_hypothesis("abc"),)), name="small", version="7")

    result = await _translator(model).translate(_request("One. Two.", "3"), RequestContext())

    assert (result.model_name, result.model_version) == ("small", "7")
    assert model.resolved == ("toy", "en", "de")
    assert result.num_source_tokens == 5 + 5 + 2
    assert result.num_target_tokens == 3 * 4


async def test_counted_tokens_are_those_of_the_best_hypothesis_that_is_returned() -> None:
    model = FakeModel(FakeQueue(lambda _: (make_hypothesis(""), make_hypothesis("abc"))))

    result = await _translator(model).translate(_request("One.", num_hypotheses=2), RequestContext())

    (translation,) = result.translations
    assert [one.text for one in translation.hypotheses] == ["abc"]
    assert result.num_target_tokens == translation.sentences[0].num_target_tokens == 4


async def test_all_segments_are_queued_at_once_with_the_context_of_their_request() -> None:
    model, context = FakeModel(), RequestContext(deadline_s=1e12, priority=Priority.BULK)

    await _translator(model).translate(_request("One. Two.", "Three."), context)

    assert list(map(source_text, model.engine.segments)) == ["One.", "Two.", "Three."]
    assert model.engine.context is context


async def test_options_reach_the_search() -> None:
    model = FakeModel()

    await _translator(model).translate(
        _request("One.", beam_size=3, num_hypotheses=2, length_penalty=0.0, min_target_tokens=1), RequestContext()
    )

    search = model.engine.segments[0].search
    assert (search.beam_size, search.num_hypotheses, search.length_penalty) == (3, 2, 0.0)
    assert search.min_target_tokens == 1


@pytest.mark.parametrize("texts", [("",), (" \n", "...")])
async def test_nothing_is_queued_for_texts_without_anything_to_translate(texts: tuple[str, ...]) -> None:
    model = FakeModel()

    result = await _translator(model).translate(_request(*texts), RequestContext())

    assert tuple(translation.hypotheses[0].text for translation in result.translations) == texts
    assert model.engine.context is None
    assert result.num_source_tokens == result.num_target_tokens == 0


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (_request(), "texts"),
        (_request("a", beam_size=0), "options.beam_size"),
        (_request("a", max_target_tokens=201), "options.max_target_tokens"),
        (_request("a b. " * 30), "texts"),
        (_request("a", target_prefix="b" * 1001), "options.target_prefix"),
        (_request("a", target_prefix="b" * 9, max_target_tokens=9), "options.target_prefix"),
        (replace(_request("a"), target_prefixes=("b", "c")), "target_prefixes"),
        (_request("a", suppressed_tokens=("b", "no piece")), "options.suppressed_tokens[1]"),
        (
            _request("a" * 63, long_sentences=REFUSE, sampling=SamplingOptions(seed=-1)),
            "options.sampling.seed",
        ),
        (_request("a" * 64, long_sentences=REFUSE), "texts[0]"),
    ],
)
async def test_a_request_beyond_a_limit_is_rejected_before_the_queue(request_: TranslationRequest, field: str) -> None:
    model = FakeModel()

    with pytest.raises(InvalidFieldError) as caught:
        await _translator(model, limits=TranslationLimits(max_request_source_tokens=100)).translate(
            request_, RequestContext()
        )

    assert caught.value.field == field
    assert model.engine.segments == []


async def test_more_attention_than_an_answer_holds_is_rejected_before_the_queue() -> None:
    model = FakeModel()
    request = _request("a b c d. " * 60, return_attention=AttentionDetail.ALL_HEADS)

    with pytest.raises(InvalidFieldError, match="540 or more source tokens times 1 hypotheses"):
        await _translator(model).translate(request, RequestContext())

    assert model.engine.segments == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"coverage_penalty": 0.1}, "options.coverage_penalty"),
        ({"return_alignment": True}, "options.return_alignment"),
        ({"return_attention": AttentionDetail.AVERAGED}, "options.return_attention"),
    ],
)
async def test_a_model_that_cannot_tell_its_attention_rejects_what_needs_it(
    options: dict[str, Any], field: str
) -> None:
    model = FakeModel(has_attention=False)

    with pytest.raises(UnsupportedFieldError) as caught:
        await _translator(model).translate(_request("One.", **options), RequestContext())

    assert caught.value.field == field
    assert model.engine.segments == []


async def test_a_model_that_cannot_tell_its_attention_translates_all_else() -> None:
    model = FakeModel(has_attention=False)

    result = await _translator(model).translate(_request("One.", coverage_penalty=0.0), RequestContext())

    assert result.translations[0].hypotheses[0].text == "One."


async def test_constraints_reach_the_search() -> None:
    model = FakeModel()

    await _translator(model).translate(
        _request(
            "One.",
            no_repeat_ngram_size=3,
            repetition_penalty=1.5,
            coverage_penalty=0.25,
            repetition_guard=False,
            early_stopping=True,
            suppressed_tokens=("x",),
            target_prefix="Ei",
        ),
        RequestContext(),
    )

    search = model.engine.segments[0].search
    assert (search.no_repeat_ngram_size, search.repetition_penalty, search.coverage_penalty) == (3, 1.5, 0.25)
    assert search.suppressed_tokens == set(TOKENIZER.encode("x"))
    assert search.target_prefix == tuple(TOKENIZER.encode("Ei"))
    assert not search.repetition_guard
    assert search.early_stopping


async def _drawn(seed: int | None, *, server_seed: int = 0) -> list[int]:
    """Return the seeds of the segments of a request."""
    model = FakeModel()
    request = _request("One. Two.", sampling=SamplingOptions(seed=seed))
    await _translator(model, draw_seed=lambda: server_seed).translate(request, RequestContext())
    return [segment.search.sampling.seed for segment in model.engine.segments if segment.search.sampling]


async def test_a_seed_makes_a_request_repeatable() -> None:
    assert await _drawn(7) == await _drawn(7, server_seed=1)
    assert await _drawn(7) != await _drawn(8)


async def test_without_a_seed_each_request_gets_its_own() -> None:
    assert await _drawn(None, server_seed=1) != await _drawn(None, server_seed=2)
    assert len(await _drawn(None)) == 2


async def test_an_alignment_is_returned_if_asked_for() -> None:
    result = await _translator(FakeModel()).translate(_request("One. Two.", return_alignment=True), RequestContext())

    links = result.translations[0].hypotheses[0].alignment
    assert [(link.source, link.target) for link in links] == [(link.source, link.source) for link in links]
    assert len(links) == len("One.Two.")


async def test_what_the_guard_found_is_told_and_counted() -> None:
    registry = CollectorRegistry()
    loop = Degeneration(kind=DegenerationKind.REPETITION, detail="a loop")
    report = GuardReport(found=(loop,), remaining=(loop,), is_replaced=False)
    answer = replace(make_result(make_hypothesis("a")), guard=report)

    result = await _translator(FakeModel(FakeQueue(lambda _: answer)), metrics=Metrics(registry)).translate(
        _request("One."), RequestContext()
    )

    (warning,) = result.translations[0].warnings
    assert warning.kind is WarningKind.REPETITION
    assert registry.get_sample_value("dragoman_translation_warnings_total", {"kind": "repetition"}) == 1


async def test_the_first_failure_cancels_the_rest_and_is_raised_as_it_is() -> None:
    def answer(segment: Segment) -> Answer:
        return DeadlineExceededError("decode") if source_text(segment) == "Two." else None

    model = FakeModel(FakeQueue(answer))

    with pytest.raises(DeadlineExceededError):
        await _translator(model).translate(_request("One. Two. Three."), RequestContext())

    assert [future.cancelled() for future in model.engine.futures] == [True, False, True]


async def test_further_failures_are_not_reported_as_forgotten() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    model = FakeModel(FakeQueue(lambda _: EngineError("decoding failed")))

    with pytest.raises(EngineError):
        await _translator(model).translate(_request("One. Two. Three."), RequestContext())
    await asyncio.sleep(0)

    assert complaints == []


async def test_cancelling_the_call_cancels_its_segments() -> None:
    model = FakeModel(FakeQueue(lambda _: None))
    task = await _pending(model, "One. Two.", "Three.")

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(future.cancelled() for future in model.engine.futures)


async def test_a_segment_cancelled_by_another_thread_is_an_error_of_the_server() -> None:
    model = FakeModel(FakeQueue(lambda _: None))
    task = await _pending(model, "One. Two.")

    for future in model.engine.futures:
        future.cancel()

    with pytest.raises(EngineError):
        await task


async def test_answers_may_come_from_another_thread_in_any_order() -> None:
    model = FakeModel(FakeQueue(lambda _: None))
    task = await _pending(model, "One. Two.")

    def answer() -> None:
        for text, future in reversed(list(zip(("Eins.", "Zwei."), model.engine.futures, strict=True))):
            future.set_result(make_result(make_hypothesis(text)))

    thread = threading.Thread(target=answer)
    thread.start()
    result = await task
    thread.join()

    assert result.translations[0].hypotheses[0].text == "Eins. Zwei."


async def test_a_full_queue_rejects_the_request() -> None:
    class FullQueue(FakeQueue):
        def submit(
            self,
            segments: Sequence[Segment],
            context: RequestContext,
            *,
            num_characters: int = 0,
        ) -> "list[Future[SegmentResult]]":
            raise OverloadedError(queued=9, limit=10, unit="segments", retry_after_s=1.0)

    with pytest.raises(OverloadedError):
        await _translator(FakeModel(FullQueue())).translate(_request("One."), RequestContext())


async def test_a_request_rejected_early_is_not_tokenized() -> None:
    class UntouchedTokenizer(CharacterTokenizer):
        def encode(self, text: str) -> list[int]:
            raise AssertionError(f"tokenized {text}")

    error = OverloadedError(queued=9, limit=10, unit="segments", retry_after_s=1.0)
    model = FakeModel(FakeQueue(rejection=error), tokenizer=UntouchedTokenizer())

    with pytest.raises(OverloadedError):
        await _translator(model).translate(_request("One."), RequestContext())


async def test_timings_are_those_of_the_slowest_segment_and_all_text_work() -> None:
    model = FakeModel(FakeQueue(timings=StageTimings(queue_s=0.5, encode_s=0.25, decode_s=2.0)))
    ticks = itertools.count()

    result = await _translator(model, clock=lambda: float(next(ticks))).translate(_request("A. B."), RequestContext())

    assert result.timings == StageTimings(queue_s=0.5, encode_s=0.25, decode_s=2.0, text_s=2.0)


async def test_text_time_and_warnings_are_recorded() -> None:
    registry = CollectorRegistry()
    model = FakeModel(FakeQueue(lambda _: (make_hypothesis("abc", is_finished=False),)))

    result = await _translator(model, metrics=Metrics(registry)).translate(_request("One. Two."), RequestContext())

    assert [warning.kind for warning in result.translations[0].warnings] == [WarningKind.TRUNCATED] * 2
    assert registry.get_sample_value("dragoman_translation_warnings_total", {"kind": "truncated"}) == 2
    assert registry.get_sample_value("dragoman_text_duration_seconds_count") == 1


class _ThreadRecorder(CharacterTokenizer):
    """Remembers where it was used."""

    def __init__(self) -> None:
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
async def test_much_text_is_worked_on_outside_the_event_loop(
    num_sentences: int, options: dict[str, Any], is_here: bool
) -> None:
    tokenizer = _ThreadRecorder()

    await _translator(FakeModel(tokenizer=tokenizer)).translate(
        _request("One. " * num_sentences, **options), RequestContext()
    )

    assert (threading.get_ident() in tokenizer.threads) is is_here


class HeldTokenizer(CharacterTokenizer):
    """Encodes nothing until it is let go; knows how many threads were at it at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.num_encoded = self.num_inside = self.most_inside = 0
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        with self._lock:
            self.num_encoded += 1
            self.num_inside += 1
            self.most_inside = max(self.most_inside, self.num_inside)
        self.entered.release()
        assert self.let_go.wait(TIMEOUT_S)
        with self._lock:
            self.num_inside -= 1
        return super().encode(text)


NUM_SENTENCES = 200
LONG_TEXT = "A man walks. " * NUM_SENTENCES
TIMEOUT_S = 30.0


@pytest.mark.parametrize("is_document", [False, True])
async def test_text_work_of_a_caller_who_left_ends_at_the_next_sentence(is_document: bool) -> None:
    tokenizer = HeldTokenizer()
    one = _translator(FakeModel(tokenizer=tokenizer))
    context = RequestContext(caller="left")

    async def all_sentences() -> list[str]:
        return [sentence.text async for sentence in one.translate_document(_request(LONG_TEXT), context)]

    call = asyncio.ensure_future(all_sentences() if is_document else one.translate(_request(LONG_TEXT), context))
    await asyncio.to_thread(tokenizer.entered.acquire, timeout=TIMEOUT_S)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    tokenizer.let_go.set()
    await one.translate(_request(LONG_TEXT), context)  # its turn comes when the other has ended

    assert tokenizer.num_encoded == 1 + NUM_SENTENCES


async def test_long_texts_of_one_caller_are_worked_on_one_after_the_other_of_two_callers_side_by_side() -> None:
    tokenizer = HeldTokenizer()
    one = _translator(FakeModel(tokenizer=tokenizer))
    calls = [
        asyncio.ensure_future(one.translate(_request(LONG_TEXT), RequestContext(caller=caller)))
        for caller in ("much", "much", "much", "other")
    ]
    for _ in range(2):
        await asyncio.to_thread(tokenizer.entered.acquire, timeout=TIMEOUT_S)

    tokenizer.let_go.set()
    await asyncio.gather(*calls)

    assert (tokenizer.most_inside, tokenizer.num_encoded) == (2, 4 * NUM_SENTENCES)
