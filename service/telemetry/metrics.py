"""The catalogue: every metric the service exposes is named here and nowhere else.

Times are in seconds, sizes in tokens, segments or bytes. Labels come from small fixed sets, never from request data.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_COUNT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKEN_BUCKETS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics:
    """All metrics of one server, registered in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
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
        self.requests_in_flight = Gauge("mt_requests_in_flight", "RPCs being answered.", ("method",), registry=registry)
        self.queue_wait_seconds = self._stage("mt_queue_wait_seconds", "Wait of a segment until its encoder run began.")
        self.encode_seconds = self._stage("mt_encode_duration_seconds", "Encoder run of a group of segments.")
        self.decode_seconds = self._stage("mt_decode_duration_seconds", "Search of a segment after its encoder run.")
        self.text_seconds = self._stage(
            "mt_text_duration_seconds", "Splitting, tokenizing, detokenizing and joining of a request."
        )
        self.step_seconds = self._stage("mt_step_duration_seconds", "One decoder step of a whole batch.")
        self.queue_segments = Gauge("mt_queue_segments", "Segments that wait.", registry=registry)
        self.queue_tokens = Gauge("mt_queue_tokens", "Source tokens that wait.", registry=registry)
        self.batch_segments = Histogram(
            "mt_batch_segments", "Segments in the batch at each step.", buckets=_COUNT_BUCKETS, registry=registry
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
            "mt_rejected_requests", "Requests refused before the queue, by reason.", ("reason",), registry=registry
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
        self.ready = Gauge("mt_ready", "1 while the server takes new requests.", registry=registry)

    def _stage(self, name: str, documentation: str) -> Histogram:
        return Histogram(name, documentation, buckets=_LATENCY_BUCKETS, registry=self.registry)
