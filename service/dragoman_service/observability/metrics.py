"""The table of metrics: every metric that the service exposes is named here and nowhere else.

Times are in seconds, sizes in tokens, segments or bytes. Labels come from small fixed sets, never from request data.
"""

import contextlib
import functools
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Generic, TypeVar

import prometheus_client
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics import MetricWrapperBase

_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_COUNT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKEN_BUCKETS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_SHARE_BUCKETS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
COPY_DIRECTIONS = ("to_device", "to_host")
"""Of copies between the host and a device."""

_RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)

# A time of creation beside each series would double their number and tell nothing.
disable_created_metrics()  # type: ignore[no-untyped-call]

_Metric = TypeVar("_Metric", bound=MetricWrapperBase)


class Histogram(prometheus_client.Histogram):
    """A histogram that takes equal observations at the cost of one."""

    def observe_times(self, amount: float, times: int) -> None:
        """Observe an amount, which is a number, so many times, without an exemplar."""
        self._sum.inc(amount * times)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(times)


@dataclass(frozen=True, slots=True)
class Row(Generic[_Metric]):
    """A row of the table; read from an instance of `Metrics` it is the metric itself."""

    kind: type[_Metric]
    name: str
    """As it is exposed, without the `_total` of a counter."""

    documentation: str
    labels: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    """Values of its one label that are exposed as 0 before they are counted: `rate` never sees the first count of a
    series that appears with it."""

    buckets: tuple[float, ...] = ()
    """Upper bounds, of a histogram."""

    def __set_name__(self, owner: type["Metrics"], attribute: str) -> None:
        """Enter the row in the table."""
        owner.TABLE[attribute] = self

    def __get__(self, metrics: "Metrics", owner: type["Metrics"]) -> _Metric:
        """Tell type checkers the kind; an instance has the metric in its own dictionary, so this is never called."""
        raise AttributeError(self.name)

    @property
    def exposed_name(self) -> str:
        """Name in an exposition, without the suffixes of a histogram's series."""
        return f"{self.name}_total" if self.kind is Counter else self.name

    def register(self, registry: CollectorRegistry) -> _Metric:
        """Return a new metric in a registry."""
        options: dict[str, Any] = {"buckets": self.buckets} if self.buckets else {}
        metric = self.kind(self.name, self.documentation, self.labels, registry=registry, **options)
        for value in self.shown:
            metric.labels(value)
        return metric


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """Sizes of queue, batches and result cache of a scheduler: the values of the gauges with these names."""

    queue_segments: int
    queue_tokens: int
    queue_decode_cost: int
    batch_live_segments: int
    batch_live_rows: int
    result_cache_bytes: int


_counter = partial(Row, Counter)
_gauge = partial(Row, Gauge)
_histogram = partial(Row, Histogram, buckets=_LATENCY_BUCKETS)


class Metrics:
    """All metrics of one server, registered in one registry."""

    TABLE: ClassVar[dict[str, Row[Any]]] = {}
    """Attribute to row, in order."""

    requests = _counter("dragoman_requests", "Finished RPCs by method and gRPC status.", ("method", "status"))
    request_seconds = _histogram(
        "dragoman_request_duration_seconds", "Time from the first byte of an RPC to its status.", ("method",)
    )
    first_sentence_seconds = _histogram(
        "dragoman_first_sentence_seconds", "Time from the start of a document to its first finished sentence."
    )
    requests_in_flight = _gauge("dragoman_requests_in_flight", "RPCs being answered.", ("method",))
    documents = _counter(
        "dragoman_documents",
        "Uploaded documents by how work on them ended: done, error, expired, interrupted or removed.",
        ("outcome",),
        shown=("done", "error", "expired", "interrupted", "removed"),
    )
    documents_in_progress = _gauge("dragoman_documents_in_progress", "Uploaded documents that are being translated.")
    open_streams = _gauge("dragoman_open_streams", "Calls that carry many requests, such as TranslateStream.")
    unseen_calls = _counter(
        "dragoman_unseen_calls",
        "Calls that were over before the server saw them: reset by their callers, or cancelled by gRPC.",
    )
    unread_calls = _gauge("dragoman_unread_calls", "Calls whose message has not arrived yet.")
    received_bytes = _gauge("dragoman_received_bytes", "Messages of the calls that are being answered.")
    watchers = _gauge("dragoman_health_watchers", "Calls of Health/Watch.")
    rejected_requests = _counter(
        "dragoman_rejected_requests",
        "Requests rejected before the queue, by reason: overloaded (the queue is full), deadline (the answer would "
        "come too late), draining, or the reason in the details of the status.",
        ("reason",),
        shown=("overloaded", "deadline", "draining"),
    )
    limit_refusals = _counter(
        "dragoman_limit_refusals",
        "Calls that a limit of the gRPC server rejected or ended, by the setting.",
        ("limit",),
    )
    warnings = _counter("dragoman_translation_warnings", "Warnings in replies by kind.", ("kind",))

    queue_wait_seconds = _histogram(
        "dragoman_queue_wait_seconds",
        "Wait of a segment until it joined a batch, its encoder run apart, by priority: interactive, bulk.",
        ("priority",),
    )
    queue_segments = _gauge("dragoman_queue_segments", "Segments that wait.")
    queue_tokens = _gauge("dragoman_queue_tokens", "Source tokens that wait.")
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
        "dragoman_text_duration_seconds", "Splitting, tokenizing, detokenizing and joining of a request."
    )
    encode_seconds = _histogram("dragoman_encode_duration_seconds", "Encoder run of a group of segments.")
    decode_seconds = _histogram("dragoman_decode_duration_seconds", "Search of a segment, from joining a batch.")
    step_seconds = _histogram("dragoman_step_duration_seconds", "One decoder step of a whole batch.")
    steps = _counter("dragoman_decoder_steps", "Decoder steps run.")
    step_padding_share = _histogram(
        "dragoman_step_padding_share",
        "Share of a step that is padding: rows beyond the beams of narrower segments, source positions beyond the "
        "ends of shorter ones.",
        ("part",),
        buckets=_SHARE_BUCKETS,
    )
    batch_segments = _histogram(
        "dragoman_batch_segments", "Segments in the batch at each step.", buckets=_COUNT_BUCKETS
    )
    batch_padded_tokens = _histogram(
        "dragoman_batch_padded_tokens",
        "Segments times the longest source of the batch, at each admission.",
        buckets=_TOKEN_BUCKETS,
    )
    batch_live_segments = _gauge("dragoman_batch_live_segments", "Segments in the batches of all decoding threads.")
    batch_live_rows = _gauge(
        "dragoman_batch_live_rows", "Beams of the segments in the batches of all decoding threads."
    )
    result_cache_bytes = _gauge(
        "dragoman_result_cache_bytes", "Estimated memory of the results kept for sentences that come again."
    )
    result_cache_lookups = _counter(
        "dragoman_result_cache_lookups",
        "Segments looked for among the results kept: hit or miss; none if scheduling.max_cached_bytes is 0.",
        ("outcome",),
        shown=("hit", "miss"),
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
        shown=("ok", "error", "deadline", "cancelled"),
    )
    cancelled_segments = _counter(
        "dragoman_cancelled_segments",
        "Segments whose caller left before the answer, by stage: queue, decode.",
        ("stage",),
        shown=("queue", "decode"),
    )
    deadline_misses = _counter(
        "dragoman_deadline_misses",
        "Segments not answered because of their deadline, by stage: admission (the answer was expected too late), "
        "queue, decode.",
        ("stage",),
        shown=("admission", "queue", "decode"),
    )
    source_tokens = _counter("dragoman_source_tokens", "Source tokens of answered segments.")
    target_tokens = _counter("dragoman_target_tokens", "Target tokens of the best hypothesis of answered segments.")
    length_ratio = _histogram(
        "dragoman_length_ratio",
        "Target tokens of the best hypothesis for each source token, of answered segments.",
        buckets=_RATIO_BUCKETS,
    )
    redecodes = _counter(
        "dragoman_redecodes",
        "Segments decoded again because of a degenerate first result: replaced, kept (the first result).",
        ("outcome",),
    )
    degenerations = _counter(
        "dragoman_degenerations",
        "Defects of first results, by kind: repetition, copied_source, length_ratio.",
        ("kind",),
    )

    ready = _gauge("dragoman_ready", "1 while the server takes new requests.")
    model_state = _gauge(
        "dragoman_model_state",
        "1 for the state that a version of a model is in, 0 for the others: loading, ready, draining, failed.",
        ("model", "version", "state"),
    )
    model_info = _gauge("dragoman_model_info", "1 for each loaded model.", ("model", "version", "precision", "device"))
    model_weights_bytes = _gauge(
        "dragoman_model_weights_bytes",
        "Files of graphs and weights of the precision that a loaded model runs.",
        ("model", "version"),
    )
    kv_cache_bytes = _gauge(
        "dragoman_kv_cache_bytes",
        "Keys and values kept by the decoding threads of a model, room for more segments included.",
        ("model", "version"),
    )
    model_load_seconds = _histogram(
        "dragoman_model_load_duration_seconds", "Loading and warming up of a version, until it is ready."
    )
    model_load_failures = _counter(
        "dragoman_model_load_failures", "Versions of a model that could not be loaded.", ("model",)
    )
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
        shown=("ended", "no_step", "load_timeout"),
    )

    device_copy_bytes = _counter(
        "dragoman_device_copy_bytes",
        "Bytes copied between the host and the memory of GPUs by decoding: ids and indices to_device, candidates and "
        "attention weights to_host; keys and values stay there.",
        ("direction",),
        shown=COPY_DIRECTIONS,
    )
    gpu_memory_bytes = _gauge("dragoman_gpu_memory_bytes", "Memory of a GPU.", ("gpu",))
    gpu_memory_used_bytes = _gauge(
        "dragoman_gpu_memory_used_bytes", "Memory of a GPU that is taken, by whatever process.", ("gpu",)
    )
    gpu_busy_share = _gauge(
        "dragoman_gpu_busy_share",
        "Share of the last moments in which a GPU ran anything, by whatever process.",
        ("gpu",),
    )
    gpu_clock_hertz = _gauge(
        "dragoman_gpu_clock_hertz",
        "Clock of the multiprocessors of a GPU; it falls with heat and limits of power.",
        ("gpu",),
    )
    gpu_power_watts = _gauge("dragoman_gpu_power_watts", "Power that a GPU takes.", ("gpu",))

    certificate_expiry_seconds = _gauge(
        "dragoman_certificate_expiry_timestamp_seconds",
        "Unix time at which the first certificate of a file in use expires: server, client_ca.",
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
        "Checks of callers' limits with `access.quota_store_url_file`, by who decided: store, or local while the store "
        "does not answer in time.",
        ("decided_by",),
        shown=("store", "local"),
    )
    trace_spans = _counter("dragoman_trace_spans", "Trace spans by outcome: exported, failed.", ("outcome",))
    lost_log_lines = _counter(
        "dragoman_lost_log_lines",
        "Log lines that could not be written: the disk is full, or what reads the log is too slow or gone.",
    )
    build_info = _gauge("dragoman_build_info", "1, with the versions of what runs.", ("version", "onnxruntime"))

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register every row of the table."""
        self.registry = registry
        vars(self).update({attribute: row.register(registry) for attribute, row in self.TABLE.items()})
        self._schedulers: dict[Callable[[], SchedulerStats], None] = {}
        for size in fields(SchedulerStats):
            getattr(self, size.name).set_function(partial(self._total_size, size.name))
        self.build_info.labels(_version("dragoman"), _version("onnxruntime", "onnxruntime-gpu")).set(1)

    def add_scheduler(self, stats: Callable[[], SchedulerStats]) -> None:
        """Include a scheduler in the gauges; `stats` is called in any thread, whenever they are read."""
        self._schedulers[stats] = None

    def remove_scheduler(self, stats: Callable[[], SchedulerStats]) -> None:
        """Exclude a scheduler from the gauges."""
        self._schedulers.pop(stats, None)

    def _total_size(self, name: str) -> int:
        return sum(getattr(stats(), name) for stats in tuple(self._schedulers))


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
