"""Export of traces to an OpenTelemetry collector over gRPC.

Requests add finished spans to a bounded queue, which a thread sends. If the collector is slow or unreachable, spans are
dropped; requests are not affected. The first failure and the first success after failures are logged.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dragoman_service.observability.metrics import installed_version
from dragoman_service.observability.usage import MAX_TRACED_SEGMENTS, Attributes, RequestTrace, Tracing

log = logging.getLogger(__name__)

_MAX_QUEUED_SPANS = 8192  # about 10 MB at most; the oldest are dropped
_MAX_EXPORT_SPANS = 512
_EXPORT_INTERVAL_S = 1.0
_EXPORT_TIMEOUT_S = 5.0
_ABORT_TIMEOUT_S = 1.0

# Statuses that are server errors in the semantic conventions of OpenTelemetry for RPC.
_SERVER_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})

_FIRST_SERVER_FAULT = 500  # of the statuses of HTTP


def _resource(service_name: str | None) -> Resource:
    # The setting takes precedence over OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, and these over the defaults.
    defaults = {
        "service.name": "dragoman",
        "service.version": installed_version("dragoman"),
        "service.instance.id": str(uuid.uuid4()),
    }
    chosen = {"service.name": service_name} if service_name else {}
    return Resource.create({**defaults, **OTELResourceDetector().detect().attributes, **chosen})


class OtlpTracing(Tracing):
    """Tracing with export to a collector."""

    def __init__(
        self,
        *,
        endpoint: str,
        sample_ratio: float,
        service_name: str | None,
        clock: Callable[[], float],
        count: Callable[[str, int], None],
    ) -> None:
        """Start the export thread; the endpoint may be unreachable."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)  # it logs each failed export
        self._clock = clock
        self._exporter = _CountingExporter(endpoint, count)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=_resource(service_name),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=_MAX_QUEUED_SPANS,
                schedule_delay_millis=_EXPORT_INTERVAL_S * 1000,
                max_export_batch_size=_MAX_EXPORT_SPANS,
            )
        )
        self._tracer = self._provider.get_tracer("dragoman_service")

    def begin(self, method: str, metadata: Mapping[str, str], http: Mapping[str, str] | None = None) -> RequestTrace:
        """Begin the span of a call, as a child of the span of the caller if there is one."""
        parent = TraceContextTextMapPropagator().extract(metadata)
        started_ns = time.time_ns()
        service, _, name = method.strip("/").rpartition("/")
        # Names and attributes of the semantic conventions for HTTP and for RPC
        if http is None:
            span_name = f"{service}/{name}"
            attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        else:
            span_name = f"{http['http.request.method']} {http['http.route']}"
            attributes = {**http, "mt.method": name}
        span = self._tracer.start_span(
            span_name, context=parent, kind=SpanKind.SERVER, attributes=attributes, start_time=started_ns
        )
        return _RecordedTrace(self._tracer, span, is_http=http is not None, clock=self._clock, started_ns=started_ns)

    def stop(self, timeout_s: float) -> None:
        """Send the queued spans; drop the remaining ones at the timeout."""
        flushing = threading.Thread(target=self._provider.shutdown, name="trace-flush", daemon=True)
        flushing.start()
        flushing.join(timeout_s)
        if flushing.is_alive():
            self._exporter.shutdown()  # aborts the current export; further ones fail immediately
            flushing.join(_ABORT_TIMEOUT_S)


class _RecordedTrace(RequestTrace):
    # Records the span of a call and its child spans, if the trace is sampled.

    def __init__(
        self, tracer: Tracer, span: Span, *, is_http: bool, clock: Callable[[], float], started_ns: int
    ) -> None:
        super().__init__(format_trace_id(span.get_span_context().trace_id))
        self._tracer = tracer
        self._is_http = is_http
        self._span = span
        self._clock = clock
        self._epoch_ns = started_ns - round(clock() * 1e9)  # Unix time at 0 of the clock of the service
        self._context = set_span_in_context(span)
        self.is_recorded = span.is_recording()
        self._num_segments_left = MAX_TRACED_SEGMENTS if self.is_recorded else 0

    @property
    def exemplar(self) -> dict[str, str] | None:
        return {"trace_id": self.trace_id} if self._span.is_recording() else None

    def reserve(self, num_segments: int) -> int:
        num_reserved = min(num_segments, self._num_segments_left)
        self._num_segments_left -= num_reserved
        return num_reserved

    def add(self, name: str, *, began_s: float, ended_s: float, attributes: Attributes | None = None) -> None:
        if self._span.is_recording():
            span = self._tracer.start_span(
                name, context=self._context, attributes=attributes, start_time=self._unix_ns(began_s)
            )
            span.end(end_time=self._unix_ns(ended_s))

    def end(self, *, status: str, code: int, http_status: int | None, attributes: Attributes) -> None:
        if self._span.is_recording():
            self._span.set_attributes(attributes)
            if not self._is_http:
                self._span.set_attribute("rpc.grpc.status_code", code)
                error = status if status in _SERVER_FAULTS else ""
            else:
                if http_status is not None:
                    self._span.set_attribute("http.response.status_code", http_status)
                error = str(http_status) if http_status is not None and http_status >= _FIRST_SERVER_FAULT else ""
            if error:
                self._span.set_attribute("error.type", error)
                self._span.set_status(StatusCode.ERROR, status)
            self._span.end(end_time=self._unix_ns(self._clock()))

    def _unix_ns(self, time_s: float) -> int:
        return self._epoch_ns + round(time_s * 1e9)


class _CountingExporter(SpanExporter):
    # Counts exported and failed spans, and logs the first failure and the first success after it.

    def __init__(self, endpoint: str, count: Callable[[str, int], None]) -> None:
        self._endpoint = endpoint
        self._count = count
        self._sender = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._sender.export(spans)
        has_failed = result is not SpanExportResult.SUCCESS
        self._count("failed" if has_failed else "exported", len(spans))
        if has_failed and not self._is_failing:
            log.warning("trace export failed; traces are dropped", extra={"endpoint": self._endpoint})
        elif self._is_failing and not has_failed:
            log.info("trace export recovered", extra={"endpoint": self._endpoint})
        self._is_failing = has_failed
        return result

    def shutdown(self) -> None:
        self._sender.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._sender.force_flush(timeout_millis)
