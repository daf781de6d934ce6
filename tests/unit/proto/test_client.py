import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from dragoman.client import AsyncTranslationClient, TranslationClient
from dragoman.client.calls import trace_metadata
from dragoman.client.channel import ChannelSettings, RetrySettings
from dragoman.client.errors import (
    DeadlineExceededError,
    FieldViolation,
    InvalidRequestError,
    ServerError,
    UnavailableError,
    UnsupportedError,
)
from dragoman.client.request import DecodingOptions, TranslationRequest
from dragoman.client.results import DetectedLanguage, TranslationResult
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.samples import MODEL, MODEL_MESSAGE, RESPONSE, RESULT
from tests.unit.proto.scripted_server import (
    EN_DE,
    ScriptedService,
    answers,
    document_until,
    refuses,
    refuses_for,
    stream_that_refuses,
)

Connect = Callable[..., Any]

DEADLINE_PRECISION = 0.05  # gRPC rounds a deadline to two or three digits; the rest is the duration of the call
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def client(target: str, connect: Connect) -> Iterator[Any]:
    with connect(target) as client:
        yield client


def test_translate_sends_the_request_and_returns_the_result(client: Any, service: ScriptedService) -> None:
    service.script.append(answers(RESPONSE))
    options = DecodingOptions(beam_size=8)

    result = client.translate(["One."], target_prefixes=["Eins"], options=options, request_id="r-1", **EN_DE)

    assert result == RESULT
    assert service.calls[0].metadata["x-request-id"] == "r-1"
    assert service.calls[0].request == pb.TranslateRequest(
        texts=["One."],
        target_prefixes=["Eins"],
        options=pb.DecodingOptions(beam_size=8),
        request_id="r-1",
        **EN_DE,
    )


def test_models_languages_and_glossaries_are_returned(client: Any, service: ScriptedService) -> None:
    languages = [pb.LanguageDetection(languages=[pb.DetectedLanguage(language="en", confidence=0.9, is_served=True)])]
    service.script += [
        answers(pb.ListModelsResponse(models=[MODEL_MESSAGE])),
        answers(pb.GetModelResponse(model=MODEL_MESSAGE)),
        answers(pb.DetectLanguageResponse(detections=languages)),
        answers(pb.ListGlossariesResponse(glossaries=[pb.Glossary(name="it")])),
    ]

    assert client.list_models() == (MODEL,)
    assert client.get_model("tiny/3") == MODEL
    assert client.detect_languages(["One."], target_language="de") == (
        (DetectedLanguage(language="en", confidence=0.9, is_served=True),),
    )
    assert [glossary.name for glossary in client.list_glossaries()] == ["it"]
    assert [call.request for call in service.calls[1:3]] == [
        pb.GetModelRequest(model="tiny/3"),
        pb.DetectLanguageRequest(texts=["One."], target_language="de"),
    ]


def test_document_is_translated_sentence_by_sentence(client: Any, service: ScriptedService) -> None:
    sentences = [pb.TranslatedSentence(index=0, text="Eins. "), pb.TranslatedSentence(index=1, text="Zwei.")]
    service.script.append(answers(iter(sentences)))

    translated = list(client.translate_document("One. Two.", **EN_DE))

    assert "".join(sentence.text for sentence in translated) == "Eins. Zwei."
    assert service.calls[0].request.text == "One. Two."


def test_failed_request_of_a_stream_does_not_end_the_stream(client: Any, service: ScriptedService) -> None:
    service.script.append(stream_that_refuses("bad"))

    by_id = {answer.request_id: answer for answer in client.translate_stream(map(_request, ("one", "bad", "two")))}

    assert isinstance(by_id["bad"].outcome, InvalidRequestError)
    assert [by_id[name].result().request_id for name in ("one", "two")] == ["one", "two"]


async def test_asynchronous_client_accepts_asynchronous_requests(target: str, service: ScriptedService) -> None:
    service.script.append(stream_that_refuses("bad"))

    async def requests() -> AsyncIterator[TranslationRequest]:
        yield _request("one")

    async with AsyncTranslationClient(target) as client:
        assert [answer.request_id async for answer in client.translate_stream(requests())] == ["one"]


async def test_asynchronous_calls_run_concurrently(target: str, service: ScriptedService) -> None:
    both_have_arrived = threading.Barrier(2, timeout=10.0)

    def answer(request: Any, context: Any) -> pb.TranslateResponse:
        both_have_arrived.wait()
        return RESPONSE

    service.script += [answer] * 2

    async with AsyncTranslationClient(target) as client:
        results = await asyncio.gather(*(client.translate(["One."], **EN_DE) for _ in range(2)))

    assert results == [RESULT] * 2


@pytest.mark.parametrize(("of_client", "of_call", "expected"), [(1000.0, None, 1000.0), (1000.0, 500.0, 500.0)])
def test_deadline_of_call_overrides_deadline_of_client(
    target: str, service: ScriptedService, connect: Connect, of_client: float, of_call: float | None, expected: float
) -> None:
    service.script.append(answers(RESPONSE))

    with connect(target, timeout_s=of_client) as client:
        client.translate(["One."], timeout_s=of_call, **EN_DE)

    assert service.calls[0].time_remaining_s == pytest.approx(expected, rel=DEADLINE_PRECISION)


@pytest.mark.parametrize("timeout_s", [float("inf"), float("nan"), 0.0, -1.0])
def test_deadline_that_is_not_finite_and_positive_is_rejected(target: str, connect: Connect, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s"), connect(target) as client:
        client.translate(["One."], timeout_s=timeout_s, **EN_DE)
    with pytest.raises(ValueError, match="timeout_s"):
        connect(target, timeout_s=timeout_s)


def test_passed_deadline_raises_its_own_error(client: Any, service: ScriptedService) -> None:
    service.script.append(document_until(threading.Event()))

    with pytest.raises(DeadlineExceededError):
        list(client.translate_document("One.", timeout_s=0.1, **EN_DE))


def test_invalid_request_names_the_fields_and_is_not_retried(client: Any, service: ScriptedService) -> None:
    detail = error_details_pb2.BadRequest()
    detail.field_violations.add(field="options.beam_size", description="is 0, must be 1 to 16")
    service.script.append(refuses_for(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", detail))

    with pytest.raises(InvalidRequestError) as caught:
        client.translate(["One."], options=DecodingOptions(beam_size=0), request_id="r-1", **EN_DE)

    violation = FieldViolation(field="options.beam_size", description="is 0, must be 1 to 16")
    assert (caught.value.field_violations, caught.value.request_id) == ((violation,), "r-1")
    assert len(service.calls) == 1


def test_method_that_the_server_lacks_is_unsupported(client: Any, service: ScriptedService) -> None:
    service.script.append(refuses(grpc.StatusCode.UNIMPLEMENTED))

    with pytest.raises(UnsupportedError):
        list(client.translate_document("One.", **EN_DE))


@pytest.mark.parametrize("details", [status_pb2.Status(code=5).SerializeToString(), b"no status"])
def test_invalid_error_details_are_ignored(client: Any, service: ScriptedService, details: bytes) -> None:
    def fail(request: Any, context: Any) -> None:
        context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(grpc.StatusCode.INTERNAL, "broken")

    service.script.append(fail)

    with pytest.raises(ServerError) as caught:
        client.list_models()

    assert (caught.value.message, caught.value.field_violations) == ("broken", ())


def test_unreachable_server_error_names_the_target_and_gives_a_hint(connect: Connect) -> None:
    one_attempt = ChannelSettings(retry=RetrySettings(max_attempts=1))

    with connect("127.0.0.1:1", channel=one_attempt) as client, pytest.raises(UnavailableError) as caught:
        client.list_models()

    assert caught.value.message.startswith("cannot reach 127.0.0.1:1: ")
    assert "TLS" in caught.value.message


def test_closed_client_rejects_calls(target: str, connect: Connect) -> None:
    with connect(target) as client:
        client.close()

        with pytest.raises(ValueError, match="is closed"):
            client.list_models()
        with pytest.raises(ValueError, match="is closed"):
            next(client.translate_stream([]))


def test_asynchronous_client_cannot_be_created_outside_an_event_loop() -> None:
    with pytest.raises(ValueError, match="event loop"):
        AsyncTranslationClient("localhost:1")


def test_asynchronous_client_cannot_be_used_in_another_event_loop(target: str) -> None:
    async def create() -> AsyncTranslationClient:
        return AsyncTranslationClient(target)

    async def use(client: AsyncTranslationClient) -> None:
        await client.list_models()

    with asyncio.Runner() as first:
        client = first.run(create())
        with pytest.raises(ValueError, match="event loop"), asyncio.Runner() as second:
            second.run(use(client))
        first.run(client.close())


def test_both_clients_document_their_methods_with_their_own_result_types() -> None:
    methods = TranslationClient.translate, AsyncTranslationClient.translate

    assert methods[0].__doc__ == methods[1].__doc__
    assert [inspect.signature(method).return_annotation for method in methods] == [TranslationResult] * 2
    assert not inspect.iscoroutinefunction(methods[0])
    assert inspect.iscoroutinefunction(methods[1])


def test_trace_context_becomes_metadata() -> None:
    assert trace_metadata(None) == ()
    assert trace_metadata(lambda carrier: carrier.update(Traceparent=TRACEPARENT)) == (("traceparent", TRACEPARENT),)


async def test_current_trace_is_propagated_unless_the_caller_names_one(target: str, service: ScriptedService) -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    service.script += [answers(pb.ListModelsResponse())] * 2

    async with AsyncTranslationClient(target) as client:
        with trace.TracerProvider().get_tracer("test").start_as_current_span("work") as span:
            await client.list_models()
            await client.list_models(metadata=[("traceparent", TRACEPARENT)])

    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert service.calls[0].metadata["traceparent"].split("-")[1] == trace_id
    assert service.calls[1].metadata["traceparent"] == TRACEPARENT


def _request(request_id: str) -> TranslationRequest:
    return TranslationRequest(texts=["One."], source_language="en", target_language="de", request_id=request_id)
