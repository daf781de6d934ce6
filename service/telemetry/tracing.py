"""Where the time of a request went, as one distributed trace: what the rest of the service may say about it.

Off unless a collector is named. Then `begin` only reads the caller's trace id, for the log, and OpenTelemetry is never
imported. Spans carry counts, names and times; texts, tokens and keys have no way into them.
"""

import heapq
import re
from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from service.datatypes import Segment, SegmentResult

TRACEPARENT_KEY = "traceparent"
"""Metadata in which a caller names its span: W3C Trace Context."""

Attributes = Mapping[str, str | int | float]

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_TRACE_ID = "0" * 32

MAX_TRACED_SEGMENTS = 10
"""Of a request: three spans each, so a trace has about 32 at most however long the document is."""


class TracingSettings(BaseModel):
    """Whether and where spans are sent.

    Headers of the collector, such as its key, come from the environment variable `OTEL_EXPORTER_OTLP_HEADERS` only, so
    that no settings file holds them.
    """

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
    """The trace of one request; this one only knows its id, and sends nothing."""

    def __init__(self, trace_id: str = "") -> None:
        self.trace_id = trace_id

    @property
    def exemplar(self) -> dict[str, str] | None:
        """Labels that lead from an observation in a histogram to this trace; None if it is not recorded."""
        return None

    def reserve(self, num_segments: int) -> int:  # noqa: ARG002 - see the subclass
        """Return for how many of these segments spans are wanted."""
        return 0

    def add(self, name: str, *, began_s: float, ended_s: float, attributes: Attributes | None = None) -> None:
        """Add a span that is over, below that of the request; times are on the service's clock."""

    def end(self, *, status: str, attributes: Attributes) -> None:
        """End the span of the request with its gRPC status."""


class Tracing(Protocol):
    """Begins traces; everything is safe in any thread."""

    def begin(self, method: str, metadata: Mapping[str, str]) -> RequestTrace:
        """Begin the trace of an RPC, or take part in that of its caller."""

    def stop(self, timeout_s: float) -> None:
        """Send what is left, for so long at most."""


class NoTracing:
    """Traces nothing."""

    def begin(self, method: str, metadata: Mapping[str, str]) -> RequestTrace:  # noqa: ARG002
        """Return a trace that is not recorded, under the caller's id if it sent one."""
        match = _TRACEPARENT.match(metadata.get(TRACEPARENT_KEY, ""))
        return RequestTrace(match[1] if match and match[1] != _NO_TRACE_ID else "")

    def stop(self, timeout_s: float) -> None:
        """Do nothing."""


def trace_segments(
    trace: RequestTrace, *, submitted_s: float, segments: Sequence[Segment], results: Sequence[SegmentResult]
) -> None:
    """Add queue, encode and decode spans of the slowest segments of a request.

    Args:
        trace: of the request.
        submitted_s: when all were queued, on the service's clock.
        segments: of the request.
        results: one for each.
    """
    num_traced = trace.reserve(len(results))
    if num_traced:
        slowest = heapq.nlargest(num_traced, range(len(results)), key=lambda index: _total_s(results[index]))
        for index in sorted(slowest):
            _trace_segment(trace, index, submitted_s, segments[index], results[index])


def _trace_segment(
    trace: RequestTrace, index: int, submitted_s: float, segment: Segment, result: SegmentResult
) -> None:
    timings = result.timings
    encode_s = submitted_s + timings.queue_s
    decode_s = encode_s + timings.encode_s
    which: Attributes = {"mt.segment.index": index}
    trace.add("queue", began_s=submitted_s, ended_s=encode_s, attributes=which)
    trace.add(
        "encode",
        began_s=encode_s,
        ended_s=decode_s,
        attributes={**which, "mt.source_tokens": len(segment.source_ids)},
    )
    trace.add(
        "decode",
        began_s=decode_s,
        ended_s=decode_s + timings.decode_s,
        attributes={
            **which,
            "mt.steps": result.num_steps,
            "mt.beam_size": segment.search.beam_size,
            "mt.target_tokens": len(result.hypotheses[0].token_ids),
        },
    )


def _total_s(result: SegmentResult) -> float:
    timings = result.timings
    return timings.queue_s + timings.encode_s + timings.decode_s
