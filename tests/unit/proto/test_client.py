"""Calls of both kinds of clients over a real socket, without retries and credentials."""

import asyncio
import inspect
import threading
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from dragoman.client import AsyncTranslationClient, TranslationClient
from dragoman.client.calls import trace_metadata
from dragoman.client.errors import (
    DeadlineExceededError,
    FieldViolation,
    InvalidFieldError,
    InvalidRequestError,
    ServerError,
    UnavailableError,
)
from dragoman.client.models import Glossary
from dragoman.client.request import DecodingOptions
from dragoman.client.results import DetectedLanguage, TranslationResult
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.samples import MODEL, MODEL_MESSAGE, RESPONSE, RESULT
from tests.unit.proto.scripted_server import (
    EN_DE,
    Connect,
    ScriptedService,
    answers,
    document_until,
    rejects,
    stream_that_rejects,
    text_request,
)

DEADLINE_PRECISION = 0.05  # gRPC rounds a deadline to two or three digits; the rest is the duration of the call
ENGLISH = DetectedLanguage(language="en", confidence=0.5, is_served=True)
DETECTIONS = pb.DetectLanguageResponse(
    detections=[{"languages": [pb.DetectedLanguage(language="en", confidence=0.5, is_served=True)]}]
)
LOADED = pb.LoadModelResponse(model=MODEL_MESSAGE)
LABELLED = pb.SetModelLabelResponse(model=MODEL_MESSAGE)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_translate_sends_the_request_and_returns_the_result(client: Any, service: ScriptedService) -> None:
    service.script.append(answers(RESPONSE))
    options = DecodingOptions(beam_size=8)

    result = client.translate(["One."], target_prefixes=["Eins"], options=options, request_id="r-1", **EN_DE)

    assert result == RESULT
    assert service.calls[0].metadata["x-request-id"] == "r-1"
    assert service.calls[0].request == pb.TranslateRequest(
        texts=["One."], target_prefixes=["Eins"], options=pb.DecodingOptions(beam_size=8), request_id="r-1", **EN_DE
    )


@pytest.mark.parametrize(
    ("method", "arguments", "response", "expected"),
    [
        ("list_models", {}, pb.ListModelsResponse(models=[MODEL_MESSAGE]), (MODEL,)),
        ("get_model", {"model": "tiny/3"}, pb.GetModelResponse(model=MODEL_MESSAGE), MODEL),
        ("detect_languages", {"texts": ["One."], "target_language": "de"}, DETECTIONS, ((ENGLISH,),)),
        (
            "list_glossaries",
            {},
            pb.ListGlossariesResponse(glossaries=[pb.Glossary(name="it")]),
            (Glossary(name="it", pairs=()),),
        ),
    ],
)
def test_call_sends_its_arguments_and_returns_its_result(
    method: str, arguments: dict[str, Any], response: Any, expected: Any, client: Any, service: ScriptedService
) -> None:
    service.script.append(answers(response))

    assert getattr(client, method)(**arguments) == expected

    (received,) = service.calls
    assert received.request == type(received.request)(**arguments)


def test_document_is_translated_sentence_by_sentence(client: Any, service: ScriptedService) -> None:
    service.script.append(answers([pb.TranslatedSentence(text="Eins. "), pb.TranslatedSentence(text="Zwei.")]))

    sentences = list(client.translate_document("One. Two.", request_id="r-1", **EN_DE))

    assert [sentence.text for sentence in sentences] == ["Eins. ", "Zwei."]
    assert service.calls[0].request == pb.TranslateDocumentRequest(text="One. Two.", request_id="r-1", **EN_DE)


@pytest.mark.parametrize(
    ("method", "arguments", "request_", "response", "expected"),
    [
        ("load_model", ["tiny/3"], pb.LoadModelRequest(model="tiny/3"), LOADED, MODEL),
        ("set_model_label", ["tiny/3", "a"], pb.SetModelLabelRequest(model="tiny/3", label="a"), LABELLED, MODEL),
        ("remove_model_label", ["tiny", "a"], pb.SetModelLabelRequest(model="tiny", label="a"), LABELLED, MODEL),
        ("unload_model", ["tiny/3"], pb.UnloadModelRequest(model="tiny/3"), pb.UnloadModelResponse(), None),
    ],
)
def test_models_are_managed_and_changes_are_not_retried(
    method: str,
    arguments: list[str],
    request_: Any,
    response: Any,
    expected: Any,
    admin: Any,
    service: ScriptedService,
) -> None:
    service.script += [answers(response), rejects(grpc.StatusCode.UNAVAILABLE), answers(response)]

    assert getattr(admin, method)(*arguments) == expected
    with pytest.raises(UnavailableError):
        getattr(admin, method)(*arguments)

    assert [call.request for call in service.calls] == [request_] * 2
    assert service.calls[0].time_remaining_s == pytest.approx(300.0, rel=DEADLINE_PRECISION)


def test_label_is_set_for_a_version_and_removed_from_a_name(admin: Any, service: ScriptedService) -> None:
    with pytest.raises(ValueError, match="'tiny'"):
        admin.set_model_label("tiny", "stable")
    with pytest.raises(ValueError, match="'tiny/3'"):
        admin.remove_model_label("tiny/3", "stable")

    assert not service.calls


def test_failed_request_of_a_stream_does_not_end_the_stream(client: Any, service: ScriptedService) -> None:
    service.script.append(stream_that_rejects("bad"))

    by_id = {answer.request_id: answer for answer in client.translate_stream(map(text_request, ("one", "bad", "two")))}

    assert isinstance(by_id["bad"].outcome, InvalidRequestError)
    assert [by_id[name].result().request_id for name in ("one", "two")] == ["one", "two"]


@pytest.mark.parametrize(("of_call", "expected"), [(None, 1000.0), (500.0, 500.0)])
def test_deadline_of_call_overrides_deadline_of_client(
    target: str, service: ScriptedService, connect: Connect, of_call: float | None, expected: float
) -> None:
    service.script.append(answers(RESPONSE))

    with connect(target, timeout_s=1000.0) as client:
        client.translate(["One."], timeout_s=of_call, **EN_DE)

    assert service.calls[0].time_remaining_s == pytest.approx(expected, rel=DEADLINE_PRECISION)


@pytest.mark.parametrize(("of_client", "expected"), [(None, None), (500.0, 500.0)])
def test_documents_and_streams_have_a_deadline_only_if_one_is_given(
    target: str, service: ScriptedService, connect: Connect, of_client: float | None, expected: float | None
) -> None:
    service.script += [stream_that_rejects("none")]

    with connect(target, timeout_s=of_client) as client:
        list(client.translate_stream(map(text_request, ("one",))))

    remaining_s = service.calls[0].time_remaining_s
    if expected is None:  # gRPC reports a call without a deadline as one that ends in millions of years
        assert remaining_s is None or remaining_s > 1e9
    else:
        assert remaining_s == pytest.approx(expected, rel=DEADLINE_PRECISION)


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
    service.script.append(rejects(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", detail))

    with pytest.raises(InvalidFieldError) as caught:
        client.translate(["One."], options=DecodingOptions(beam_size=0), request_id="r-1", **EN_DE)

    violation = FieldViolation(field="options.beam_size", description="is 0, must be 1 to 16")
    assert (caught.value.field_violations, caught.value.request_id) == ((violation,), "r-1")
    assert len(service.calls) == 1


@pytest.mark.parametrize("details", [status_pb2.Status(code=5).SerializeToString(), b"no status"])
def test_invalid_error_details_are_ignored(client: Any, service: ScriptedService, details: bytes) -> None:
    def fail(request: Any, context: Any) -> None:
        context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(grpc.StatusCode.INTERNAL, "broken")

    service.script.append(fail)

    with pytest.raises(ServerError) as caught:
        client.list_models()

    assert (caught.value.message, caught.value.field_violations) == ("broken", ())


def test_closed_client_rejects_calls(client: Any) -> None:
    client.close()

    with pytest.raises(ValueError, match="is closed"):
        client.list_models()
    with pytest.raises(ValueError, match="is closed"):
        next(client.translate_stream([]))


def test_asynchronous_client_belongs_to_one_event_loop(target: str) -> None:
    async def create() -> AsyncTranslationClient:
        return AsyncTranslationClient(target)

    async def use(client: AsyncTranslationClient) -> None:
        await client.list_models()

    with pytest.raises(ValueError, match="event loop"):
        AsyncTranslationClient(target)
    with asyncio.Runner() as first:
        client = first.run(create())
        with pytest.raises(ValueError, match="event loop"), asyncio.Runner() as second:
            second.run(use(client))
        first.run(client.close())


def test_both_clients_document_their_methods_with_their_own_result_types() -> None:
    methods = TranslationClient.translate, AsyncTranslationClient.translate

    assert methods[0].__doc__ == methods[1].__doc__
    assert [inspect.signature(method).return_annotation for method in methods] == [TranslationResult] * 2
    assert list(map(inspect.iscoroutinefunction, methods)) == [False, True]


def test_trace_context_becomes_metadata() -> None:
    assert trace_metadata(None) == ()
    assert trace_metadata(lambda carrier: carrier.update(Traceparent=TRACEPARENT)) == (("traceparent", TRACEPARENT),)


def test_current_trace_is_propagated_unless_the_caller_names_one(target: str, service: ScriptedService) -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    service.script += [answers(pb.ListModelsResponse())] * 2

    tracer = trace.TracerProvider().get_tracer("test")
    with TranslationClient(target) as client, tracer.start_as_current_span("work") as span:
        client.list_models()
        client.list_models(metadata=[("traceparent", TRACEPARENT)])

    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert service.calls[0].metadata["traceparent"].split("-")[1] == trace_id
    assert service.calls[1].metadata["traceparent"] == TRACEPARENT
