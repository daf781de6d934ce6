import pytest

from dragoman.calls import trace_metadata
from dragoman.client import AsyncTranslationClient, TranslationClient
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import ScriptedService, answers

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _inject(carrier: dict[str, str]) -> None:
    carrier["Traceparent"] = TRACEPARENT


def test_without_opentelemetry_no_trace_is_sent() -> None:
    assert trace_metadata(None) == ()


def test_what_opentelemetry_injects_becomes_metadata() -> None:
    assert trace_metadata(_inject) == (("traceparent", TRACEPARENT),)


def test_a_caller_can_name_the_trace_of_a_call(target: str, service: ScriptedService) -> None:
    service.script.append(answers(pb.ListModelsResponse()))

    with TranslationClient(target) as client:
        client.list_models(metadata=[("traceparent", TRACEPARENT)])

    assert service.calls[0].metadata["traceparent"] == TRACEPARENT


async def test_the_running_trace_goes_along_by_itself(target: str, service: ScriptedService) -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    service.script += [answers(pb.ListModelsResponse())] * 2

    async with AsyncTranslationClient(target) as client:
        with trace.TracerProvider().get_tracer("test").start_as_current_span("work") as span:
            await client.list_models()
            await client.list_models(metadata=[("traceparent", TRACEPARENT)])

    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert service.calls[0].metadata["traceparent"].split("-")[1] == trace_id
    assert service.calls[1].metadata["traceparent"] == TRACEPARENT
