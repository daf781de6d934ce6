"""Distributed traces: what the rest of the service records of a request.

Tracing is off unless a collector is configured: `begin` then only reads the caller's trace id for the log, and
OpenTelemetry is not imported. Spans have counts, names and times, never texts, tokens or keys.
"""

import heapq
import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dragoman_service.datatypes import Segment, SegmentResult

TRACEPARENT_KEY = "traceparent"
"""Metadata key of the caller's span, by W3C Trace Context."""

Attributes = Mapping[str, str | int | float]

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_TRACE_ID = "0" * 32

MAX_TRACED_SEGMENTS = 10
"""Segments of a request that have spans, three each: a trace has about 32 spans, however long the document is."""


class TracingSettings(BaseModel):
    """Whether and where spans are sent; no settings file holds headers of the collector, such as its key."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    endpoint: str = ""
    """Collector that takes OTLP over gRPC: `http://host:4317`, or `https://` for TLS; unset: no tracing. Its headers
    come from the environment variable `OTEL_EXPORTER_OTLP_HEADERS`."""

    sample_ratio: float = Field(default=0.1, ge=0, le=1)
    """Share of the requests without a `traceparent` that are traced; for the others their caller decides."""

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
    """The trace of a request; this class only has its id and records nothing."""

    def __init__(self, trace_id: str = "") -> None:
        self.trace_id = trace_id

    @property
    def exemplar(self) -> dict[str, str] | None:
        """Labels that link an observation in a histogram to this trace; None if it is not recorded."""
        return None

    def reserve(self, num_segments: int) -> int:  # noqa: ARG002 - see the subclass
        """Return for how many of these segments spans are recorded."""
        return 0

    def add(self, name: str, *, began_s: float, ended_s: float, attributes: Attributes | None = None) -> None:
        """Add a finished span below that of the request; times are on the service's clock."""

    def end(self, *, status: str, attributes: Attributes) -> None:
        """End the span of the request with its gRPC status."""


class Tracing:
    """Begins traces, and any thread may use it; this class only reads the caller's ids and records nothing."""

    def begin(self, method: str, metadata: Mapping[str, str]) -> RequestTrace:  # noqa: ARG002 - see the subclass
        """Begin the trace of an RPC, or join that of its caller."""
        match = _TRACEPARENT.match(metadata.get(TRACEPARENT_KEY, ""))
        return RequestTrace(match[1] if match and match[1] != _NO_TRACE_ID else "")

    def stop(self, timeout_s: float) -> None:
        """Send what is left until the timeout."""


def trace_segments(
    trace: RequestTrace, *, submitted_s: float, segments: Sequence[Segment], results: Sequence[SegmentResult]
) -> None:
    """Add queue, encode and decode spans of the slowest segments of a request, all queued at `submitted_s`."""
    num_traced = trace.reserve(len(results))
    if not num_traced:
        return
    totals_s = [sum((each.timings.queue_s, each.timings.encode_s, each.timings.decode_s)) for each in results]
    for index in sorted(heapq.nlargest(num_traced, range(len(results)), key=totals_s.__getitem__)):
        segment, result = segments[index], results[index]
        decode_facts = {
            "mt.steps": result.num_steps,
            "mt.beam_size": segment.search.beam_size,
            "mt.target_tokens": len(result.hypotheses[0].token_ids),
        }
        stages: tuple[tuple[str, float, Attributes], ...] = (
            ("queue", result.timings.queue_s, {}),
            ("encode", result.timings.encode_s, {"mt.source_tokens": len(segment.source_ids)}),
            ("decode", result.timings.decode_s, decode_facts),
        )
        ended_s = submitted_s
        for name, duration_s, attributes in stages:
            began_s, ended_s = ended_s, ended_s + duration_s
            trace.add(name, began_s=began_s, ended_s=ended_s, attributes={"mt.segment.index": index, **attributes})
