"""The catalogue: every metric the service exposes is named here and nowhere else.

Times are in seconds, sizes in tokens, segments or bytes. Labels come from small fixed sets, never from request data.
"""

import contextlib
import functools
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_COUNT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKEN_BUCKETS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_SHARE_BUCKETS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)

# A time of creation beside each series would double their number and tell nothing.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """All metrics of one server, registered in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:  # noqa: PLR0915 - a table
        self.registry = registry
        self.requests = Counter(
            "mt_requests", "Finished RPCs by method and gRPC status.", ("method", "status"), registry=registry
        )
        self.request_seconds = Histogram(
            "mt_request_duration_seconds",
            "Time from the first byte of an RPC to its status.",
            ("method",),
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self.first_sentence_seconds = Histogram(
            "mt_first_sentence_seconds",
            "Time from the start of a document to its first finished sentence.",
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self.requests_in_flight = Gauge("mt_requests_in_flight", "RPCs being answered.", ("method",), registry=registry)
        self.open_streams = Gauge(
            "mt_open_streams", "Calls that carry many requests, such as TranslateStream.", registry=registry
        )
        self.queue_wait_seconds = Histogram(
            "mt_queue_wait_seconds",
            "Wait of a segment until its encoder run began, by priority: interactive, bulk.",
            ("priority",),
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self.encode_seconds = self._stage("mt_encode_duration_seconds", "Encoder run of a group of segments.")
        self.decode_seconds = self._stage("mt_decode_duration_seconds", "Search of a segment after its encoder run.")
        self.text_seconds = self._stage(
            "mt_text_duration_seconds", "Splitting, tokenizing, detokenizing and joining of a request."
        )
        self.step_seconds = self._stage("mt_step_duration_seconds", "One decoder step of a whole batch.")
        self.queue_segments = Gauge("mt_queue_segments", "Segments that wait.", registry=registry)
        self.queue_tokens = Gauge("mt_queue_tokens", "Source tokens that wait.", registry=registry)
        self.queue_work_tokens = Gauge(
            "mt_queue_work_tokens",
            "Expected work that waits: source tokens, and beam size times expected decoder steps.",
            registry=registry,
        )
        self.batch_live_segments = Gauge(
            "mt_batch_live_segments", "Segments in the batches of all decoding threads.", registry=registry
        )
        self.batch_live_rows = Gauge(
            "mt_batch_live_rows", "Beams of the segments in the batches of all decoding threads.", registry=registry
        )
        self.step_padding_share = Histogram(
            "mt_step_padding_share",
            "Share of a step that is padding: rows beyond the beams of narrower segments, source positions beyond the "
            "ends of shorter ones.",
            ("part",),
            buckets=_SHARE_BUCKETS,
            registry=registry,
        )
        self.cancelled_segments = Counter(
            "mt_cancelled_segments",
            "Segments whose caller left before the answer, by where they were: queue, decode.",
            ("stage",),
            registry=registry,
        )
        self.deadline_misses = Counter(
            "mt_deadline_misses",
            "Segments not answered because of their deadline, by stage: admission (the answer was expected too late), "
            "queue, decode.",
            ("stage",),
            registry=registry,
        )
        self.prediction_error_seconds = Histogram(
            "mt_prediction_error_seconds",
            "How far off it was at admission when a request would be decoded, by whether it was early or late.",
            ("direction",),
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self.batch_segments = Histogram(
            "mt_batch_segments", "Segments in the batch at each step.", buckets=_COUNT_BUCKETS, registry=registry
        )
        self.batch_failures = Counter(
            "mt_batch_failures",
            "Batches lost with all of their segments: the network failed, its process ended, or the server is at "
            "fault; the log says which.",
            registry=registry,
        )
        self.batch_padded_tokens = Histogram(
            "mt_batch_padded_tokens",
            "Segments times the longest source of the batch, at each admission.",
            buckets=_TOKEN_BUCKETS,
            registry=registry,
        )
        self.steps = Counter("mt_decoder_steps", "Decoder steps run.", registry=registry)
        self.segments = Counter("mt_segments", "Admitted segments by how they ended.", ("outcome",), registry=registry)
        self.source_tokens = Counter("mt_source_tokens", "Source tokens of answered segments.", registry=registry)
        self.target_tokens = Counter(
            "mt_target_tokens", "Target tokens of the best hypothesis of answered segments.", registry=registry
        )
        self.length_ratio = Histogram(
            "mt_length_ratio",
            "Target tokens of the best hypothesis for each source token, of answered segments.",
            buckets=_RATIO_BUCKETS,
            registry=registry,
        )
        self.guard_outcomes = Counter(
            "mt_guard_outcomes",
            "Segments searched twice for a defect of the first result, by which of the two was returned.",
            ("outcome",),
            registry=registry,
        )
        self.guard_defects = Counter(
            "mt_guard_defects", "Defects that the guard found in first results, by kind.", ("kind",), registry=registry
        )
        self.rejected_requests = Counter(
            "mt_rejected_requests",
            "Requests refused before the queue, by reason: overloaded (the queue is full), deadline (the answer would "
            "come too late), draining, or the reason that the caller is told.",
            ("reason",),
            registry=registry,
        )
        self.warnings = Counter("mt_translation_warnings", "Warnings in replies by kind.", ("kind",), registry=registry)
        self.model_info = Gauge(
            "mt_model_info",
            "1 for each loaded model.",
            ("model", "version", "precision", "device"),
            registry=registry,
        )
        self.model_weights_bytes = Gauge(
            "mt_model_weights_bytes",
            "Files of graphs and weights of the precision that a loaded model runs.",
            ("model", "version"),
            registry=registry,
        )
        self.kv_cache_bytes = Gauge(
            "mt_kv_cache_bytes",
            "Keys and values kept by the decoding threads of a model, room for more segments included.",
            ("model", "version"),
            registry=registry,
        )
        self.decoding_process_memory_bytes = Gauge(
            "mt_decoding_process_resident_memory_bytes",
            "Resident memory of the process that decodes for a model, if it has one of its own.",
            ("model", "version"),
            registry=registry,
        )
        self.decoding_process_cpu_seconds = Counter(
            "mt_decoding_process_cpu_seconds",
            "CPU time of the processes that decode, user and system; `process_cpu_seconds_total` is without it.",
            registry=registry,
        )
        self.decoding_process_restarts = Counter(
            "mt_decoding_process_restarts",
            "Times that a process which decodes had ended by itself and was started again.",
            registry=registry,
        )
        self.certificate_expiry_seconds = Gauge(
            "mt_certificate_expiry_timestamp_seconds",
            "Unix time at which the first certificate of a file in use expires: server, client_ca.",
            ("certificate",),
            registry=registry,
        )
        self.certificate_reload_failures = Counter(
            "mt_certificate_reload_failures",
            "Changes of certificate or key files that were no good, so that the former ones stay in use.",
            registry=registry,
        )
        self.callers_reload_failures = Counter(
            "mt_callers_reload_failures",
            "Changes of the callers file that were no good, so that the former one stays in use.",
            registry=registry,
        )
        self.model_state = Gauge(
            "mt_model_state",
            "1 for the state that a version of a model is in, 0 for the others: loading, ready, draining, failed.",
            ("model", "version", "state"),
            registry=registry,
        )
        self.model_load_seconds = Histogram(
            "mt_model_load_duration_seconds",
            "Loading and warming up of a version, until it took requests.",
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self.model_load_failures = Counter(
            "mt_model_load_failures", "Versions of a model that could not be loaded.", ("model",), registry=registry
        )
        self.model_swaps = Counter(
            "mt_model_swaps",
            "Times that requests which name a model without a version went to another version from then on.",
            ("model",),
            registry=registry,
        )
        self.ready = Gauge("mt_ready", "1 while the server takes new requests.", registry=registry)
        self.trace_spans = Counter(
            "mt_trace_spans",
            "Spans by whether the collector took them: exported, failed.",
            ("outcome",),
            registry=registry,
        )
        self.lost_log_lines = Counter(
            "mt_lost_log_lines",
            "Lines of the log that could not be written: the disk is full, or whoever reads the log does not.",
            registry=registry,
        )
        self.build_info = Gauge(
            "mt_build_info", "1, with the versions of what runs.", ("version", "onnxruntime"), registry=registry
        )
        self.build_info.labels(_version("dragoman"), _version("onnxruntime", "onnxruntime-gpu")).set(1)
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Show what has not been counted yet: of a series that appears with its first count, `rate` never sees it."""
        for counter, values in (
            (self.rejected_requests, ("overloaded", "deadline", "draining")),
            (self.deadline_misses, ("admission", "queue", "decode")),
            (self.segments, ("ok", "error", "deadline", "cancelled")),
            (self.cancelled_segments, ("queue", "decode")),
        ):
            for value in values:
                counter.labels(value)

    def _stage(self, name: str, documentation: str) -> Histogram:
        return Histogram(name, documentation, buckets=_LATENCY_BUCKETS, registry=self.registry)


def observe_process(registry: CollectorRegistry) -> None:
    """Expose memory, CPU time, open files and garbage collection under the names that Prometheus gives them."""
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)


@functools.cache
def _version(*distributions: str) -> str:
    """Return the version of the first that is installed; `unknown` if none is, as in a mere source tree."""
    for distribution in distributions:
        with contextlib.suppress(PackageNotFoundError):
            return version(distribution)
    return "unknown"
