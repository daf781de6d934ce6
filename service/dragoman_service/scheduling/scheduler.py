"""The engine client: admits segments, sends each batch of the core those that join it, and answers those that end.

One thread talks to all batches. All waiting and popping happens here, under one lock that is never held while messages
are sent or callers are answered (an answer runs the caller's callbacks).
"""

import contextlib
import logging
import math
import select
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import count

from dragoman_service.datatypes import SearchConfig, Segment, SegmentResult, StageTimings
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.running_batch import check_segment
from dragoman_service.decoding.step_model import ModelLimits
from dragoman_service.errors import DeadlineExceededError, DragomanError, DrainingError, EngineError, OverloadedError
from dragoman_service.observability.metrics import COPY_DIRECTIONS, EngineSizes, Metrics
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission_queue import AdmissionQueue, QueuedSegment
from dragoman_service.scheduling.batch_policy import Batch, BatchBudget, Core, fair_share, select_ahead, select_segments
from dragoman_service.scheduling.latency_model import DeadlineMargin, Forecast, LengthEstimate, Prediction, RequestCost
from dragoman_service.scheduling.result_cache import ResultCache
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.threads import SwitchInterval, num_cores
from dragoman_service.worker.messages import BatchCommand, BatchStepOutput, Clock, NewSegment, WaitingSource

log = logging.getLogger(__name__)

_SWITCH_INTERVAL = SwitchInterval()  # of the process, whose models share Python's lock
_OVERLOAD_LASTS_S = 1.0  # after a request was rejected that was known in full
_LOOKAHEAD = 4  # batches' worth of waiting segments from which segments of similar length are chosen
_AHEAD_SHARE = 0.5  # of a batch: so many segments that wait are encoded together with one that joins
_RESPONSIVE_S = 0.05  # after its last report, a batch gets new segments; later it is in a long step: others end sooner
_LOOK_EACH_S = 0.2  # while batches run: whether they still report
_PAUSE_S = 2.0  # from one look to the next: the server itself stood still, and perhaps the decoding process with it
_RECOVERY_S = 0.1  # after a fault of this module, so that one that lasts does not take a whole core


class Scheduler:
    """Decodes segments for many callers at once: each admitted segment gets exactly one answer.

    Every public method may be called from any thread but the engine's own (so not from a callback of a future, except
    `submit` and cancelling).
    """

    def __init__(
        self,
        core: Core,
        limits: ModelLimits,
        settings: SchedulingSettings,
        metrics: Metrics,
        clock: Clock = time.monotonic,
    ) -> None:
        self._core, self._limits, self._settings, self._metrics, self._clock = core, limits, settings, metrics, clock
        num_batches = settings.num_workers or num_cores()
        self._budget = BatchBudget(
            max_segments=settings.max_batch_segments,
            max_padded_tokens=settings.max_batch_padded_tokens,
            max_rows=settings.max_batch_rows,
        )
        self._queue = AdmissionQueue(settings)
        self._results = ResultCache(settings.max_cached_bytes)
        self._forecast = Forecast(settings, num_batches=num_batches)
        self._margin, self._lengths = DeadlineMargin(), LengthEstimate()
        self._overloaded_at_s = self._looked_at_s = -math.inf
        self._ids = count()
        self._num_unanswered = 0
        self.unanswered_work = 0
        """Work tokens that all admitted segments without an answer are expected to need; any thread may read it."""
        self.abandoned_at_s = -math.inf
        """When a batch was last lost with its connection to the core; any thread may read it."""
        self._copied_bytes = tuple(map(metrics.device_copy_bytes.labels, COPY_DIRECTIONS))
        self._row_padding, self._source_padding = map(metrics.step_padding_share.labels, ("rows", "sources"))
        self._is_draining = self._is_started = False
        self._stopping = threading.Event()
        self._lock = threading.RLock()
        self._closing = threading.Lock()  # several may stop it at once
        self._all_answered = threading.Condition(self._lock)
        self._wakes, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._is_woken = False
        self._poll = select.poll()
        self._poll.register(self._wakes, select.POLLIN)
        self._batches = [Batch(core, self._poll, self._lock) for _ in range(num_batches)]
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.cache_bytes = 0
        """KV caches of all batches, as last reported."""
        metrics.add_engine(self.sizes)

    def warm_up(self, segments: Sequence[Segment]) -> list[SegmentResult]:
        """Let each batch decode the same segments before `start`, first one alone, then all; return the results of one.

        All batches at once, as the memory that runs take at the same time is kept for the next ones.

        Raises:
            EngineError: if the model cannot decode them, or not in time.
            DrainingError: if the server ends.
            ValueError: if the model or the search cannot take a segment.
        """
        for segment in segments:
            check_segment(segment, self._limits)
        for group in (segments[:1], segments):
            groups = [
                [QueuedSegment(segment_id=next(self._ids), segment=segment) for segment in group] for _ in self._batches
            ]
            for batch, pendings in zip(self._batches, groups, strict=True):
                batch.reported_at_s = self._clock()
                for pending in pendings:
                    batch.add(pending)
                with self._failing_only(batch):
                    self._send(batch, pendings)
            while any(batch.running for batch in self._batches):
                self._run_once()
                self._core.check_load()
        return [pending.result() for pending in groups[0]]

    def start(self) -> None:
        """Begin to decode; what was submitted before waits for this."""
        self._is_started = True
        self._thread.start()
        self._wake()

    def reject_early(self, num_characters: int, search: SearchConfig, context: RequestContext) -> None:
        """Reject a request before its texts are split and tokenized, if `submit` would most likely reject it then.

        Text work is much of what a rejection costs. What the texts would become is estimated from their length, so no
        request is rejected by it unless the queue rejects requests that are known in full, too; and none for being too
        large for its deadline. Raises as `submit`.
        """
        with self._lock:
            now_s = self._clock()
            is_overloaded = now_s - self._overloaded_at_s <= _OVERLOAD_LASTS_S and self._queue.num_segments
            if is_overloaded and (segments := self._lengths.expected_segments(num_characters, search)):
                cost = self._forecast.request_cost(segments)
                self._check_admission(cost, context, now_s=now_s, is_estimated=True)

    def expected_work(self, segments: Sequence[Segment]) -> int:
        """Return how many work tokens segments are expected to need; see `scheduling.latency_model`."""
        with self._lock:
            return self._forecast.request_cost(segments).work

    def submit(
        self, segments: Sequence[Segment], context: RequestContext | None = None, *, num_characters: int = 0
    ) -> Sequence[Future[SegmentResult]]:
        """Admit all segments of a request, or none; never waits.

        A future ends with the result or with `EngineError`, `DeadlineExceededError` or `DrainingError`. Cancelling it
        works until then and frees the segment's place in queue or batch at once.

        Args:
            segments: what to decode, each acceptable to the model; they get one future each, in order.
            context: of the request; interactive ones are served before bulk ones. None: one of the server's own.
            num_characters: of the texts that they are all of; 0: unknown.

        Raises:
            OverloadedError: if they do not all fit into the queue, or what waits there makes them miss their deadline.
            DeadlineExceededError: if the deadline has passed, or would even on an idle server.
            DrainingError: once `drain` or `stop` has been called.
            ValueError: if the model or the search cannot take a segment.
        """
        for segment in segments:
            check_segment(segment, self._limits)
        if not segments:
            return []
        context = context or RequestContext()
        with self._lock:
            now_s = self._clock()
            self._lengths.learn(num_characters, segments)
            answers = [self._found(segment) for segment in segments]
            wanted = [segment for segment, answer in zip(segments, answers, strict=True) if answer is None]
            if not wanted and not self._is_draining:
                return [answer for answer in answers if answer is not None]
            cost = self._forecast.request_cost(wanted or segments)
            prediction = self._check_admission(cost, context, now_s=now_s)  # before anything is made: it costs little
            group = []
            for segment, work in zip(wanted, cost.works, strict=True):
                segment_id = next(self._ids)
                pending = QueuedSegment(
                    segment_id=segment_id, segment=segment, context=context, work=work, admitted_at_s=now_s
                )
                pending.add_done_callback(self._done)  # type: ignore[arg-type] # the future is the segment
                group.append(pending)
            group[-1].prediction = prediction
            self._queue.add(group)
            self._num_unanswered += len(group)
            self.unanswered_work += cost.work
            most = self._max_segments()
            has_room = any(len(batch.running) < most for batch in self._batches)
        if has_room:
            self._wake()
        _SWITCH_INTERVAL.record_admission(now_s)
        pendings = iter(group)
        return [answer or next(pendings) for answer in answers]

    def _found(self, segment: Segment) -> Future[SegmentResult] | None:
        """Return the answer to a segment that was decoded before and is still known."""
        if not self._settings.max_cached_bytes:
            return None
        result = self._results.get(segment)
        self._metrics.result_cache_lookups.labels("hit" if result else "miss").inc()
        if result is None:
            return None
        future = Future[SegmentResult]()
        future.set_result(result)
        return future

    def sizes(self) -> EngineSizes:
        """Return how much waits and runs now."""
        queue, loads = self._queue, [batch.load for batch in self._batches]
        return EngineSizes(
            queue_segments=queue.num_segments,
            queue_tokens=queue.num_tokens,
            queue_work_tokens=queue.work,
            batch_live_segments=sum(load.num_segments for load in loads),
            batch_live_rows=sum(load.live_rows for load in loads),
            result_cache_bytes=self._results.num_bytes,
        )

    def drain(self, timeout_s: float) -> bool:
        """Reject new segments and wait until all admitted ones are answered; return False if time ran out first."""
        with self._lock:
            self._is_draining = True
            return self._all_answered.wait_for(lambda: not self._num_unanswered, timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Answer all that is left with `DrainingError` and end the threads; waits for steps that still run."""
        with self._lock:
            self._is_draining = True
            self._stopping.set()
            left = [*self._queue, *(pending for batch in self._batches for pending in batch.running.values())]
        for pending in left:
            pending.answer(DrainingError())
        self._wake()
        with self._closing:
            if self._is_started:
                self._thread.join(timeout_s)
            for batch in self._batches:
                batch.disconnect()
            self._metrics.remove_engine(self.sizes)
            self._wakes.close()
            self._waker.close()
            self._core.close(timeout_s)

    def _check_admission(
        self, cost: RequestCost, context: RequestContext, *, now_s: float, is_estimated: bool = False
    ) -> Prediction:
        """Return when a request will be answered; reject it if that is too late, or if it does not fit."""
        reason = "draining"
        try:
            if self._is_draining:
                raise DrainingError
            num_running = sum(len(batch.running) for batch in self._batches)
            ahead = self._queue.work_ahead(cost, context, num_running=num_running)
            prediction = self._forecast.predict(cost, ahead)
            reason = "deadline"
            if not is_estimated or prediction.unloaded_latency_s <= context.deadline_s - now_s:
                self._check_deadline(prediction, context.deadline_s - now_s, now_s=now_s)
                reason = "overloaded"
                self._queue.check_capacity(cost, caller=context.caller, forecast=self._forecast)
        except DragomanError as error:
            self._metrics.rejected_requests.labels(reason).inc()
            if reason == "deadline":
                self._metrics.deadline_misses.labels("admission").inc(cost.num_segments)
            if isinstance(error, OverloadedError):
                _SWITCH_INTERVAL.record_rejection(now_s)  # decoding yields to rejections from the first one on
                self._overloaded_at_s = self._overloaded_at_s if is_estimated else now_s
            raise
        return prediction

    def _check_deadline(self, prediction: Prediction, allowed_s: float, *, now_s: float) -> None:
        """Raise if a deadline cannot be kept: OverloadedError if it may be once less waits, which says when that is."""
        needed_s = (
            prediction.unloaded_latency_s + (prediction.total_s - prediction.unloaded_latency_s) * self._margin.factor
        )
        if allowed_s > 0 and (needed_s <= allowed_s or not self._forecast.is_convincing(now_s)):
            return
        if allowed_s <= 0 or prediction.unloaded_latency_s > allowed_s:
            raise DeadlineExceededError("admission", needed_s=needed_s, allowed_s=max(0.0, allowed_s))
        raise OverloadedError(
            queued=math.ceil(needed_s * 1000),
            limit=math.floor(allowed_s * 1000),
            unit="ms of work that the deadline allows",
            retry_after_s=self._forecast.retry_after_s(excess_s=(needed_s - allowed_s) / self._margin.factor),
        )

    def _wake(self) -> None:
        """Let the engine's thread look at queue and batches; any thread may call it."""
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError):  # full, which wakes as well
                self._waker.send(b"\0")

    def _run(self) -> None:
        """Run the engine's thread until the client stops; nothing that is raised ends it before."""
        while not self._stopping.is_set():
            try:
                self._run_once()
            except Exception:  # noqa: BLE001 - it must strand neither callers nor the thread
                for batch in self._batches:
                    self._abandon(batch, traceback.format_exc())
                self._stopping.wait(_RECOVERY_S)

    def _run_once(self) -> None:
        """Wait for reports or to be woken; answer the segments that ended, and send every batch those that join it."""
        timeout_s = _LOOK_EACH_S if any(batch.running for batch in self._batches) else None
        ready = {fileno for fileno, _ in self._poll.poll(timeout_s and timeout_s * 1000)}
        if self._wakes.fileno() in ready:
            self._wakes.recv(64)
            self._is_woken = False  # only now: what is said from here on is told by the next wake
        reported = [batch for batch in self._batches if batch.fileno in ready]
        for batch in reported:
            with self._failing_only(batch):
                self._take_report(batch)
        self._kill_if_stuck()
        with self._lock:
            expired = self._queue.pop_expired(self._clock())
        for pending in expired:
            pending.answer(DeadlineExceededError("queue"))
        by_load = sorted(self._batches, key=lambda one: len(one.running))
        selected: dict[Batch, list[QueuedSegment]] = {}
        for batch in by_load:
            if not self._queue.num_segments:
                break
            with self._failing_only(batch):
                selected[batch] = self._select(batch)
        for batch in by_load:  # who joins none of the batches now may be encoded ahead
            if selected.get(batch) or batch.dropped_ids:
                with self._failing_only(batch):
                    self._send(batch, selected.get(batch, ()))
        for batch in reported:
            batch.is_backlogged = self._is_backlogged(batch)

    def _kill_if_stuck(self) -> None:
        """Kill the decoding process if a batch has not reported for too long; all of its batches are lost."""
        now_s, since_s = self._clock(), self._looked_at_s
        self._looked_at_s = now_s
        running = [batch for batch in self._batches if batch.running]
        if now_s - since_s > _PAUSE_S:
            for batch in running:
                batch.reported_at_s = now_s
        limit_s = self._settings.max_step_s
        if any(now_s - batch.reported_at_s > limit_s for batch in running) and self._core.kill("no_step"):
            for batch in running:
                self._abandon(batch, f"no step ended within {limit_s:g} s (scheduling.max_step_s)")

    @contextlib.contextmanager
    def _failing_only(self, batch: Batch) -> Iterator[None]:
        """Let whatever is raised fail the segments of one batch, and nothing else."""
        try:
            yield
        except (EOFError, OSError, EngineError) as error:
            self._abandon(batch, f"no connection to the decoding process: {error!r}")
        except Exception:  # noqa: BLE001 - it must strand neither callers nor the thread
            self._abandon(batch, traceback.format_exc())
            self._stopping.wait(_RECOVERY_S)

    def _abandon(self, batch: Batch, fault: str) -> None:
        """Fail all segments of a batch, and go on with an empty one."""
        self.cache_bytes, self.abandoned_at_s = 0, self._clock()  # until the core reports
        self._fail(batch, list(batch.running), fault)
        batch.disconnect()
        self._wake()  # for the segments that wait

    def _select(self, batch: Batch) -> list[QueuedSegment]:
        """Take the segments that join a batch now out of the queue."""
        with self._lock:
            now_s, most = self._clock(), self._max_segments()
            if not batch.running:
                batch.reported_at_s = now_s
            if len(batch.running) >= most or now_s - batch.reported_at_s > _RESPONSIVE_S:
                return []
            waiting = self._queue.peek(now_s, limit=_LOOKAHEAD * self._settings.max_batch_segments)
            selected = select_segments(waiting, batch.load, replace(self._budget, max_segments=most))
            for pending in selected:
                batch.add(pending)  # before it is taken out: at no time is it in neither of the two
                self._queue.serve(pending)
            return selected

    def _send(self, batch: Batch, selected: Sequence[QueuedSegment]) -> None:
        """Tell a batch which segments join it, which to encode with them, and which are no longer wanted."""
        with self._lock:
            new_segments = tuple(
                NewSegment(segment_id=one.segment_id, segment=one.segment, deadline_s=one.context.deadline_s)
                for one in selected
                if not one.done() or not batch.leave(one.segment_id)
            )
            must_encode = new_segments and not all(one.is_encoded for one in selected)
            ahead = self._take_ahead(batch) if must_encode else ()
            dropped_ids, batch.dropped_ids = tuple(batch.dropped_ids), []
            if new_segments:
                self._metrics.batch_padded_tokens.observe(batch.load.padded_tokens)
        if new_segments or dropped_ids:
            batch.send(BatchCommand(new_segments=new_segments, dropped_ids=dropped_ids, encode_ahead=ahead))

    def _take_ahead(self, batch: Batch) -> tuple[WaitingSource, ...]:
        """Return what a batch encodes of the segments that wait, if more wait than all batches take."""
        most, num_batches = self._settings.max_batch_segments, len(self._batches)
        if self._max_segments() < most:
            return ()
        waiting = self._queue.peek(self._clock(), limit=_LOOKAHEAD * most)
        limit = round(most * _AHEAD_SHARE)
        selected = select_ahead(waiting, batch.ahead.values(), window=num_batches * limit, limit=limit)
        for pending in selected:
            pending.is_sent_ahead = True
            batch.ahead[pending.segment_id] = pending
        return tuple(WaitingSource(segment_id=one.segment_id, source_ids=one.segment.source_ids) for one in selected)

    def _max_segments(self) -> int:
        """Return how many segments a batch may have as things are."""
        num_segments = self._queue.num_segments + sum(len(batch.running) for batch in self._batches)
        return min(self._settings.max_batch_segments, fair_share(num_segments, num_batches=len(self._batches)))

    def _is_backlogged(self, batch: Batch) -> bool:
        """Say whether a batch is as large as it may be, and more waits."""
        if not self._queue.num_segments:
            return False
        with self._lock:
            waiting = self._queue.peek(self._clock(), limit=1)
            return bool(waiting) and not self._budget.allows(batch.load.plus(waiting[0].segment))

    def _take_report(self, batch: Batch) -> None:
        """Answer the segments that have ended, and learn from what the steps took."""
        report = batch.receive()
        if report is None:
            return
        self.cache_bytes, batch.reported_at_s = report.cache_bytes, self._clock()
        self._metrics.decoding_process_cpu_seconds.inc(report.cpu_s)
        for counter, num_bytes in zip(self._copied_bytes, report.copied_bytes, strict=True):
            counter.inc(num_bytes)
        for output in report.outputs:
            self._take_output(batch, output)
        batch.leave_answered()
        if self._is_started:  # a warm-up is no experience
            with self._lock:
                for output in report.outputs:
                    self._forecast.learn(output, is_backlogged=batch.is_backlogged, now_s=self._clock())

    def _take_output(self, batch: Batch, output: BatchStepOutput) -> None:
        if output.encoded_ids:
            self._note_encoding(batch, output)
        if output.started_ids:
            self._note_start(batch, output)
        if output.num_rows:
            self._record_step(output)
        for ended in output.ended:
            self._answer(batch, ended, output.step_ended_s)
        for segment_id in output.late_ids:
            if pending := batch.leave(segment_id):
                pending.answer(DeadlineExceededError("decode"))
        if output.fault:
            self._fail(batch, output.lost_ids, output.fault)

    def _note_encoding(self, batch: Batch, output: BatchStepOutput) -> None:
        """Note which segments were encoded, and how long it took."""
        encoded = [pending for pending in map(batch.find, output.encoded_ids) if pending]
        for pending in encoded:
            pending.is_encoded, pending.encode_s = True, output.encode_s
        exemplars = filter(None, (pending.context.trace.exemplar for pending in encoded))
        self._metrics.encode_seconds.observe(output.encode_s, next(exemplars, None))

    def _note_start(self, batch: Batch, output: BatchStepOutput) -> None:
        """Note the times of segments that have joined a batch."""
        with self._lock:
            for segment_id in output.started_ids:
                self._forget_ahead(segment_id, joined=batch)
        for pending in filter(None, map(batch.running.get, output.started_ids)):
            pending.decode_began_s = output.started_at_s
            pending.queue_s = output.started_at_s - pending.admitted_at_s - pending.encode_s
            if self._is_started:  # a warm-up is not queued
                queue_wait = self._metrics.queue_wait_seconds.labels(pending.context.priority.value)
                queue_wait.observe(pending.queue_s, pending.context.trace.exemplar)

    def _forget_ahead(self, segment_id: int, *, joined: Batch | None = None) -> bool:
        """Let batches forget what they encoded of a segment that has joined one or has ended; say if any need be told.

        Its own batch has taken it; another one may have encoded it too late.
        """
        holders = [batch for batch in self._batches if batch.ahead.pop(segment_id, None) and batch is not joined]
        for batch in holders:
            batch.dropped_ids.append(segment_id)
        return bool(holders)

    def _record_step(self, output: BatchStepOutput) -> None:
        load, num_steps = output.load, 1 + len(output.earlier_steps_s)
        self._metrics.steps.inc(num_steps)
        for step_s in (*output.earlier_steps_s, output.step_s):
            self._metrics.step_seconds.observe(step_s)
        self._metrics.batch_segments.observe_times(load.num_segments, num_steps)
        self._row_padding.observe_times(1 - min(load.live_rows, output.step_rows) / output.step_rows, num_steps)
        self._source_padding.observe_times(1 - load.source_tokens / load.padded_tokens, num_steps)

    def _answer(self, batch: Batch, ended: EndedSegment, now_s: float) -> None:
        pending = batch.leave(ended.segment_id)
        if pending is None:  # no longer wanted
            return
        try:
            if not ended.hypotheses:
                log.error("the network gave no possible continuation", extra={"steps": ended.num_steps})
            elif not pending.done():
                timings = StageTimings(
                    queue_s=pending.queue_s, encode_s=pending.encode_s, decode_s=now_s - pending.decode_began_s
                )
                result = SegmentResult(
                    hypotheses=ended.hypotheses, num_steps=ended.num_steps, timings=timings, guard=ended.guard
                )
                self._count(pending, result)  # before the answer, so that it is in the figures by then
                if self._settings.max_cached_bytes:
                    with self._lock:
                        self._results.put(pending.segment, result)
                pending.answer(result)
        finally:
            pending.answer(EngineError("decoding failed"))  # unless it is answered

    def _count(self, pending: QueuedSegment, result: SegmentResult) -> None:
        num_target_tokens = len(result.hypotheses[0].token_ids)
        self._metrics.decode_seconds.observe(result.timings.decode_s, pending.context.trace.exemplar)
        self._metrics.source_tokens.inc(pending.num_source_tokens)
        self._metrics.target_tokens.inc(num_target_tokens)
        self._metrics.length_ratio.observe(num_target_tokens / pending.num_source_tokens)
        if result.guard is not None:
            self._metrics.guard_outcomes.labels("replaced" if result.guard.is_replaced else "kept").inc()
            for defect in result.guard.found:
                self._metrics.guard_defects.labels(defect.kind.value).inc()

    def _fail(self, batch: Batch, segment_ids: Sequence[int], fault: str) -> None:
        """Fail segments of a batch that is lost."""
        left = filter(None, map(batch.leave, segment_ids))
        lost = [pending for pending in left if not pending.done()]
        log.error("batch failed", extra={"segments": len(lost), "fault": fault})
        self._metrics.batch_failures.inc()
        for pending in lost:
            pending.answer(EngineError("decoding failed"))

    def _done(self, pending: QueuedSegment) -> None:
        """Free what an answered or cancelled segment holds; runs once for each, in whatever thread answers it."""
        if pending.cancelled():
            pending.set_running_or_notify_cancel()  # wakes threads that wait for several futures
        with self._lock:
            pending.is_end_noted = True
            was_waiting = self._queue.drop(pending)
            must_tell = self._forget_ahead(pending.segment_id)
            for batch in self._batches:
                if pending.segment_id in batch.running:
                    batch.dropped_ids.append(pending.segment_id)
                    must_tell = True
            self._num_unanswered -= 1
            self.unanswered_work -= pending.work
            if not self._num_unanswered:
                self._all_answered.notify_all()
            self._record_end(pending, was_waiting=was_waiting)
        if must_tell:
            self._wake()

    def _record_end(self, pending: QueuedSegment, *, was_waiting: bool) -> None:
        """Count how a segment ended; compare how long a request took with what was predicted."""
        error = None if pending.cancelled() else pending.exception()
        if pending.cancelled():
            outcome = "cancelled"
            self._metrics.cancelled_segments.labels("queue" if was_waiting else "decode").inc()
        elif isinstance(error, DeadlineExceededError):
            outcome = "deadline"
            self._metrics.deadline_misses.labels(error.stage).inc()
        else:
            outcome = "error" if error else "ok"
        self._metrics.segments.labels(outcome).inc()
        if (prediction := pending.prediction) is None:
            return
        actual_s = self._clock() - pending.admitted_at_s
        if prediction.has_throughput and outcome in {"ok", "deadline"}:
            self._margin.record(predicted_s=prediction.total_s, actual_s=actual_s)
        if outcome == "ok":
            direction = "late" if actual_s > prediction.total_s else "early"
            error_s = abs(actual_s - prediction.total_s)
            self._metrics.prediction_error_seconds.labels(direction).observe(error_s)
