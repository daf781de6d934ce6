"""All metrics of the service.

Times are in seconds, sizes in tokens, segments or bytes. Label values come from small fixed sets, never from requests.
"""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Generic, TypeVar

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
from prometheus_client.metrics import MetricWrapperBase

_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_COUNT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKEN_BUCKETS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_SHARE_BUCKETS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)

COPY_DIRECTIONS = ("to_device", "to_host")  # values of the label `direction` of copies between host and GPU

# Creation times would double the number of series without useful information.
disable_created_metrics()  # type: ignore[no-untyped-call]

_Metric = TypeVar("_Metric", bound=MetricWrapperBase)


@dataclass(frozen=True, slots=True)
class MetricDeclaration(Generic[_Metric]):
    """Declaration of a metric; on an instance of `Metrics`, the attribute is the metric itself."""

    kind: type[_Metric]
    name: str  # exposed name, without the suffix `_total` of a counter
    documentation: str
    labels: tuple[str, ...] = ()
    initial_values: tuple[str, ...] = ()
    """Values of the only label that are exposed as 0 from the start. Otherwise `rate` would miss the first count, which
    creates the series."""

    buckets: tuple[float, ...] = ()  # upper bounds of a histogram

    def __set_name__(self, owner: type["Metrics"], attribute: str) -> None:
        """Add the declaration to the table."""
        owner.TABLE[attribute] = self

    def __get__(self, metrics: "Metrics", owner: type["Metrics"]) -> _Metric:
        """Declare the type of the attribute; never called, because instances have the metric in their dictionary."""
        raise AttributeError(self.name)

    @property
    def exposed_name(self) -> str:
        """Name in the exposition, without the suffixes of the series of a histogram."""
        return f"{self.name}_total" if self.kind is Counter else self.name

    def register(self, registry: CollectorRegistry) -> _Metric:
        """Create the metric in a registry."""
        options: dict[str, Any] = {"buckets": self.buckets} if self.buckets else {}
        metric = self.kind(self.name, self.documentation, self.labels, registry=registry, **options)
        for value in self.initial_values:
            metric.labels(value)
        return metric


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """Values of the scheduler gauges with the same names."""

    queue_segments: int
    queue_tokens: int
    queue_decode_cost: int
    batch_live_segments: int
    batch_live_rows: int
    result_cache_bytes: int


_counter = partial(MetricDeclaration, Counter)
_gauge = partial(MetricDeclaration, Gauge)
_histogram = partial(MetricDeclaration, Histogram, buckets=_LATENCY_BUCKETS)


class Metrics:
    """All metrics of one server, registered in one registry."""

    TABLE: ClassVar[dict[str, MetricDeclaration[Any]]] = {}  # attribute name to declaration, in order
    requests = _counter("dragoman_requests", "Finished RPCs by method and gRPC status.", ("method", "status"))
    request_seconds = _histogram(
        "dragoman_request_duration_seconds", "Time from the first byte of an RPC to its status.", ("method",)
    )
    first_sentence_seconds = _histogram(
        "dragoman_first_sentence_seconds", "Time from the start of a document to its first finished sentence."
    )
    requests_in_flight = _gauge("dragoman_requests_in_flight", "RPCs in progress.", ("method",))
    documents = _counter(
        "dragoman_documents",
        "Finished document jobs by outcome: done, error, expired, interrupted, removed.",
        ("outcome",),
        initial_values=("done", "error", "expired", "interrupted", "removed"),
    )
    documents_in_progress = _gauge("dragoman_documents_in_progress", "Uploaded documents that are being translated.")
    open_streams = _gauge("dragoman_open_streams", "Open calls with many requests, such as TranslateStream.")
    dropped_calls = _counter(
        "dragoman_dropped_calls",
        "Calls that ended before the server could process them: reset by the caller or cancelled by gRPC.",
    )
    unread_calls = _gauge("dragoman_unread_calls", "Calls whose message has not been received yet.")
    received_bytes = _gauge("dragoman_received_bytes", "Size of the messages of the calls in progress.")
    watchers = _gauge("dragoman_health_watchers", "Open calls of Health/Watch.")
    rejected_requests = _counter(
        "dragoman_rejected_requests",
        "Requests rejected before the queue, by reason: overloaded (the queue is full), deadline (the answer would "
        "come too late), draining, or the reason in the details of the status.",
        ("reason",),
        initial_values=("overloaded", "deadline", "draining"),
    )
    limit_rejections = _counter(
        "dragoman_limit_rejections",
        "Calls that a limit of the gRPC server rejected or ended, by setting.",
        ("limit",),
    )
    warnings = _counter("dragoman_translation_warnings", "Warnings in replies by kind.", ("kind",))

    queue_wait_seconds = _histogram(
        "dragoman_queue_wait_seconds",
        "Time that a segment waits to join a batch, excluding its encoder run, by priority: interactive, bulk.",
        ("priority",),
    )
    queue_segments = _gauge("dragoman_queue_segments", "Queued segments.")
    queue_tokens = _gauge("dragoman_queue_tokens", "Source tokens of queued segments.")
    queue_decode_cost = _gauge(
        "dragoman_queue_decode_cost",
        "Expected decode cost of queued segments: source tokens, plus beam size times decoder steps.",
    )
    prediction_error_seconds = _histogram(
        "dragoman_prediction_error_seconds",
        "Absolute error of the answer time that was predicted at admission, by direction of the answer: early, late.",
        ("direction",),
    )
    text_seconds = _histogram(
        "dragoman_text_duration_seconds", "Time to split, tokenize, detokenize and join the text of a request."
    )
    encode_seconds = _histogram("dragoman_encode_duration_seconds", "Time of an encoder run for a group of segments.")
    decode_seconds = _histogram(
        "dragoman_decode_duration_seconds", "Time of the search of a segment, from joining a batch to its result."
    )
    step_seconds = _histogram("dragoman_step_duration_seconds", "Time of a decoder step of a whole batch.")
    steps = _counter("dragoman_decoder_steps", "Decoder steps run.")
    step_padding_share = _histogram(
        "dragoman_step_padding_share",
        "Share of padding in a step: rows beyond the beam size of a segment, or source positions beyond its end.",
        ("part",),
        buckets=_SHARE_BUCKETS,
    )
    batch_segments = _histogram(
        "dragoman_batch_segments", "Segments in the batch at each step.", buckets=_COUNT_BUCKETS
    )
    batch_padded_tokens = _histogram(
        "dragoman_batch_padded_tokens",
        "Number of segments times the longest source of the batch, at each admission.",
        buckets=_TOKEN_BUCKETS,
    )
    batch_live_segments = _gauge("dragoman_batch_live_segments", "Segments in the batches of all decoding threads.")
    batch_live_rows = _gauge(
        "dragoman_batch_live_rows", "Beams of the segments in the batches of all decoding threads."
    )
    result_cache_bytes = _gauge("dragoman_result_cache_bytes", "Estimated memory of the cached results of segments.")
    result_cache_lookups = _counter(
        "dragoman_result_cache_lookups",
        "Lookups of segments in the result cache: hit, miss; none if scheduling.max_cached_bytes is 0.",
        ("outcome",),
        initial_values=("hit", "miss"),
    )
    batch_failures = _counter(
        "dragoman_batch_failures",
        "Batches that failed with all of their segments: an error of the model or the server, or the exit of the "
        "worker process; the log has the cause.",
    )

    segments = _counter(
        "dragoman_segments",
        "Admitted segments by outcome.",
        ("outcome",),
        initial_values=("ok", "error", "deadline", "cancelled"),
    )
    cancelled_segments = _counter(
        "dragoman_cancelled_segments",
        "Segments whose call was cancelled before their result, by stage: queue, decode.",
        ("stage",),
        initial_values=("queue", "decode"),
    )
    deadline_misses = _counter(
        "dragoman_deadline_misses",
        "Segments that missed their deadline, by stage: admission (rejected, the expected answer time is too late), "
        "queue, decode.",
        ("stage",),
        initial_values=("admission", "queue", "decode"),
    )
    source_tokens = _counter("dragoman_source_tokens", "Source tokens of translated segments.")
    target_tokens = _counter("dragoman_target_tokens", "Target tokens of the best hypothesis of translated segments.")
    length_ratio = _histogram(
        "dragoman_length_ratio",
        "Target tokens of the best hypothesis per source token of translated segments.",
        buckets=_RATIO_BUCKETS,
    )
    redecodes = _counter(
        "dragoman_redecodes",
        "Segments decoded again because of a degenerate first result: replaced, kept (first result used).",
        ("outcome",),
    )
    degenerations = _counter(
        "dragoman_degenerations",
        "Defects of first results, by kind: repetition, length_ratio.",
        ("kind",),
    )
    second_searches = _counter(
        "dragoman_second_searches",
        "Second searches of sentences whose translation violates an invariant, by outcome: replaced (the second "
        "translation is better), kept (the first is returned), skipped (the queue was full or the deadline too close).",
        ("outcome",),
        initial_values=("replaced", "kept", "skipped"),
    )

    ready = _gauge("dragoman_ready", "1 while the server accepts new requests.")
    model_state = _gauge(
        "dragoman_model_state",
        "1 for the state that a version of a model is in, 0 for the others: loading, ready, draining, failed.",
        ("model", "version", "state"),
    )
    model_info = _gauge("dragoman_model_info", "1 for each loaded model.", ("model", "version", "precision", "device"))
    model_weights_bytes = _gauge(
        "dragoman_model_weights_bytes",
        "Size of the files with graphs and weights of a loaded model, for the precision in use.",
        ("model", "version"),
    )
    kv_cache_bytes = _gauge(
        "dragoman_kv_cache_bytes",
        "Size of the KV caches of the decoding threads of a model, including unused slots; "
        "with the native engine, also of the memory for temporary values.",
        ("model", "version"),
    )
    model_load_seconds = _histogram(
        "dragoman_model_load_duration_seconds", "Time to load and warm up a version of a model."
    )
    model_load_failures = _counter("dragoman_model_load_failures", "Failed loads of a version of a model.", ("model",))
    glossary_failures = _counter(
        "dragoman_glossary_failures",
        "New or changed glossaries that are invalid and ignored; the previous ones stay active.",
    )
    model_swaps = _counter("dragoman_model_swaps", "Changes of the default version of a model.", ("model",))
    worker_memory_bytes = _gauge(
        "dragoman_worker_resident_memory_bytes",
        "Resident memory of the worker process of a replica, with runtime.isolation = process; 0 if it has exited.",
        ("model", "version", "replica"),
    )
    worker_cpu_seconds = _counter(
        "dragoman_worker_cpu_seconds",
        "CPU time of the worker processes, user and system; `process_cpu_seconds_total` does not include it.",
    )
    worker_restarts = _counter("dragoman_worker_restarts", "Restarts of worker processes that exited unexpectedly.")
    worker_failures = _counter(
        "dragoman_worker_failures",
        "Worker processes that exited unexpectedly, by cause: ended (it crashed or was killed, also while loading); "
        "no_step, load_timeout (the server killed it: scheduling.max_step_s, models.load_timeout_s).",
        ("cause",),
        initial_values=("ended", "no_step", "load_timeout"),
    )

    device_copy_bytes = _counter(
        "dragoman_device_copy_bytes",
        "Bytes copied between host and GPU memory during decoding: ids and indices to_device, candidates and attention "
        "weights to_host; keys and values stay on the GPU.",
        ("direction",),
        initial_values=COPY_DIRECTIONS,
    )
    gpu_memory_bytes = _gauge("dragoman_gpu_memory_bytes", "Total memory of a GPU.", ("gpu",))
    gpu_memory_used_bytes = _gauge(
        "dragoman_gpu_memory_used_bytes", "Used memory of a GPU, all processes together.", ("gpu",)
    )
    gpu_busy_share = _gauge(
        "dragoman_gpu_busy_share",
        "Share of the last sample period in which a GPU was busy, all processes together.",
        ("gpu",),
    )
    gpu_clock_hertz = _gauge(
        "dragoman_gpu_clock_hertz",
        "Clock of the multiprocessors of a GPU; lower if heat or the power limit throttles the GPU.",
        ("gpu",),
    )
    gpu_power_watts = _gauge("dragoman_gpu_power_watts", "Power consumption of a GPU.", ("gpu",))

    certificate_expiry_seconds = _gauge(
        "dragoman_certificate_expiry_timestamp_seconds",
        "Earliest expiry, as Unix time, of the certificates in a file: server, client_ca.",
        ("certificate",),
    )
    certificate_reload_failures = _counter(
        "dragoman_certificate_reload_failures",
        "Changed certificate or key files that are invalid and ignored; the previous ones stay active.",
    )
    callers_reload_failures = _counter(
        "dragoman_callers_reload_failures",
        "Changed callers files, JWK Sets and files of `access.quota_store_url_file` that are invalid and ignored; the "
        "previous one stays active.",
    )
    quota_checks = _counter(
        "dragoman_quota_checks",
        "Checks of caller limits with `access.quota_store_url_file`, by decision: store, or local if the store "
        "does not respond in time.",
        ("decided_by",),
        initial_values=("store", "local"),
    )
    trace_spans = _counter("dragoman_trace_spans", "Trace spans by outcome: exported, failed.", ("outcome",))
    lost_log_lines = _counter(
        "dragoman_lost_log_lines",
        "Log lines that could not be written, because the disk is full or the reader of the log is too slow or closed.",
    )
    build_info = _gauge(
        "dragoman_build_info", "Always 1; the labels have the installed versions.", ("version", "onnxruntime")
    )

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create all metrics in a registry."""
        self.registry = registry
        vars(self).update({attribute: declaration.register(registry) for attribute, declaration in self.TABLE.items()})
        self._schedulers: dict[Callable[[], SchedulerStats], None] = {}
        for gauge in fields(SchedulerStats):
            getattr(self, gauge.name).set_function(partial(self._total, gauge.name))
        versions = installed_version("dragoman"), installed_version("onnxruntime", "onnxruntime-gpu")
        self.build_info.labels(*versions).set(1)

    def add_scheduler(self, stats: Callable[[], SchedulerStats]) -> None:
        """Include a scheduler in the gauges; `stats` is called in any thread, at each scrape."""
        self._schedulers[stats] = None

    def remove_scheduler(self, stats: Callable[[], SchedulerStats]) -> None:
        """Exclude a scheduler from the gauges."""
        self._schedulers.pop(stats, None)

    def _total(self, name: str) -> int:
        return sum(getattr(stats(), name) for stats in tuple(self._schedulers))


def observe_process(registry: CollectorRegistry) -> None:
    """Register the standard Prometheus metrics of memory, CPU time, open files and garbage collection."""
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)


@functools.cache
def installed_version(*distributions: str) -> str:
    """Return the version of the first installed distribution, or `unknown`, for example in a source tree."""
    for distribution in distributions:
        with contextlib.suppress(PackageNotFoundError):
            return version(distribution)
    return "unknown"
