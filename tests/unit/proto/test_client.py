import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

from dragoman.channel import ChannelSettings, RetrySettings
from dragoman.client import TranslationClient
from dragoman.errors import (
    DeadlineExceededError,
    FieldViolation,
    InvalidRequestError,
    OverloadedError,
    ServerError,
    UnavailableError,
    UnsupportedError,
)
from dragoman.models import Model
from dragoman.requests import DecodingOptions, TranslationRequest
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

EAGER = ChannelSettings(retry=RetrySettings(max_attempts=3, initial_backoff_s=0.01))
"""Retries without keeping a test waiting."""

PATIENT = ChannelSettings(retry=RetrySettings(max_attempts=3, initial_backoff_s=600.0, max_backoff_s=600.0))
"""Retries after ten minutes unless the server says otherwise."""

WIRE_PRECISION = 0.05
"""gRPC rounds a deadline up to two or three digits; the rest is the time the call took."""


@pytest.fixture
def client(target: str) -> Iterator[TranslationClient]:
    with TranslationClient(target, channel=EAGER) as client:
        yield client


def test_a_translation_comes_back_typed(client: TranslationClient, service: ScriptedService) -> None:
    service.script.append(answers(RESPONSE))

    assert client.translate(["Hello."], **EN_DE) == RESULT


def test_iterating_over_a_result_gives_the_best_hypotheses(client: TranslationClient, service: ScriptedService) -> None:
    service.script.append(answers(RESPONSE))

    result = client.translate(["Hello."], **EN_DE)

    assert [(translation.text, translation.score) for translation in result] == [("Hallo.", -0.5)]
    assert len(result) == 1


def test_the_server_receives_what_the_caller_asked_for(client: TranslationClient, service: ScriptedService) -> None:
    service.script.append(answers(pb.TranslateResponse()))

    client.translate(
        ["One."], target_prefixes=["Eins"], options=DecodingOptions(beam_size=8), request_id="r-1", **EN_DE
    )

    assert service.calls[0].request == pb.TranslateRequest(
        texts=["One."],
        source_language="en",
        target_language="de",
        target_prefixes=["Eins"],
        options=pb.DecodingOptions(beam_size=8),
        request_id="r-1",
    )
    assert service.calls[0].metadata["x-request-id"] == "r-1"


def test_the_metadata_of_the_client_goes_with_each_call(target: str, service: ScriptedService) -> None:
    service.script.append(answers(pb.ListModelsResponse()))

    with TranslationClient(target, metadata=[("authorization", "Bearer secret")]) as client:
        client.list_models()

    assert service.calls[0].metadata["authorization"] == "Bearer secret"


def test_a_call_has_the_deadline_of_the_client(target: str, service: ScriptedService) -> None:
    service.script.append(answers(pb.TranslateResponse()))

    with TranslationClient(target, timeout_s=1_000.0) as client:
        client.translate(["One."], **EN_DE)

    assert service.calls[0].time_remaining_s == pytest.approx(1_000.0, rel=WIRE_PRECISION)


def test_a_call_can_have_a_deadline_of_its_own(client: TranslationClient, service: ScriptedService) -> None:
    service.script.append(answers(pb.TranslateResponse()))

    client.translate(["One."], timeout_s=500.0, **EN_DE)

    assert service.calls[0].time_remaining_s == pytest.approx(500.0, rel=WIRE_PRECISION)


@pytest.mark.parametrize("timeout_s", [float("inf"), float("nan"), 0.0, -1.0])
def test_a_call_without_a_finite_deadline_is_refused(client: TranslationClient, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="must be finite and above 0"):
        client.translate(["One."], timeout_s=timeout_s, **EN_DE)


def test_a_passed_deadline_is_an_error_of_its_own(client: TranslationClient, service: ScriptedService) -> None:
    service.script.append(_until_the_caller_leaves(threading.Event()))

    with pytest.raises(DeadlineExceededError):
        client.translate(["One."], timeout_s=0.1, **EN_DE)


def test_the_pushback_of_an_overloaded_server_replaces_the_backoff(target: str, service: ScriptedService) -> None:
    service.script += [refuses(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback_ms=1), answers(RESPONSE)]

    with TranslationClient(target, channel=PATIENT) as client:
        result = client.translate(["One."], **EN_DE)

    assert result == RESULT
    assert len({call.request.request_id for call in service.calls}) == 1


def test_a_server_can_forbid_to_retry(client: TranslationClient, service: ScriptedService) -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2))
    service.script.append(refuses_for(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", retry, pushback_ms=-1))

    with pytest.raises(OverloadedError) as caught:
        client.translate(["One."], **EN_DE)

    assert caught.value.retry_after_s == 2.0
    assert len(service.calls) == 1


def test_a_draining_server_is_tried_again_until_the_last_attempt(
    client: TranslationClient, service: ScriptedService
) -> None:
    service.script += [refuses(grpc.StatusCode.UNAVAILABLE)] * 3

    with pytest.raises(UnavailableError):
        client.translate(["One."], **EN_DE)

    assert len(service.calls) == 3


def test_a_request_of_a_megabyte_is_retried_too(client: TranslationClient, service: ScriptedService) -> None:
    service.script += [refuses(grpc.StatusCode.UNAVAILABLE), answers(RESPONSE)]

    assert client.translate(["x" * 10_000] * 100, **EN_DE) == RESULT


def test_an_invalid_request_says_which_fields_and_is_not_retried(
    client: TranslationClient, service: ScriptedService
) -> None:
    detail = error_details_pb2.BadRequest()
    detail.field_violations.add(field="options.beam_size", description="is 0, must be 1 to 16")
    service.script.append(refuses(grpc.StatusCode.INVALID_ARGUMENT, detail))

    with pytest.raises(InvalidRequestError) as caught:
        client.translate(["One."], options=DecodingOptions(beam_size=0), request_id="r-1", **EN_DE)

    violation = FieldViolation(field="options.beam_size", description="is 0, must be 1 to 16")
    assert caught.value.field_violations == (violation,)
    assert caught.value.request_id == "r-1"
    assert len(service.calls) == 1


@pytest.mark.parametrize("details", [status_pb2.Status(code=5).SerializeToString(), b"no status"])
def test_details_that_contradict_the_status_or_cannot_be_read_are_left_out(
    client: TranslationClient, service: ScriptedService, details: bytes
) -> None:
    service.script.append(_fails_internally(details))

    with pytest.raises(ServerError, match="INTERNAL: broken"):
        client.list_models()


def test_a_document_comes_sentence_by_sentence(client: TranslationClient, service: ScriptedService) -> None:
    sentences = [pb.TranslatedSentence(index=0, text="Eins. "), pb.TranslatedSentence(index=1, text="Zwei.")]
    service.script.append(answers(iter(sentences)))

    translated = list(client.translate_document("One. Two.", **EN_DE))

    assert "".join(sentence.text for sentence in translated) == "Eins. Zwei."
    assert service.calls[0].request.text == "One. Two."


def test_leaving_a_document_early_cancels_its_call(client: TranslationClient, service: ScriptedService) -> None:
    has_left = threading.Event()
    service.script.append(document_until(has_left))

    sentences = client.translate_document("One. Two.", **EN_DE)
    next(sentences)
    sentences.close()

    assert has_left.wait(timeout=10.0)


def test_a_bad_request_of_a_stream_fails_alone(client: TranslationClient, service: ScriptedService) -> None:
    service.script.append(stream_that_refuses("bad"))
    requests = [
        TranslationRequest(texts=["One."], source_language="en", target_language="de", request_id=request_id)
        for request_id in ("good", "bad", "fine")
    ]

    answered = {answer.request_id: answer for answer in client.translate_stream(requests)}

    assert isinstance(answered["bad"].outcome, InvalidRequestError)
    assert [answered[name].result().request_id for name in ("good", "fine")] == ["good", "fine"]


def test_a_method_the_server_lacks_is_unsupported(client: TranslationClient, service: ScriptedService) -> None:
    service.script.append(refuses(grpc.StatusCode.UNIMPLEMENTED))

    with pytest.raises(UnsupportedError):
        list(client.translate_document("One.", **EN_DE))


def test_models_come_back_typed(client: TranslationClient, service: ScriptedService) -> None:
    service.script.append(answers(pb.ListModelsResponse(models=[MODEL_MESSAGE])))

    assert client.list_models() == (MODEL,)


def test_a_model_is_asked_for_by_name(client: TranslationClient, service: ScriptedService) -> None:
    service.script.append(answers(pb.GetModelResponse(model=pb.Model(name="tiny"))))

    model = client.get_model("tiny/3")

    assert model == Model(name="tiny", versions=())
    assert service.calls[0].request == pb.GetModelRequest(model="tiny/3")


def _until_the_caller_leaves(has_left: threading.Event) -> Any:
    def wait(request: Any, context: Any) -> pb.TranslateResponse:
        if context.add_callback(has_left.set):
            has_left.wait()
        return pb.TranslateResponse()

    return wait


def _fails_internally(details: bytes) -> Any:
    def fail(request: Any, context: Any) -> None:
        context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(grpc.StatusCode.INTERNAL, "broken")

    return fail
