import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman_service.config import load_settings
from dragoman_service.datatypes import Hypothesis, SearchConfig, Segment, SegmentResult, StageTimings
from dragoman_service.errors import ConfigError
from dragoman_service.observability.tracing import TracingSettings, start_tracing
from dragoman_service.observability.usage import Attributes, RequestTrace, Tracing, trace_segments
from tests.captured_logs import capture_logs

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CHECKOUT = Path(__file__).resolve().parents[3]


class RecordingTrace(RequestTrace):
    """Trace that records the spans of at most `num_segments` segments."""

    def __init__(self, num_segments: int) -> None:
        super().__init__(TRACE_ID)
        self.spans: list[tuple[str, float, float, Any]] = []
        self._num_segments = num_segments

    def reserve(self, num_segments: int) -> int:
        return min(num_segments, self._num_segments)

    def add(self, name: str, *, began_s: float, ended_s: float, attributes: Attributes | None = None) -> None:
        self.spans.append((name, began_s, ended_s, attributes))


def result(*, queue_s: float, encode_s: float = 0.0, decode_s: float = 0.0) -> SegmentResult:
    best = Hypothesis(token_ids=(5, 6, 2), token_log_probs=(0.0,) * 3, log_prob=0.0, score=0.0, is_finished=True)
    timings = StageTimings(queue_s=queue_s, encode_s=encode_s, decode_s=decode_s)
    return SegmentResult(hypotheses=(best,), num_steps=4, timings=timings)


SEGMENT = Segment(source_ids=(7, 8, 9, 2), search=SearchConfig(beam_size=3))


def test_stage_spans_of_a_segment_are_consecutive() -> None:
    trace = RecordingTrace(1)

    trace_segments(
        trace, submitted_s=10.0, segments=[SEGMENT], results=[result(queue_s=1.0, encode_s=2.0, decode_s=4.0)]
    )

    assert trace.spans == [
        ("queue", 10.0, 11.0, {"mt.segment.index": 0}),
        ("encode", 11.0, 13.0, {"mt.segment.index": 0, "mt.source_tokens": 4}),
        ("decode", 13.0, 17.0, {"mt.segment.index": 0, "mt.steps": 4, "mt.beam_size": 3, "mt.target_tokens": 3}),
    ]


def test_only_the_slowest_segments_have_spans() -> None:
    trace = RecordingTrace(2)
    results = [result(queue_s=queue_s) for queue_s in (1.0, 9.0, 2.0, 5.0)]

    trace_segments(trace, submitted_s=0.0, segments=[SEGMENT] * 4, results=results)

    assert [attributes["mt.segment.index"] for name, *_, attributes in trace.spans if name == "queue"] == [1, 3]


def test_untraced_request_has_no_spans_and_no_exemplar() -> None:
    trace = RequestTrace()

    trace_segments(trace, submitted_s=0.0, segments=[SEGMENT], results=[result(queue_s=1.0)])

    assert (trace.exemplar, trace.reserve(3)) == (None, 0)


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [
        (f"00-{TRACE_ID}-b7ad6b7169203331-01", TRACE_ID),
        (f"00-{TRACE_ID}-b7ad6b7169203331-00", TRACE_ID),
        (f"01-{TRACE_ID}-b7ad6b7169203331-01-more", TRACE_ID),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", ""),
        (f"00-{TRACE_ID.upper()}-b7ad6b7169203331-01", ""),
        (f"00-{TRACE_ID}", ""),
        ("nonsense\n", ""),
        ("", ""),
    ],
)
def test_trace_id_of_caller_is_read_without_tracing(traceparent: str, trace_id: str) -> None:
    assert Tracing().begin("/s/Translate", {"traceparent": traceparent}).trace_id == trace_id


def test_without_an_endpoint_nothing_is_traced() -> None:
    tracing = start_tracing(TracingSettings(), clock=lambda: 0.0, count=lambda _outcome, _number: None)

    assert type(tracing) is Tracing
    tracing.stop(1.0)


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_endpoint_of_a_variable_alone_is_logged(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "http://localhost:4317")

    with capture_logs() as records:
        start_tracing(TracingSettings(), clock=lambda: 0.0, count=lambda _outcome, _number: None)

    (record,) = records
    assert (record["event"], record["ignored_variable"], record["setting"]) == (
        *("tracing is off", variable),
        "tracing.endpoint",
    )


def test_server_without_tracing_does_not_import_opentelemetry() -> None:
    program = (
        "import sys, dragoman_service.app; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    environment = {"PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'proto'}"}

    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False, cwd=CHECKOUT).returncode == 0


@pytest.mark.parametrize(
    "endpoint",
    [
        "localhost:4317",
        "ftp://localhost:4317",
        "http://localhost",
        "http://localhost:99999",
        "http://:4317",
        "http://user:key@localhost:4317",
        "http://localhost:4317/v1/traces",
        "http://localhost:4317?key=k",
    ],
)
def test_invalid_endpoint_is_rejected(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"'tracing\.endpoint'"):
        load_settings(flags={"tracing.endpoint": endpoint})


@pytest.mark.parametrize("endpoint", ["http://localhost:4317", "https://collector.example:443/", "http://[::1]:4317"])
def test_url_with_port_is_a_valid_endpoint(endpoint: str) -> None:
    assert load_settings(flags={"tracing.endpoint": endpoint}).tracing.endpoint == endpoint


@pytest.mark.parametrize("ratio", [-0.1, 1.1, "often"])
def test_sample_ratio_outside_0_to_1_is_rejected(ratio: object) -> None:
    with pytest.raises(ConfigError, match=r"'tracing\.sample_ratio'"):
        load_settings(flags={"tracing.sample_ratio": ratio})
