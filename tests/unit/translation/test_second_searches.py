"""Second searches of requests and documents: chosen, rejected, failed and cancelled."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import Segment, TranslationWarning, WarningKind
from dragoman_service.errors import (
    DeadlineExceededError,
    DragomanError,
    DrainingError,
    EngineError,
    OverloadedError,
    RateLimitedError,
)
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestContext
from tests.unit.text.text_fakes import (
    Answer,
    FakeModel,
    FakeQueue,
    make_hypothesis,
    make_request,
    make_result,
    make_translator,
    source_text,
    translate_document,
)

OVERLOADED = OverloadedError(queued=9, limit=10, unit="segments", retry_after_s=1.0)
TRANSLATIONS = {
    "One man.": "Ein Mann.",
    "Save": "Save",
    "save": "speichern",
    "Two men.": "Zwei Männer.",
    "Open 2013 now.": "Auf.",
}


class SecondQueue(FakeQueue):
    """A queue that rejects the second calls, or answers the second searches in its own way."""

    def __init__(self, answer: Answer = (), rejection: Exception | None = None) -> None:
        super().__init__(self._translated)
        self.second_answer = answer
        self.second_rejection = rejection

    def submit(self, segments: Sequence[Segment], *arguments: Any, **options: Any) -> Any:
        if self.second_rejection and any(source_text(segment) == "save" for segment in segments):
            raise self.second_rejection
        return super().submit(segments, *arguments, **options)

    def _translated(self, segment: Segment) -> Answer:
        text = source_text(segment)
        if text == "save" and self.second_answer != ():
            return self.second_answer
        return (make_hypothesis(TRANSLATIONS[text]),)


async def translated(
    queue: FakeQueue, text: str, *, is_document: bool, metrics: Metrics | None = None
) -> tuple[str, list[TranslationWarning]]:
    """Return the translation of a text, as a request or a document, and its warnings."""
    arguments = {"metrics": metrics} if metrics else {}
    translator = make_translator(FakeModel(queue), **arguments)
    if is_document:
        sentences = await translate_document(translator, make_request(text))
        warnings = [warning for sentence in sentences for warning in sentence.warnings]
        return "".join(sentence.text for sentence in sentences), warnings
    (translation,) = (await translator.translate(make_request(text), RequestContext())).translations
    return translation.hypotheses[0].text, list(translation.warnings)


def outcomes(metrics: Metrics) -> dict[str, float]:
    name = "dragoman_second_searches_total"
    values = {
        each: metrics.registry.get_sample_value(name, {"outcome": each}) for each in ("replaced", "kept", "skipped")
    }
    return {each: value for each, value in values.items() if value}


@pytest.mark.parametrize("is_document", [False, True])
async def test_better_second_result_is_returned(is_document: bool) -> None:
    metrics, queue = Metrics(CollectorRegistry()), SecondQueue()

    text, warnings = await translated(queue, "One man.\nSave\nTwo men.", is_document=is_document, metrics=metrics)

    assert (text, warnings) == ("Ein Mann.\nSpeichern\nZwei Männer.", [])
    assert sorted(map(source_text, queue.segments)) == ["One man.", "Save", "Two men.", "save"]
    assert outcomes(metrics) == {"replaced": 1}


@pytest.mark.parametrize("is_document", [False, True])
async def test_first_result_is_kept_if_the_second_is_not_better(is_document: bool) -> None:
    metrics, queue = Metrics(CollectorRegistry()), SecondQueue((make_hypothesis("save"),))

    text, warnings = await translated(queue, "Save", is_document=is_document, metrics=metrics)

    assert (text, warnings) == ("Save", [])
    assert outcomes(metrics) == {"kept": 1}


@pytest.mark.parametrize("is_document", [False, True])
@pytest.mark.parametrize(
    "failure",
    [
        {"rejection": OVERLOADED},
        {"rejection": RateLimitedError(caller="a", limit=1.0, unit="tokens/min", retry_after_s=1.0)},
        {"rejection": DrainingError()},
        {"answer": DeadlineExceededError("decode")},
        {"answer": EngineError("decoding failed")},
        {"answer": OVERLOADED},
    ],
    ids=["overloaded", "quota", "draining", "deadline", "engine", "evicted"],
)
async def test_first_result_is_returned_with_a_warning_if_the_second_search_fails(
    failure: dict[str, Any], is_document: bool
) -> None:
    metrics = Metrics(CollectorRegistry())

    text, warnings = await translated(
        SecondQueue(**failure), "One man.\nSave\nTwo men.", is_document=is_document, metrics=metrics
    )

    assert text == "Ein Mann.\nSave\nZwei Männer."
    assert [(warning.kind, warning.sentence_index) for warning in warnings] == [
        (WarningKind.REPAIR_SKIPPED, 0 if is_document else 1)
    ]
    assert outcomes(metrics) == {"skipped": 1}


@pytest.mark.parametrize("is_document", [False, True])
@pytest.mark.parametrize("error", [DeadlineExceededError("decode"), EngineError("decoding failed"), OVERLOADED])
async def test_failed_first_search_fails_the_call(error: DragomanError, is_document: bool) -> None:
    with pytest.raises(type(error)):
        await translated(FakeQueue(lambda _: error), "Save", is_document=is_document)


@pytest.mark.parametrize("is_document", [False, True])
async def test_cancelled_call_cancels_its_second_searches(is_document: bool) -> None:
    queue = SecondQueue(None)
    call = asyncio.ensure_future(translated(queue, "One man.\nSave", is_document=is_document))
    while [source_text(segment) for segment in queue.segments][-1:] != ["save"]:
        await asyncio.sleep(0)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0)

    assert queue.futures[-1].cancelled()


async def test_sentences_before_and_after_a_second_search_of_a_document_are_in_order() -> None:
    queue = SecondQueue(None)
    sentences = make_translator(FakeModel(queue)).translate_document(
        make_request("One man.\nSave\nTwo men."), RequestContext()
    )

    first = await anext(sentences)
    following = asyncio.ensure_future(anext(sentences))
    while [source_text(segment) for segment in queue.segments][-1:] != ["save"]:
        await asyncio.sleep(0)
    assert not following.done()
    queue.futures[-1].set_result(make_result(make_hypothesis("speichern")))

    assert first.text == "Ein Mann."
    assert [(await following).text, (await anext(sentences)).text] == ["\nSpeichern", "\nZwei Männer."]


@pytest.mark.parametrize("is_document", [False, True])
async def test_warning_spans_index_text_and_translation(is_document: bool) -> None:
    text = "One man.\nOpen {name} now.\nTwo men."

    target, warnings = await translated(SecondQueue(), text, is_document=is_document)

    (warning,) = warnings
    assert warning.kind is WarningKind.PLACEHOLDER_LOST
    assert warning.source
    assert text[warning.source.start : warning.source.end] == "{name}"
    assert "{name}" in target


async def test_second_searches_do_not_change_the_counted_tokens() -> None:
    result = await make_translator(FakeModel(SecondQueue())).translate(make_request("Save"), RequestContext())

    sentences = result.translations[0].sentences
    assert result.num_source_tokens == sum(sentence.num_source_tokens for sentence in sentences) == len("Save") + 1
    assert result.num_target_tokens == sum(sentence.num_target_tokens for sentence in sentences) == len("speichern") + 1


async def test_source_tokens_are_those_of_all_sentences() -> None:
    answers = {"We use GitHub.": "Wir nutzen es.", "We use 2013.": "Wir nutzen 2013."}
    queue = FakeQueue(lambda segment: (make_hypothesis(answers[source_text(segment)]),))

    result = await make_translator(FakeModel(queue)).translate(make_request("We use GitHub."), RequestContext())

    assert result.translations[0].hypotheses[0].text == "Wir nutzen GitHub."
    assert result.num_source_tokens == sum(each.num_source_tokens for each in result.translations[0].sentences)
