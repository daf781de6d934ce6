"""What one decoding thread does for its batch: hand over newcomers, answer who has ended, forget who has gone."""

import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.datatypes import GuardReport, SegmentResult, StageTimings
from service.decoding.running_batch import EndedSegment
from service.errors import DeadlineExceededError, EngineError
from service.scheduling.batch import Batch, Newcomer, Orders
from service.scheduling.batching import BatchLoad
from service.scheduling.pending import PendingSegment
from service.scheduling.turn import Turn
from service.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class RunningSegment:
    """A segment in the batch and what is known of its time."""

    pending: PendingSegment
    queue_s: float = 0.0
    encode_s: float = 0.0
    decode_began_s: float = 0.0


class Worker:
    """A batch and the callers who wait for it.

    One thread at a time may use it, but any may ask for `num_segments`, `wake` and `interrupt` it. Whatever becomes of
    the batch, every segment handed over is answered: a fault fails those in it with `EngineError`.
    """

    def __init__(self, batch: Batch, *, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._batch = batch
        self._metrics = metrics
        self._row_padding = metrics.step_padding_share.labels("rows")
        self._source_padding = metrics.step_padding_share.labels("sources")
        self._clock = clock
        self._next_key = 0
        self._joiners: list[PendingSegment] = []
        self._running: dict[int, RunningSegment] = {}
        self._load: BatchLoad | None = None  # None: somebody has come or gone
        self._shown = BatchLoad()  # what the gauges hold of this batch

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
        """Give it segments that join with the next exchange."""
        self._joiners += joiners
        self._load = None

    def adopt_thread(self, *, niceness: int) -> None:
        """Prepare the calling thread, which will do all exchanges from now on."""
        self._batch.adopt_thread(niceness=niceness)

    def wake(self) -> None:
        """Let an exchange that waits return after the step that is being taken; any thread may call it."""
        if self.num_segments:
            self._batch.wake()

    def interrupt(self) -> None:
        """Let exchanges return at once from now on, if they can; any thread may call it."""
        self._batch.interrupt()

    def exchange(self) -> Sequence[Turn]:
        """Let newcomers join and forget who has gone, then answer who has ended; return what the batch did."""
        turns: Sequence[Turn] = ()
        try:
            orders = self._orders()
            if orders or self._running:
                turns = self._batch.exchange(orders)
            for turn in turns:
                self._take_in(turn)
            self._show(self.load())
        except EngineError as error:
            self.abandon(str(error))
        except Exception:  # noqa: BLE001 - whatever it is, it must strand neither callers nor the decoding thread
            self.abandon(traceback.format_exc())
        return turns

    def abandon(self, fault: str) -> None:
        """Fail all who were handed over, and begin with an empty batch."""
        pendings = self._pending()
        self._running, self._joiners, self._load = {}, [], None
        try:
            self._batch.reset()
        except Exception:
            log.exception("batch cannot be reset")
        self._fail(pendings, fault)
        self._show(BatchLoad())

    def close(self) -> None:
        """Free the batch and take it out of the gauges, which the workers of several models share."""
        self._batch.close()
        self._show(BatchLoad())

    def _pending(self) -> list[PendingSegment]:
        return [*(running.pending for running in self._running.values()), *self._joiners]

    def _orders(self) -> Orders:
        """Return what the batch must be told: of those who still want an answer, and of those who do not."""
        dropped = tuple(key for key, running in self._running.items() if running.pending.future.done())
        for key in dropped:
            del self._running[key]
        newcomers = tuple(self._named(pending) for pending in self._joiners if not pending.future.done())
        if dropped or len(newcomers) < len(self._joiners):
            self._load = None
        self._joiners = []
        if newcomers:
            load = self.load()
            self._metrics.batch_padded_tokens.observe(load.padded_tokens)
            self._show(load)
        return Orders(newcomers=newcomers, dropped=dropped)

    def _named(self, pending: PendingSegment) -> Newcomer:
        key = self._next_key
        self._next_key += 1
        self._running[key] = RunningSegment(pending=pending)
        return Newcomer(key=key, segment=pending.segment, deadline_s=pending.deadline_s)

    def _take_in(self, turn: Turn) -> None:
        if turn.newcomers:
            self._note_start(turn)
        if turn.num_rows:
            self._record_step(turn)
        for ended in turn.ended:
            self._answer(ended, turn.step_ended_s)
        for key in turn.late:
            if running := self._left(key):
                running.pending.fail(DeadlineExceededError("decode"))
        if turn.fault:
            self._fail([running.pending for running in map(self._left, turn.lost) if running], turn.fault)

    def _left(self, key: int) -> RunningSegment | None:
        """Return one who is no longer in the batch; None if nobody waits for him any more."""
        self._load = None
        return self._running.pop(key, None)

    def _note_start(self, turn: Turn) -> None:
        """Note the times of newcomers who were encoded."""
        exemplar = None
        for running in filter(None, map(self._running.get, turn.newcomers)):
            pending = running.pending
            running.queue_s = turn.encode_began_s - pending.admitted_at_s
            running.encode_s = turn.encode_s
            running.decode_began_s = turn.encode_began_s + turn.encode_s
            self._metrics.queue_wait_seconds.labels(pending.priority.value).observe(running.queue_s, pending.exemplar)
            exemplar = exemplar or pending.exemplar
        self._metrics.encode_seconds.observe(turn.encode_s, exemplar)

    def _record_step(self, turn: Turn) -> None:
        load = turn.load
        self._metrics.step_seconds.observe(turn.step_s)
        self._metrics.steps.inc()
        self._metrics.batch_segments.observe(load.num_segments)
        self._row_padding.observe(1 - min(load.live_rows, turn.step_rows) / turn.step_rows)
        self._source_padding.observe(1 - load.source_tokens / load.padded_tokens)

    def _answer(self, ended: EndedSegment, now_s: float) -> None:
        running = self._left(ended.handle)
        if running is None:
            return
        if not ended.hypotheses:
            log.error("the network gave no possible continuation", extra={"steps": ended.num_steps})
            running.pending.fail(EngineError("decoding failed"))
            return
        timings = StageTimings(
            queue_s=running.queue_s, encode_s=running.encode_s, decode_s=now_s - running.decode_began_s
        )
        result = SegmentResult(
            hypotheses=ended.hypotheses, num_steps=ended.num_steps, timings=timings, guard=ended.guard
        )
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

    def _show(self, load: BatchLoad) -> None:
        """Move the gauges by what changed."""
        if load is self._shown:
            return
        self._metrics.batch_live_segments.inc(load.num_segments - self._shown.num_segments)
        self._metrics.batch_live_rows.inc(load.live_rows - self._shown.live_rows)
        self._shown = load

    def _fail(self, pendings: Sequence[PendingSegment], fault: str) -> None:
        """Fail those who were in a batch that is lost."""
        log.error("batch failed", extra={"segments": len(pendings), "fault": fault})
        self._metrics.batch_failures.inc()
        for pending in pendings:
            pending.fail(EngineError("decoding failed"))
