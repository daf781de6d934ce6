"""What one decoding thread does in one turn: start newcomers, step, answer, release."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.datatypes import GuardReport, SegmentResult, StageTimings
from service.decoding.engine import EndedSegment, Engine
from service.decoding.step_model import StepModel
from service.errors import DeadlineExceededError, EngineError
from service.scheduling.batching import BatchLoad
from service.scheduling.pending import PendingSegment
from service.scheduling.turn import Turn
from service.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSegment:
    """A segment in the batch and what is known of its time."""

    pending: PendingSegment
    queue_s: float
    encode_s: float
    decode_began_s: float


class Worker:
    """A batch and the callers who wait for it; all but `num_segments` belongs to one thread.

    Whatever the model does, every segment handed over is answered: an exception fails those in the batch with
    `EngineError`, and the next turn begins with a fresh one.
    """

    def __init__(self, model: StepModel, *, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._model = model
        self._metrics = metrics
        self._row_padding = metrics.step_padding_share.labels("rows")
        self._source_padding = metrics.step_padding_share.labels("sources")
        self._clock = clock
        self._engine: Engine | None = None  # made when needed: making it may fail like any other use of the model
        self._joiners: list[PendingSegment] = []
        self._running: dict[int, RunningSegment] = {}
        self._load: BatchLoad | None = None  # None: somebody has come or gone
        self._shown = BatchLoad()  # what the gauges hold of this batch
        self._turn = Turn()

    @property
    def num_segments(self) -> int:
        """Segments handed over and not yet answered; any thread may ask."""
        return len(self._joiners) + len(self._running)

    def load(self) -> BatchLoad:
        """Return the size of the batch, those who join it next included."""
        if self._load is None:
            self._load = BatchLoad.of(pending.segment for pending in self._pending())
        return self._load

    def hand_over(self, joiners: Sequence[PendingSegment]) -> None:
        """Give it segments to start in its next turn."""
        self._joiners += joiners
        self._load = None

    def turn(self) -> Turn:
        """Start newcomers, take one step, answer who has ended, release who is cancelled or late."""
        began_s = self._clock()
        self._turn = Turn()
        try:
            self._start()
            if self._running:
                self._step()
                self._release()
        except Exception:  # one bad batch must strand neither its callers nor the decoding thread
            log.exception("batch failed", extra={"segments": self.num_segments})
            self._fail_all()
        self._show(self.load())
        self._turn.busy_s = self._clock() - began_s
        return self._turn

    def close(self) -> None:
        """Take this batch out of the gauges, which the workers of several models share."""
        self._show(BatchLoad())

    def _pending(self) -> list[PendingSegment]:
        return [*(running.pending for running in self._running.values()), *self._joiners]

    def _require_engine(self) -> Engine:
        if self._engine is None:
            self._engine = Engine(self._model)
        return self._engine

    def _start(self) -> None:
        """Encode the newcomers that still want an answer."""
        joiners = [pending for pending in self._joiners if not pending.future.done()]
        if joiners:
            began_s = self._clock()
            handles = self._require_engine().start([pending.segment for pending in joiners])
            ended_s = self._clock()
            for handle, pending in zip(handles, joiners, strict=True):
                queue_s = began_s - pending.admitted_at_s
                self._running[handle] = RunningSegment(
                    pending=pending, queue_s=queue_s, encode_s=ended_s - began_s, decode_began_s=ended_s
                )
                self._metrics.queue_wait_seconds.labels(pending.priority.value).observe(queue_s, pending.exemplar)
            self._metrics.encode_seconds.observe(ended_s - began_s, joiners[0].exemplar)
            self._turn.num_encoded_tokens = sum(pending.num_source_tokens for pending in joiners)
            self._turn.encode_s = ended_s - began_s
        if len(joiners) < len(self._joiners):
            self._load = None
        self._joiners = []
        if joiners:
            load = self.load()
            self._metrics.batch_padded_tokens.observe(load.padded_tokens)
            self._show(load)

    def _step(self) -> None:
        load = self.load()
        began_s = self._clock()
        report = self._require_engine().step()
        now_s = self._clock()
        self._turn.num_rows, self._turn.step_s = load.live_rows, now_s - began_s
        self._record_padding(load, num_rows=report.num_segments * report.num_rows)
        self._metrics.step_seconds.observe(now_s - began_s)
        self._metrics.steps.inc()
        self._metrics.batch_segments.observe(report.num_segments)
        for ended in report.ended:
            self._answer(ended, self._running[ended.handle], now_s)
            del self._running[ended.handle]
            self._load = None

    def _answer(self, ended: EndedSegment, running: RunningSegment, now_s: float) -> None:
        if not ended.hypotheses:
            log.error("the network gave no possible continuation", extra={"steps": ended.num_steps})
            running.pending.fail(EngineError("decoding failed"))
            return
        decode_s = now_s - running.decode_began_s
        timings = StageTimings(queue_s=running.queue_s, encode_s=running.encode_s, decode_s=decode_s)
        result = SegmentResult(
            hypotheses=ended.hypotheses, num_steps=ended.num_steps, timings=timings, guard=ended.guard
        )
        self._turn.num_tokens += running.pending.num_source_tokens
        self._turn.num_steps += ended.num_steps
        if not running.pending.future.done():
            self._count(running.pending, result)  # before the answer, so that who has it finds it in the figures
            running.pending.answer(result)

    def _count(self, pending: PendingSegment, result: SegmentResult) -> None:
        num_target_tokens = len(result.hypotheses[0].token_ids)
        self._metrics.decode_seconds.observe(result.timings.decode_s, pending.exemplar)
        self._metrics.source_tokens.inc(pending.num_source_tokens)
        self._metrics.target_tokens.inc(num_target_tokens)
        self._metrics.length_ratio.observe(num_target_tokens / pending.num_source_tokens)
        if result.guard is not None:
            self._record(result.guard)

    def _record(self, guard: GuardReport) -> None:
        self._metrics.guard_outcomes.labels(outcome="replaced" if guard.is_replaced else "kept").inc()
        for defect in guard.found:
            self._metrics.guard_defects.labels(kind=defect.kind.value).inc()

    def _record_padding(self, load: BatchLoad, *, num_rows: int) -> None:
        self._row_padding.observe(1 - min(load.live_rows, num_rows) / num_rows)
        self._source_padding.observe(1 - load.source_tokens / load.padded_tokens)

    def _show(self, load: BatchLoad) -> None:
        """Move the gauges by what changed."""
        if load is self._shown:
            return
        self._metrics.batch_live_segments.inc(load.num_segments - self._shown.num_segments)
        self._metrics.batch_live_rows.inc(load.live_rows - self._shown.live_rows)
        self._shown = load

    def _release(self) -> None:
        """Stop decoding for callers who have cancelled or whose deadline has passed."""
        now_s = self._clock()
        for running in self._running.values():
            if running.pending.deadline_s <= now_s:
                running.pending.fail(DeadlineExceededError("decode"))
        gone = [handle for handle, running in self._running.items() if running.pending.future.done()]
        if gone:
            self._require_engine().drop(gone)
            self._load = None
        for handle in gone:
            del self._running[handle]

    def _fail_all(self) -> None:
        """Fail everything in the batch and forget the engine, whose state is unknown."""
        for pending in self._pending():
            pending.fail(EngineError("decoding failed"))
        self._joiners, self._running, self._engine, self._load = [], {}, None, None
