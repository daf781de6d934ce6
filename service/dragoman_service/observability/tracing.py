"""Distributed tracing: the interface that the service uses to record spans of a request.

Without a configured collector, `begin` only reads the trace id of the caller for the log. Spans contain counts, names
and times, never texts, tokens or keys.
"""

import heapq
import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dragoman_service.datatypes import Segment, SegmentResult

TRACEPARENT_KEY = "traceparent"  # metadata key of the span of the caller (W3C Trace Context)

Attributes = Mapping[str, str | int | float]

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_TRACE_ID = "0" * 32

MAX_TRACED_SEGMENTS = 10
"""Maximum number of segments of a request with spans, three each. It limits a trace to about 32 spans."""


class TracingSettings(BaseModel):
    """Export of traces. Headers for the collector, such as an API key, are not settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    endpoint: str = ""
    """URL of a collector for OTLP over gRPC: `http://host:4317`, or `https://` for TLS. Empty: no tracing. The
    environment variable `OTEL_EXPORTER_OTLP_HEADERS` sets headers for the collector."""

    sample_ratio: float = Field(default=0.1, ge=0, le=1)
    """Share of requests without `traceparent` that are traced. For the others, the caller decides."""

    service_name: str = Field(default="dragoman", min_length=1, max_length=255)
    """Name of this service in traces."""

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, endpoint: str) -> str:
        if endpoint:
            url = urlsplit(endpoint)
            is_bare = not (url.username or url.password or url.query or url.fragment or url.path.strip("/"))
            if url.scheme not in {"http", "https"} or not url.hostname or not url.port or not is_bare:
                raise ValueError("http://HOST:PORT or https://HOST:PORT")
        return endpoint


class RequestTrace:
    """Trace of a request. This base class has only the id and records nothing."""

    def __init__(self, trace_id: str = "") -> None:
        self.trace_id = trace_id

    @property
    def exemplar(self) -> dict[str, str] | None:
        """Exemplar labels that link a histogram observation to this trace; None if the trace is not recorded."""
        return None

    def reserve(self, num_segments: int) -> int:  # noqa: ARG002 - see the subclass
        """Return the number of these segments to record spans for."""
        return 0

    def add(self, name: str, *, began_s: float, ended_s: float, attributes: Attributes | None = None) -> None:
        """Add a finished child span; times are of the clock of the service."""

    def end(self, *, status: str, attributes: Attributes) -> None:
        """End the span of the request with its gRPC status."""


class Tracing:
    """Factory of traces. This base class only reads trace ids of callers and records nothing. Thread-safe."""

    def begin(self, method: str, metadata: Mapping[str, str]) -> RequestTrace:  # noqa: ARG002 - see the subclass
        """Begin the trace of an RPC, or continue the trace of its caller."""
        match = _TRACEPARENT.match(metadata.get(TRACEPARENT_KEY, ""))
        return RequestTrace(match[1] if match and match[1] != _NO_TRACE_ID else "")

    def stop(self, timeout_s: float) -> None:
        """Send the remaining spans; drop them at the timeout."""


def trace_segments(
    trace: RequestTrace, *, submitted_s: float, segments: Sequence[Segment], results: Sequence[SegmentResult]
) -> None:
    """Add queue, encode and decode spans of the slowest segments of a request, all queued at `submitted_s`."""
    num_traced = trace.reserve(len(results))
    if not num_traced:
        return
    totals_s = [result.timings.queue_s + result.timings.encode_s + result.timings.decode_s for result in results]
    for index in sorted(heapq.nlargest(num_traced, range(len(results)), key=totals_s.__getitem__)):
        segment, result = segments[index], results[index]
        decode_attributes: Attributes = {
            "mt.steps": result.num_steps,
            "mt.beam_size": segment.search.beam_size,
            "mt.target_tokens": len(result.hypotheses[0].token_ids),
        }
        stages: tuple[tuple[str, float, Attributes], ...] = (
            ("queue", result.timings.queue_s, {}),
            ("encode", result.timings.encode_s, {"mt.source_tokens": len(segment.source_ids)}),
            ("decode", result.timings.decode_s, decode_attributes),
        )
        ended_s = submitted_s
        for name, duration_s, attributes in stages:
            began_s, ended_s = ended_s, ended_s + duration_s
            trace.add(name, began_s=began_s, ended_s=ended_s, attributes={"mt.segment.index": index, **attributes})
