"""The decoding threads: they wait, take segments from the queue, and run their workers.

All waiting and all popping happens here, under one lock that is never held while the model works or while a caller
is answered (an answer runs the caller's callbacks).
"""

import logging
import math
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from service.datatypes import GuardReport, Priority, SearchConfig, Segment, SegmentResult, StageTimings
from service.decoding.running_batch import EndedSegment, check_segment
from service.engine.batching import BatchBudget, fair_share, next_joiners
from service.engine.forecast import Backlog, Demand, Forecast, Headroom, TextSizes
from service.engine.protocol import Batch, BatchLoad, BatchSource, Newcomer, Orders, Turn
from service.engine.queue import AdmissionQueue, PendingSegment
from service.engine.settings import SchedulingSettings
from service.errors import DeadlineExceededError, DrainingError, EngineError, OverloadedError
from service.request_context import RequestContext
from service.telemetry.metrics import Metrics
from service.threads import SwitchInterval, num_cores

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


def warm_up(
    workers: Sequence[Worker], segments: Sequence[Segment], *, clock: Callable[[], float]
) -> list[SegmentResult]:
    """Let the batches of all decoding threads decode the same segments, all at once; return the results of one.

    At once, as the memory that runs take at the same time is kept for the next ones.

    Args:
        workers: not yet run by anybody else.
        segments: first one alone, then all together: the smallest batch, and a larger one that shrinks.
        clock: of the scheduler.

    Raises:
        EngineError: if the model cannot decode them.
    """
    with ThreadPoolExecutor(len(workers), thread_name_prefix="warm-up") as pool:
        decode = partial(_decode_twice, segments=segments, clock=clock)
        results, *_ = pool.map(decode, workers)
    return results


def _decode_twice(worker: Worker, *, segments: Sequence[Segment], clock: Callable[[], float]) -> list[SegmentResult]:
    _decode(worker, segments[:1], clock=clock)
    return _decode(worker, segments, clock=clock)


def _decode(worker: Worker, segments: Sequence[Segment], *, clock: Callable[[], float]) -> list[SegmentResult]:
    group = [
        PendingSegment(
            segment=segment, priority=Priority.INTERACTIVE, caller="", admitted_at_s=clock(), deadline_s=math.inf
        )
        for segment in segments
    ]
    worker.hand_over(group)
    while worker.num_segments:
        worker.exchange()
    return [pending.future.result() for pending in group]


_SWITCH_INTERVAL = SwitchInterval()  # of the process, whose models share Python's lock
_OVERLOAD_LASTS_S = 1.0  # after a request was refused that was known in full
_LOOKAHEAD = 4  # batches' worth of waiting segments from which joiners of similar length are chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrival:
    """A request that asks to be admitted."""

    demand: Demand
    context: RequestContext
    now_s: float

    @property
    def allowed_s(self) -> float:
        """Time left for it."""
        return self.context.deadline_s - self.now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prediction:
    """What was expected of a request when it was admitted."""

    needed_s: float
    """From admission to its last answer."""

    knows_rate: bool
    """Whether the forecast knew how fast a backlog is worked off; the headroom learns from no other."""


class Scheduler:
    """Decodes segments for many callers at once: each admitted segment gets exactly one answer.

    Every public method may be called from any thread but the decoding threads (so not from a callback of a future,
    except `submit` and cancelling).
    """

    def __init__(
        self,
        batches: BatchSource,
        settings: SchedulingSettings,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._batches = batches
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._queue = AdmissionQueue(
            max_segments=settings.max_queue_segments,
            max_work=settings.max_queue_work_tokens,
            bulk_patience_s=settings.bulk_patience_s,
            max_caller_share=settings.max_caller_queue_share,
        )
        num_threads = settings.num_decoding_threads or num_cores()
        self._headroom = Headroom()
        self._forecast = Forecast(
            num_threads=num_threads,
            max_batch_segments=settings.max_batch_segments,
            max_batch_rows=settings.max_batch_rows,
        )
        self._text_sizes = TextSizes()
        self._overloaded_at_s = -math.inf
        self._unanswered: set[PendingSegment] = set()
        self._predictions: dict[PendingSegment, _Prediction] = {}  # of each request, by its last segment
        self._recorded_segments = self._recorded_tokens = self._recorded_work = 0
        self._is_draining = False
        self._is_stopping = False
        self._lock = threading.RLock()
        self._closing = threading.Lock()  # several may stop it at once
        self._work = threading.Condition(self._lock)  # something waits, or the threads shall end
        self._quiet = threading.Condition(self._lock)  # everything is answered
        self._workers = [Worker(batches.new_batch(clock), metrics=metrics, clock=clock) for _ in range(num_threads)]
        self._threads = [
            threading.Thread(target=self._decode, args=(worker,), name=f"decode-{index}", daemon=True)
            for index, worker in enumerate(self._workers)
        ]

    def warm_up(self, segments: Sequence[Segment]) -> list[SegmentResult]:
        """Let each decoding thread's batch decode some segments, before `start`; return the results of one.

        Raises:
            EngineError: if the model cannot decode them.
            ValueError: if the model or the search cannot take a segment.
        """
        for segment in segments:
            check_segment(segment, self._batches.limits)
        return warm_up(self._workers, segments, clock=self._clock)

    def start(self) -> None:
        """Start the decoding threads; what was submitted before waits for this."""
        for thread in self._threads:
            thread.start()

    def reject_early(self, num_characters: int, search: SearchConfig, context: RequestContext) -> None:
        """Reject a request before its texts are split and tokenized, if `submit` would most likely reject it then.

        Text work is much of what a refusal costs, and a server that is asked for many times what it can do must not
        spend itself on it. What the texts would become is guessed from their length, so nobody is refused by it unless
        the queue refuses requests that are known in full, too; and nobody for being too large for their deadline.

        Args:
            num_characters: of all texts.
            search: of their segments.
            context: of the request.

        Raises:
            OverloadedError: as `submit`.
            DrainingError: as `submit`.
        """
        with self._lock:
            if self._clock() - self._overloaded_at_s > _OVERLOAD_LASTS_S or not self._queue.num_segments:
                return
            segments = self._text_sizes.stand_ins(num_characters, search)
            if not segments:
                return
            arrival = self._arrival(segments, context)
            if self._forecast.finish_in_s(arrival.demand, Backlog()) <= arrival.allowed_s:
                self._predict_or_note(arrival)

    def submit(
        self,
        segments: Sequence[Segment],
        context: RequestContext | None = None,
        *,
        num_characters: int = 0,
    ) -> "list[Future[SegmentResult]]":
        """Admit all segments of a request, or none; never waits.

        A future ends with the result or with `EngineError`, `DeadlineExceededError` or `DrainingError`. Cancelling it
        works until then and frees the segment's place in the queue at once, in the batch after the running step.

        Args:
            segments: what to decode, each acceptable to the model.
            context: of the request; interactive ones are served before bulk ones. None: one of the server's own.
            num_characters: of the texts that they are all of; 0: unknown.

        Returns:
            One future for each segment, in order.

        Raises:
            OverloadedError: if they do not all find a place in the queue, or would be answered after their deadline
                because of what waits there.
            DeadlineExceededError: if the deadline has passed, or would even on an idle server.
            DrainingError: once `drain` or `stop` has been called.
            ValueError: if the model or the search cannot take a segment.
        """
        for segment in segments:
            check_segment(segment, self._batches.limits)
        if not segments:
            return []
        arrival = self._arrival(segments, context or RequestContext())
        with self._lock:
            self._text_sizes.learn(num_characters, segments)
            try:
                self._predict_or_note(arrival)  # a refusal costs little: nothing is made before it
            except OverloadedError:
                self._overloaded_at_s = arrival.now_s
                raise
        return self._admit(arrival, self._pending(segments, arrival))

    def drain(self, timeout_s: float) -> bool:
        """Refuse new segments and wait until all admitted ones are answered; return False if time ran out first."""
        with self._lock:
            self._is_draining = True
            return self._quiet.wait_for(lambda: not self._unanswered, timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Answer all that is left with `DrainingError` and end the threads; waits for steps that still run."""
        with self._lock:
            self._is_draining = self._is_stopping = True
            left = list(self._unanswered)
            self._work.notify_all()
        for pending in left:
            pending.fail(DrainingError())
        for worker in self._workers:
            worker.interrupt()
        with self._closing:
            for thread in self._threads:
                if thread.ident is not None:
                    thread.join(timeout_s)
            for worker in self._workers:
                worker.close()
            self._batches.close()

    def _arrival(self, segments: Sequence[Segment], context: RequestContext) -> _Arrival:
        return _Arrival(demand=self._forecast.demand(segments), context=context, now_s=self._clock())

    def _pending(self, segments: Sequence[Segment], arrival: _Arrival) -> list[PendingSegment]:
        context = arrival.context
        group = [
            PendingSegment(
                segment=segment,
                priority=context.priority,
                caller=context.caller,
                work=work,
                admitted_at_s=arrival.now_s,
                deadline_s=context.deadline_s,
                exemplar=context.trace.exemplar,
            )
            for segment, work in zip(segments, arrival.demand.works, strict=True)
        ]
        for pending in group:
            # weakly, or each segment and its future would keep one another until the garbage collector comes
            pending.future.add_done_callback(partial(self._forget, weakref.ref(pending)))
        return group

    def _admit(self, arrival: _Arrival, group: Sequence[PendingSegment]) -> "list[Future[SegmentResult]]":
        with self._lock:
            predicted_s = self._predict(arrival)  # again: others may have come meanwhile
            self._queue.admit(group, forecast=self._forecast)
            self._unanswered.update(group)
            self._predictions[group[-1]] = _Prediction(needed_s=predicted_s, knows_rate=self._forecast.knows_rate)
            self._record_queue()
            self._work.notify(len(group))
            num_places = self._num_places()
            takers = [worker for worker in self._workers if worker.num_segments < num_places]
        for worker in takers:
            worker.wake()
        _SWITCH_INTERVAL.note_admission(arrival.now_s)
        return [pending.future for pending in group]

    def _predict_or_note(self, arrival: _Arrival) -> float:
        """Do as `_predict`, and have decoding yield to refusals from the first one on."""
        try:
            return self._predict(arrival)
        except OverloadedError:
            _SWITCH_INTERVAL.note_refusal(arrival.now_s)
            raise

    def _predict(self, arrival: _Arrival) -> float:
        """Return the seconds until a request is answered; refuse it if that is too late, or without room for it."""
        if self._is_draining:
            self._metrics.rejected_requests.labels("draining").inc()
            raise DrainingError
        demand = arrival.demand
        predicted_s = self._forecast.finish_in_s(demand, self._backlog(arrival))
        alone_s = self._forecast.finish_in_s(demand, Backlog())
        needed_s = alone_s + (predicted_s - alone_s) * self._headroom.factor
        allowed_s = arrival.allowed_s
        if allowed_s <= 0 or (needed_s > allowed_s and self._forecast.is_convincing(arrival.now_s)):
            self._metrics.rejected_requests.labels("deadline").inc()
            self._metrics.deadline_misses.labels("admission").inc(demand.num_segments)
            raise self._too_late(alone_s=alone_s, needed_s=needed_s, allowed_s=allowed_s)
        try:
            self._queue.check_room(
                num_segments=demand.num_segments,
                work=demand.work,
                caller=arrival.context.caller,
                forecast=self._forecast,
            )
        except OverloadedError:
            self._metrics.rejected_requests.labels("overloaded").inc()
            raise
        return predicted_s

    def _backlog(self, arrival: _Arrival) -> Backlog:
        return self._queue.backlog(
            arrival.demand,
            priority=arrival.context.priority,
            caller=arrival.context.caller,
            num_running=sum(worker.num_segments for worker in self._workers),
        )

    def _too_late(
        self, *, alone_s: float, needed_s: float, allowed_s: float
    ) -> DeadlineExceededError | OverloadedError:
        """Return what to tell a caller whose deadline cannot be kept: if it may be once less waits, when that is."""
        if allowed_s <= 0 or alone_s > allowed_s:
            return DeadlineExceededError("admission")
        return OverloadedError(
            queued=math.ceil(needed_s * 1000),
            limit=math.floor(allowed_s * 1000),
            unit="ms of work that the deadline allows",
            retry_after_s=self._forecast.retry_after_s(excess_s=(needed_s - allowed_s) / self._headroom.factor),
        )

    def _decode(self, worker: Worker) -> None:
        """Run a decoding thread until the scheduler stops; nothing that is raised ends it before."""
        worker.adopt_thread(niceness=self._settings.decoding_niceness)
        is_going_on = True
        while is_going_on:
            try:
                is_going_on = self._take_turn(worker)
            except Exception:  # noqa: BLE001 - it must strand neither the callers nor the thread
                worker.abandon(traceback.format_exc())

    def _take_turn(self, worker: Worker) -> bool:
        """Let a worker do what there is to do, waiting while there is nothing at all; False once stopping."""
        with self._lock:
            self._work.wait_for(lambda: self._is_stopping or worker.num_segments or self._queue.num_segments)
            if self._is_stopping:
                return False
        if self._queue.num_segments:
            self._hand_over(worker)
        is_backlogged = self._is_backlogged(worker)
        self._learn(worker.exchange(), is_backlogged=is_backlogged)
        return True

    def _hand_over(self, worker: Worker) -> None:
        """Give a worker who joins its batch now, and answer those whose deadline has passed."""
        expired: list[PendingSegment] = []
        try:
            with self._lock:
                now_s = self._clock()
                expired = self._queue.pop_expired(now_s)
                self._pop_joiners(worker, now_s)
                self._record_queue()
        finally:
            for pending in expired:
                pending.fail(DeadlineExceededError("queue"))

    def _pop_joiners(self, worker: Worker, now_s: float) -> None:
        """Take those who join the batch of a worker now out of the queue."""
        num_places = self._num_places()
        if worker.num_segments >= num_places:
            return
        waiting = self._queue.peek(now_s, limit=_LOOKAHEAD * self._settings.max_batch_segments)
        joiners = next_joiners(waiting, worker.load(), self._budget(num_places))
        worker.hand_over(joiners)  # before they are taken out: at no time are they in neither of the two
        for pending in joiners:
            self._queue.serve(pending)

    def _num_places(self) -> int:
        """Return how many segments a worker may have as things are."""
        share = fair_share(
            num_waiting=self._queue.num_segments,
            num_running=sum(worker.num_segments for worker in self._workers),
            num_threads=len(self._workers),
        )
        return min(self._settings.max_batch_segments, share)

    def _budget(self, num_places: int) -> BatchBudget:
        return BatchBudget(
            max_segments=num_places,
            max_padded_tokens=self._settings.max_batch_padded_tokens,
            max_rows=self._settings.max_batch_rows,
        )

    def _is_backlogged(self, worker: Worker) -> bool:
        """Say whether the batch of a worker is as large as it may be, and more waits."""
        with self._lock:
            if not self._queue.num_segments:
                return False
            waiting = self._queue.peek(self._clock(), limit=1)
        budget = self._budget(self._settings.max_batch_segments)
        return bool(waiting) and not budget.allows(worker.load().plus(waiting[0].segment))

    def _forget(self, reference: "weakref.ref[PendingSegment]", future: "Future[SegmentResult]") -> None:
        """Free what an answered or cancelled segment holds; runs once for each, in whatever thread answers it."""
        if future.cancelled():
            future.set_running_or_notify_cancel()  # wakes those who wait on the future with others
        pending = reference()
        if pending is None:  # never admitted: until it is answered, `_unanswered` keeps it
            return
        with self._lock:
            was_waiting = self._queue.drop(pending)
            self._unanswered.discard(pending)
            prediction = self._predictions.pop(pending, None)
            self._record_queue()
            outcome = self._record_end(future, was_waiting=was_waiting)
            if prediction is not None:
                self._record_prediction(prediction, outcome, actual_s=self._clock() - pending.admitted_at_s)
            if not self._unanswered:
                self._quiet.notify_all()

    def _record_end(self, future: "Future[SegmentResult]", *, was_waiting: bool) -> str:
        """Count how a segment ended; return the outcome."""
        outcome = _outcome(future)
        self._metrics.segments.labels(outcome).inc()
        if outcome == "cancelled":
            self._metrics.cancelled_segments.labels("queue" if was_waiting else "decode").inc()
        elif isinstance(error := future.exception(), DeadlineExceededError):
            self._metrics.deadline_misses.labels(error.stage).inc()
        return outcome

    def _record_prediction(self, prediction: _Prediction, outcome: str, *, actual_s: float) -> None:
        """Compare how long the last segment of a request took with what was predicted."""
        if prediction.knows_rate and outcome in {"ok", "deadline"}:
            self._headroom.record(predicted_s=prediction.needed_s, actual_s=actual_s)
        if outcome == "ok":
            error_s = actual_s - prediction.needed_s
            direction = "late" if error_s > 0 else "early"
            self._metrics.prediction_error_seconds.labels(direction).observe(abs(error_s))

    def _learn(self, turns: Sequence[Turn], *, is_backlogged: bool) -> None:
        with self._lock:
            for turn in turns:
                self._forecast.learn(turn, is_backlogged=is_backlogged, now_s=self._clock())

    def _record_queue(self) -> None:
        """Move the gauges by what changed: the schedulers of several models share them."""
        num_segments, num_tokens, work = self._queue.num_segments, self._queue.num_tokens, self._queue.work
        if num_segments == self._recorded_segments:  # nobody has come or gone
            return
        self._metrics.queue_segments.inc(num_segments - self._recorded_segments)
        self._metrics.queue_tokens.inc(num_tokens - self._recorded_tokens)
        self._metrics.queue_work_tokens.inc(work - self._recorded_work)
        self._recorded_segments, self._recorded_tokens, self._recorded_work = num_segments, num_tokens, work


def _outcome(future: "Future[SegmentResult]") -> str:
    """Return the label under which an answered segment is counted."""
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    if error is None:
        return "ok"
    return "deadline" if isinstance(error, DeadlineExceededError) else "error"
