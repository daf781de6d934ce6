"""The fakes that `dragoman.testing` offers to programs that use the client."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from dragoman.client import (
    AsyncTranslationClient,
    ChannelSettings,
    DeadlineExceededError,
    DragomanError,
    DrainingError,
    EngineError,
    InvalidFieldError,
    ModelNotFoundError,
    OverloadedError,
    RateLimitedError,
    RetrySettings,
    TranslationClient,
)
from dragoman.testing import FakeAsyncTranslationClient, FakeServer, FakeTranslationClient, FakeTranslator
from dragoman.testing.failures import Failure, SentenceFailures
from tests.unit.proto.scripted_server import EN_DE, BlockingClient, text_request

KINDS = {
    "overloaded": OverloadedError,
    "rate-limited": RateLimitedError,
    "unavailable": DrainingError,
    "deadline": DeadlineExceededError,
    "internal": EngineError,
}
ONE_ATTEMPT = ChannelSettings(retry=RetrySettings(max_attempts=1))


@pytest.fixture(params=["sync", "async", "sync over gRPC", "async over gRPC"])
def fake(request: pytest.FixtureRequest) -> Iterator[tuple[Any, FakeTranslator]]:
    """Each fake client, and each real client of the fake server without retries; with the translator that answers."""
    translator = FakeTranslator()
    with ExitStack() as stack:
        is_async, is_remote = request.param.startswith("async"), request.param.endswith("gRPC")
        if is_remote:
            target = stack.enter_context(FakeServer(translator)).target
            options: dict[str, Any] = {"channel": ONE_ATTEMPT}
            client_class: Any = AsyncTranslationClient if is_async else TranslationClient
        else:
            target, options = "localhost", {"translator": translator}
            client_class = FakeAsyncTranslationClient if is_async else FakeTranslationClient
        connect = partial(BlockingClient, client_class) if is_async else client_class
        yield stack.enter_context(connect(target, **options)), translator


def test_texts_are_marked_with_the_target_language(fake: tuple[Any, FakeTranslator]) -> None:
    client, translator = fake

    result = client.translate(["Hello.  How are you?", ""], request_id="r-1", **EN_DE)

    assert [each.text for each in result] == ["[de] Hello.  [de] How are you?", ""]
    assert (result.model_name, result.request_id) == ("fake", "r-1")
    (call,) = translator.calls
    assert (call.method, list(call.request.texts)) == ("Translate", ["Hello.  How are you?", ""])
    assert call.metadata["x-request-id"] == "r-1"


def test_document_is_translated_sentence_by_sentence(fake: tuple[Any, FakeTranslator]) -> None:
    sentences = list(fake[0].translate_document("One. Two.\n", **EN_DE))

    assert "".join(sentence.text for sentence in sentences) == "[de] One. [de] Two.\n"
    assert [sentence.hypotheses[0].text for sentence in sentences] == ["[de] One.", "[de] Two."]


def test_each_request_of_a_stream_is_answered(fake: tuple[Any, FakeTranslator]) -> None:
    client, translator = fake

    answers = list(client.translate_stream([text_request("a"), text_request("b", "fake:overloaded 2")]))

    assert answers[0].result()[0].text == "[de] One."
    assert isinstance(answers[1].outcome, OverloadedError)
    assert answers[1].outcome.retry_after_s == 2.0
    assert [call.request.request_id for call in translator.calls] == ["a", "b"]


def test_other_methods_describe_the_fake_model(fake: tuple[Any, FakeTranslator]) -> None:
    client, translator = fake
    translator.detected_language = "fr"

    assert [model.name for model in client.list_models()] == [client.get_model("fake").name] == ["fake"]
    assert client.list_glossaries() == ()
    assert [languages[0].language for languages in client.detect_languages(["a", "b"])] == ["fr", "fr"]
    with pytest.raises(ModelNotFoundError):
        client.get_model("en-de")


@pytest.mark.parametrize("kind", KINDS)
def test_injected_failure_raises_its_error_once(kind: str, fake: tuple[Any, FakeTranslator]) -> None:
    client, translator = fake
    translator.fail_next(f"{kind} 2.5")

    with pytest.raises(DragomanError) as caught:
        client.translate(["Hello."], **EN_DE)

    assert type(caught.value) is KINDS[kind]
    assert caught.value.retry_after_s == (2.5 if kind in ("overloaded", "rate-limited") else None)
    assert client.translate(["Hello."], **EN_DE)[0].text == "[de] Hello."


def test_failures_are_injected_in_order_and_several_times(fake: tuple[Any, FakeTranslator]) -> None:
    client, translator = fake
    translator.fail_next("unavailable x2")
    translator.fail_next("internal")

    for error in (DrainingError, DrainingError, EngineError):
        with pytest.raises(error):
            client.translate(["Hello."], **EN_DE)
    assert client.translate(["Hello."], **EN_DE)


def test_slow_answer_arrives_or_exceeds_the_deadline(fake: tuple[Any, FakeTranslator]) -> None:
    client, translator = fake
    translator.fail_next("slow 0.01")
    assert client.translate(["Hello."], **EN_DE)[0].text == "[de] Hello."

    translator.fail_next("slow 60 x2")
    with pytest.raises(DeadlineExceededError):
        client.translate(["Hello."], timeout_s=0.05, **EN_DE)
    with pytest.raises(DeadlineExceededError):
        list(client.translate_document("Hello.", timeout_s=0.05, **EN_DE))


@pytest.mark.parametrize(
    ("texts", "target_language", "field"),
    [
        ([], "de", "texts"),
        (["fake:overlaoded"], "de", "texts"),
        (["Hello. fake:slow 99999"], "de", "texts"),
        (["a"] * 129, "de", "texts"),
        (["Hello."], "", "target_language"),
    ],
)
def test_invalid_request_is_rejected(
    texts: list[str], target_language: str, field: str, fake: tuple[Any, FakeTranslator]
) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        fake[0].translate(texts, target_language=target_language)

    assert {*caught.value.fields} == {field}


def test_translations_of_a_test_replace_the_marked_texts() -> None:
    translator = FakeTranslator(lambda text, language: {("Hello.", "de"): "Hallo."}[text, language])
    with FakeTranslationClient(translator=translator) as client:
        assert client.translate(["Hello."], **EN_DE)[0].text == "Hallo."


def test_source_language_is_detected_only_if_it_is_absent() -> None:
    with FakeTranslationClient() as client:
        detected = client.translate(["Hello."], target_language="de").detected_language
        assert detected is not None
        assert detected.language == "en"
        assert client.translate(["Hello."], **EN_DE).detected_language is None


def test_client_retries_after_the_retry_delay_of_the_server() -> None:
    with FakeServer() as server, TranslationClient(server.target) as client:
        server.translator.fail_next("overloaded 0.01 x2")

        assert client.translate(["Hello."], timeout_s=30.0, **EN_DE)[0].text == "[de] Hello."

    assert len(server.translator.calls) == 3


def test_cancelled_task_does_not_wait_for_a_slow_answer() -> None:
    async def call(client: FakeAsyncTranslationClient) -> None:
        async with asyncio.timeout(0.01):
            await client.translate(["Hello."], **EN_DE)

    async def read(client: FakeAsyncTranslationClient) -> None:
        async with asyncio.timeout(0.01):
            async for _ in client.translate_document("Hello.", **EN_DE):
                pass

    async def run() -> None:
        async with FakeAsyncTranslationClient() as client:
            client.translator.fail_next("slow 25 x2")
            for use in (call, read):
                with pytest.raises(TimeoutError):
                    await use(client)

    asyncio.run(run())


def test_closed_fake_accepts_no_calls() -> None:
    with FakeTranslationClient() as client:
        pass

    with pytest.raises(ValueError, match="closed"):
        client.list_models()


def test_sentence_fails_the_given_number_of_times_and_is_then_translated_once() -> None:
    failures = SentenceFailures()
    sentence = "fake:unavailable x2"

    kinds = [failure and failure.kind for failure in map(failures.next_failure, [sentence] * 4)]

    assert kinds == ["unavailable", "unavailable", None, "unavailable"]
    assert failures.next_failure("Hello.") is None
    assert all(failures.next_failure("fake:internal") for _ in range(3))


@pytest.mark.parametrize(
    "failure", ["", "overload", "slow -1", "slow 1e3", "slow 3601", "internal x0", "internal x1001"]
)
def test_failure_of_another_form_is_an_error(failure: str) -> None:
    with pytest.raises(ValueError, match=r"must be KIND \[SECONDS\] \[xTIMES\]"):
        Failure.parse(failure)
