"""Metrics of the scheduler: one method for each event that is counted."""

from collections.abc import Sequence

from dragoman_service.datatypes import SegmentResult
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.errors import DeadlineExceededError
from dragoman_service.observability.metrics import COPY_DIRECTIONS, Metrics
from dragoman_service.scheduling.admission import Rejection
from dragoman_service.scheduling.admission_queue import QueuedSegment
from dragoman_service.worker.messages import BatchReport, BatchStepOutput


class SchedulerMetrics:
    """Records the events of one scheduler in the metrics of the server."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._copied_bytes = tuple(map(metrics.device_copy_bytes.labels, COPY_DIRECTIONS))
        self._row_padding, self._source_padding = map(metrics.step_padding_share.labels, ("rows", "sources"))

    def record_lookup(self, *, is_hit: bool) -> None:
        """Record a lookup in the result cache."""
        self._metrics.result_cache_lookups.labels("hit" if is_hit else "miss").inc()

    def record_rejection(self, rejection: Rejection, num_segments: int) -> None:
        """Record a rejected request."""
        self._metrics.rejected_requests.labels(rejection.reason).inc()
        if rejection.reason == "deadline":
            self._metrics.deadline_misses.labels("admission").inc(num_segments)

    def record_join(self, load: BatchLoad) -> None:
        """Record the size of a batch that new segments join."""
        self._metrics.batch_padded_tokens.observe(load.padded_tokens)

    def record_report(self, report: BatchReport) -> None:
        """Record the resources that a worker has used since its last report."""
        self._metrics.worker_cpu_seconds.inc(report.cpu_s)
        for counter, num_bytes in zip(self._copied_bytes, report.copied_bytes, strict=True):
            counter.inc(num_bytes)

    def record_encoding(self, encode_s: float, segments: Sequence[QueuedSegment]) -> None:
        """Record an encoder run of segments."""
        exemplars = filter(None, (segment.context.trace.exemplar for segment in segments))
        self._metrics.encode_seconds.observe(encode_s, next(exemplars, None))

    def record_start(self, segment: QueuedSegment) -> None:
        """Record the queueing time of a segment that has joined a batch."""
        queue_wait = self._metrics.queue_wait_seconds.labels(segment.context.priority.value)
        queue_wait.observe(segment.queue_s, segment.context.trace.exemplar)

    def record_step(self, output: BatchStepOutput) -> None:
        """Record decoder steps of a batch."""
        load = output.load
        row_padding = 1 - min(load.live_rows, output.step_rows) / output.step_rows
        source_padding = 1 - load.source_tokens / load.padded_tokens
        for step_s in (*output.earlier_steps_s, output.step_s):
            self._metrics.steps.inc()
            self._metrics.step_seconds.observe(step_s)
            self._metrics.batch_segments.observe(load.num_segments)
            self._row_padding.observe(row_padding)
            self._source_padding.observe(source_padding)

    def record_result(self, segment: QueuedSegment, result: SegmentResult) -> None:
        """Record a decoded segment."""
        num_target_tokens = len(result.hypotheses[0].token_ids)
        self._metrics.decode_seconds.observe(result.timings.decode_s, segment.context.trace.exemplar)
        self._metrics.source_tokens.inc(segment.num_source_tokens)
        self._metrics.target_tokens.inc(num_target_tokens)
        self._metrics.length_ratio.observe(num_target_tokens / segment.num_source_tokens)
        if result.degeneration is not None:
            self._metrics.redecodes.labels("replaced" if result.degeneration.is_replaced else "kept").inc()
            for defect in result.degeneration.found:
                self._metrics.degenerations.labels(defect.kind.value).inc()

    def record_batch_failure(self) -> None:
        """Record a batch that failed with all of its segments."""
        self._metrics.batch_failures.inc()

    def record_outcome(self, segment: QueuedSegment, *, was_queued: bool) -> str:
        """Record how a segment ended, and return it: `ok`, `error`, `deadline` or `cancelled`."""
        error = None if segment.cancelled() else segment.exception()
        if segment.cancelled():
            outcome = "cancelled"
            self._metrics.cancelled_segments.labels("queue" if was_queued else "decode").inc()
        elif isinstance(error, DeadlineExceededError):
            outcome = "deadline"
            self._metrics.deadline_misses.labels(error.stage).inc()
        else:
            outcome = "error" if error else "ok"
        self._metrics.segments.labels(outcome).inc()
        return outcome

    def record_prediction(self, *, predicted_s: float, actual_s: float) -> None:
        """Record the error of a predicted latency."""
        direction = "late" if actual_s > predicted_s else "early"
        self._metrics.prediction_error_seconds.labels(direction).observe(abs(actual_s - predicted_s))
