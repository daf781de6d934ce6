import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from opentelemetry.proto.trace.v1 import trace_pb2
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import dragoman
from dragoman.v1 import translation_pb2 as pb
from dragoman_service.observability.otlp import OtlpTracing
from tests.captured_logs import capture_logs
from tests.integration.observability.otlp_collector import Collector, attributes, running_collector
from tests.integration.real_process import free_ports
from tests.integration.running_server import TEST_TIMEOUT_S, RunningServer, http_client, observed_server, request
from tests.waiting import until

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
SAMPLED = (("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01"),)
UNSAMPLED = (("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-00"),)
Traced = AbstractAsyncContextManager[RunningServer]
MALFORMED = (("traceparent", "00-nonsense-01"),)
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PRIVATE = "Zanzibarkeule"
SERVICE = "dragoman.v1.TranslationService"
TRANSLATE = f"{SERVICE}/Translate"
STAGES = {"text.split", "queue", "encode", "decode", "text.join"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture
def traced_server(tiny_model: Path, collector: Collector) -> Traced:
    """A server that sends its spans to the collector; its exit sends the last ones."""
    return observed_server(tiny_model, tracing__endpoint=collector.endpoint)


def send_span(collector: Collector, *, metadata: Mapping[str, str] = {}, **settings: Any) -> None:
    """Trace one request without a server."""
    settings = {"sample_ratio": 1, "service_name": None, "clock": time.monotonic, "count": Mock(), **settings}
    tracing = OtlpTracing(endpoint=collector.endpoint, **settings)
    tracing.begin("/s/Translate", metadata).end(status="OK", code=0, http_status=None, attributes={})
    tracing.stop(TEST_TIMEOUT_S)


async def test_request_is_one_trace_below_the_span_of_the_caller(traced_server: Traced, collector: Collector) -> None:
    async with traced_server as server:
        await server.translate("A man. Two children.", metadata=SAMPLED, request_id="r1")

    by_name = Counter(span.name for span in collector.spans)
    (root,) = [span for span in collector.spans if span.name == TRANSLATE]
    assert by_name == {TRANSLATE: 1, "text.split": 1, "queue": 2, "encode": 2, "decode": 2, "text.join": 1}
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    assert (root.parent_span_id.hex(), root.kind) == (SPAN_ID, trace_pb2.Span.SPAN_KIND_SERVER)
    assert {span.parent_span_id for span in collector.spans if span is not root} == {root.span_id}
    assert collector.resource["service.name"] == "dragoman"


async def test_spans_have_counts_and_are_in_order(traced_server: Traced, collector: Collector) -> None:
    async with traced_server as server:
        began_ns = time.time_ns()
        response = await server.translate("A man.", metadata=SAMPLED, request_id="r1")
        ended_ns = time.time_ns()

    spans = {span.name: span for span in collector.spans}
    root, decode = attributes(spans[TRANSLATE]), attributes(spans["decode"])
    assert (root["mt.request_id"], root["mt.model"], root["mt.texts"]) == ("r1", "tiny/1", 1)
    assert (root["rpc.system"], root["rpc.service"], root["rpc.method"], root["rpc.grpc.status_code"]) == (
        *("grpc", SERVICE, "Translate"),
        0,
    )
    assert decode["mt.target_tokens"] == root["mt.target_tokens"] == response.num_target_tokens > 0
    assert decode["mt.steps"] > 0
    assert attributes(spans["encode"])["mt.source_tokens"] == root["mt.source_tokens"]
    order = [spans[name] for name in ("text.split", "queue", "encode", "decode", "text.join")]
    times = [time_ns for span in order for time_ns in (span.start_time_unix_nano, span.end_time_unix_nano)]
    assert times == sorted(times)
    assert spans[TRANSLATE].start_time_unix_nano <= times[0] < times[-1] <= spans[TRANSLATE].end_time_unix_nano
    assert began_ns <= times[0] < times[-1] <= ended_ns


async def test_spans_contain_neither_texts_nor_keys(
    traced_server: Traced, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=k1")
    prefix = pb.DecodingOptions(target_prefix=PRIVATE)

    async with traced_server as server:
        response = await server.translate(PRIVATE, metadata=SAMPLED, options=prefix)
        with pytest.raises(grpc.aio.AioRpcError):
            await server.translate(PRIVATE * 2000, metadata=SAMPLED)

    sent = b"".join(message.SerializeToString() for message in collector.requests)
    assert collector.metadata["x-collector-key"] == "k1"
    assert [text.encode() in sent for text in (PRIVATE, response.translations[0].hypotheses[0].text, "k1")] == [
        False,
        False,
        False,
    ]


async def test_span_of_a_failed_request_has_status_and_field(traced_server: Traced, collector: Collector) -> None:
    async with traced_server as server:
        for fields in ({"source_language": "no tag"}, {"timeout_s": 0.2}):
            with pytest.raises(grpc.aio.AioRpcError):
                await server.translate("A man rides a bicycle. " * 400, metadata=SAMPLED, **fields)
        # the client may end the call before the server reaches the deadline
        labels = {"method": "Translate", "status": "DEADLINE_EXCEEDED"}
        await until(lambda: server.sample("dragoman_requests_total", **labels) == 1)

    rejected, late = [span for span in collector.spans if span.name == TRANSLATE]
    of_rejected = attributes(rejected)
    assert (of_rejected["rpc.grpc.status_code"], of_rejected["mt.field"]) == (3, "source_language")
    assert rejected.status.code == trace_pb2.Status.STATUS_CODE_UNSET  # not an error of the server
    assert attributes(late)["rpc.grpc.status_code"] == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert attributes(late)["error.type"] == "DEADLINE_EXCEEDED"
    assert late.status.code == trace_pb2.Status.STATUS_CODE_ERROR


@pytest.mark.parametrize(
    ("ratio", "traceparent", "is_sent"),
    [
        (0.0, SAMPLED, True),
        (1.0, UNSAMPLED, False),
        (1.0, (), True),
        (0.0, (), False),
        (0.0, MALFORMED, False),
    ],
)
def test_traceparent_decides_sampling_before_the_ratio(
    collector: Collector, ratio: float, traceparent: tuple[tuple[str, str], ...], is_sent: bool
) -> None:
    send_span(collector, sample_ratio=ratio, metadata=dict(traceparent))

    assert bool(collector.spans) is is_sent


async def test_spans_are_sent_while_the_server_runs_and_latency_histograms_have_exemplars(
    traced_server: Traced, collector: Collector
) -> None:
    async with traced_server as server:
        await server.translate("A man.", metadata=SAMPLED)
        await until(lambda: {span.name for span in collector.spans} > STAGES)
        await until(lambda: server.sample("dragoman_trace_spans_total", outcome="exported") == len(collector.spans))
        exposition = (await server.get("/metrics", OPENMETRICS))[1]

    with_exemplar = {
        family.name
        for family in text_string_to_metric_families(exposition)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar and sample.exemplar.labels == {"trace_id": TRACE_ID}
    }
    assert with_exemplar >= {
        "dragoman_request_duration_seconds",
        "dragoman_queue_wait_seconds",
        "dragoman_encode_duration_seconds",
        "dragoman_decode_duration_seconds",
        "dragoman_text_duration_seconds",
    }


async def test_streamed_document_is_one_trace_with_an_exemplar(traced_server: Traced, collector: Collector) -> None:
    document = pb.TranslateDocumentRequest(text="A man. " * 40, source_language="en", target_language="de")

    async with traced_server as server:
        call = server.translation.TranslateDocument(document, metadata=SAMPLED)
        sentences = [sentence async for sentence in call]
        exposition = (await server.get("/metrics", OPENMETRICS))[1]

    names = Counter(span.name for span in collector.spans)
    assert (len(sentences), names[f"{SERVICE}/TranslateDocument"], names["decode"]) == (40, 1, 10)
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    first_sentence = [
        line for line in exposition.splitlines() if line.startswith("dragoman_first_sentence_seconds_bucket")
    ]
    assert [f'trace_id="{TRACE_ID}"' in line for line in first_sentence].count(True) == 1


async def test_each_request_of_a_stream_has_its_own_span(traced_server: Traced, collector: Collector) -> None:
    requests = [request("A man.", request_id=request_id) for request_id in ("r1", "r2")]

    async with traced_server as server:
        call = server.translation.TranslateStream(iter(requests), metadata=SAMPLED)
        assert len([response async for response in call]) == 2

    spans = [attributes(span) for span in collector.spans if span.name == f"{SERVICE}/TranslateStream"]
    assert {span["mt.request_id"]: span["mt.texts"] for span in spans if "mt.texts" in span} == {"r1": 1, "r2": 1}


async def test_span_of_an_http_request_has_the_attributes_of_http(traced_server: Traced, collector: Collector) -> None:
    requests = {200: ("A man.", "en"), 400: ("A man.", "no tag"), 504: ("A man rides a bicycle. " * 400, "en")}
    async with traced_server as server, http_client(server) as http:
        for status, (text, source) in requests.items():
            body = {"texts": [text], "sourceLanguage": source, "targetLanguage": "de"}
            headers = {**dict(SAMPLED), "x-request-timeout": "0.2" if status == 504 else "20"}
            assert (await http.post("/v1/translate", json=body, headers=headers)).status_code == status

    roots = [span for span in collector.spans if span.name == "POST /v1/translate"]
    assert [attributes(root)["http.response.status_code"] for root in roots] == [*requests]
    for root in roots:
        found = attributes(root)
        assert (found["http.request.method"], found["http.route"], found["url.path"], found["url.scheme"]) == (
            *("POST", "/v1/translate", "/v1/translate"),
            "http",
        )
        assert found["mt.method"] == "Translate"
        assert not {name for name in found if name.startswith("rpc.")}
    errors = [(attributes(root).get("error.type"), root.status.code) for root in roots]
    assert errors == [(None, 0), (None, 0), ("504", trace_pb2.Status.STATUS_CODE_ERROR)]


@pytest.mark.parametrize(
    ("service_name", "environment", "expected"),
    [
        (None, {}, "dragoman"),
        (None, {"OTEL_SERVICE_NAME": "mt"}, "mt"),
        (None, {"OTEL_RESOURCE_ATTRIBUTES": "service.name=mt"}, "mt"),
        ("set", {"OTEL_SERVICE_NAME": "mt"}, "set"),
    ],
)
def test_resource_identifies_the_replica(
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    service_name: str | None,
    environment: dict[str, str],
    expected: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    instances = set()
    for _ in range(2):
        collector.requests.clear()
        send_span(collector, service_name=service_name)
        assert collector.resource["service.name"] == expected
        assert collector.resource["service.version"] == dragoman.__version__
        instances.add(collector.resource["service.instance.id"])
    assert len(instances) == 2


async def test_missing_collector_is_logged_once_and_fails_no_request(tiny_model: Path) -> None:
    endpoint = f"http://127.0.0.1:{free_ports()[0]}"

    with capture_logs() as records:
        settings = {"tracing__endpoint": endpoint, "tracing__sample_ratio": 1, "grpc__drain_timeout_s": 0.5}
        async with observed_server(tiny_model, **settings) as server:
            for _ in range(3):
                assert (await server.translate("A man.")).translations

    failures = [record for record in records if "trace export failed" in record["event"]]
    assert [record["endpoint"] for record in failures] == [endpoint]
    assert server.sample("dragoman_trace_spans_total", outcome="failed") > 0
    assert server.sample("dragoman_trace_spans_total", outcome="exported") == 0


async def test_silent_collector_delays_the_stop_by_the_drain_timeout_at_most(
    tiny_model: Path, collector: Collector
) -> None:
    collector.halt()
    settings = {"tracing__endpoint": collector.endpoint, "grpc__drain_timeout_s": 0.2}

    async with observed_server(tiny_model, **settings) as server:
        await asyncio.wait_for(server.translate("A man.", metadata=SAMPLED), TEST_TIMEOUT_S)
        await asyncio.wait_for(server.app.stop(), TEST_TIMEOUT_S)

    assert collector.spans == []
    assert server.sample("dragoman_trace_spans_total", outcome="exported") == 0
