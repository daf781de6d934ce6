"""Makes planned calls over gRPC, when they are due or for callers who wait, and notes what became of each.

Knows nothing of Locust: its threads are real ones, or gevent's where Locust has put those in their place.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Self

import grpc
from dragoman.v1 import translation_pb2 as pb

from loadtests.generator import calls
from loadtests.generator.records import CallRecord
from loadtests.generator.server import Target
from loadtests.generator.calls import Method, Outcome
from loadtests.generator.workload import PlannedCall

_CALLS: Final = {Method.TRANSLATE_DOCUMENT: "unary_stream", Method.TRANSLATE_STREAM: "stream_stream"}
"""How the methods whose answers are streams are called."""
_NUM_CHANNELS: Final = 4  # each has a thread of gRPC, and a server admits some hundred calls on each
_CONNECT_S: Final = 20.0
PATIENCE_S: Final = 60.0
"""What a call may take beyond its deadline."""
_MAX_THREADS: Final = 10_000  # calls whose answers are streams that `Client.begin` reads at a time


class Client:
    """Connections to a server, and the calls made over them."""

    def __init__(self, target: Target, *, timeout_s: float = _CONNECT_S) -> None:
        """Return once all connections stand; ConnectionError if they do not in time, OSError without a file."""
        self._metadata = (("authorization", f"Bearer {target.key}"),) if target.key else ()
        self._readers = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="reader")
        self._channels = [target.channel() for _ in range(_NUM_CHANNELS)]
        self._callables = [
            {method: getattr(channel, _CALLS.get(method, "unary_unary"))(method.path) for method in Method}
            for channel in self._channels
        ]
        self._num_calls = 0
        try:
            for channel in self._channels:
                grpc.channel_ready_future(channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError as error:
            self.__exit__()
            raise ConnectionError(f"{target.address}: no connection within {timeout_s:g} s") from error

    def make(self, planned: PlannedCall, planned_s: float) -> CallRecord:
        """Make a call that should be sent at `planned_s` on `time.monotonic()`, where its deadline counts from.

        Waits until it has ended.
        """
        call, sent_s = self._start(planned, planned_s)
        return _record(planned, call, planned_s=planned_s, sent_s=sent_s)

    def begin(self, planned: PlannedCall, planned_s: float, on_end: Callable[[CallRecord], None]) -> None:
        """Make a call as `make` does without waiting; another thread hands over the record."""
        if planned.method in _CALLS:
            self._readers.submit(lambda: on_end(self.make(planned, planned_s)))
            return
        call, sent_s = self._start(planned, planned_s)
        call.add_done_callback(lambda ended: on_end(_record(planned, ended, planned_s=planned_s, sent_s=sent_s)))

    def send(
        self, due: Iterable[tuple[PlannedCall, float]], on_end: Callable[[CallRecord], object] = lambda _: None
    ) -> list[CallRecord]:
        """Begin each call when it is due, whatever became of those before; return the records when all have ended.

        Raises TimeoutError if calls do not end long after their deadline.
        """
        records, ended = list[CallRecord](), threading.Semaphore(0)

        def note(record: CallRecord) -> None:
            records.append(record)
            on_end(record)
            ended.release()

        num_begun, until_s = 0, 0.0
        for call, due_s in due:
            time.sleep(max(0.0, due_s - time.monotonic()))
            self.begin(call, due_s, note)
            num_begun, until_s = num_begun + 1, max(until_s, due_s + call.timeout_s + PATIENCE_S)
        for _ in range(num_begun):
            _acquire(ended, until_s - time.monotonic())
        return records

    def closed_loop(
        self, num_callers: int, calls: Iterable[PlannedCall], *, began_s: float, total_s: float, retry_s: float
    ) -> list[CallRecord]:
        """Let callers make calls, each the next one when the one before has ended, until the time is over.

        Who is rejected pauses for `retry_s`. `began_s` is on `time.monotonic()`. Raises as `send` does.
        """
        free = threading.Semaphore(num_callers)

        def release(record: CallRecord) -> None:
            if retry_s and record.outcome is Outcome.REJECTED:
                threading.Timer(retry_s, free.release).start()
            else:
                free.release()

        def due() -> Iterator[tuple[PlannedCall, float]]:
            for call in calls:
                _acquire(free, call.timeout_s + PATIENCE_S)
                due_s = max(began_s, time.monotonic())
                if due_s >= began_s + total_s:
                    return
                yield call, due_s

        return self.send(due(), release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            channel.close()
        self._readers.shutdown()

    def _start(self, planned: PlannedCall, planned_s: float) -> tuple[Any, float]:
        """Send a call; return it and when it was sent."""
        method = self._callables[self._num_calls % len(self._callables)][planned.method]
        self._num_calls += 1
        sent_s = time.monotonic()
        request = iter(planned.messages) if planned.method is Method.TRANSLATE_STREAM else planned.messages[0]
        send = method if planned.method in _CALLS else method.future
        call = send(request, timeout=planned_s + planned.timeout_s - sent_s, metadata=self._metadata)
        if planned.leave_after_s is not None:
            leaving = threading.Timer(max(0.0, planned_s + planned.leave_after_s - sent_s), call.cancel)
            leaving.start()
            call.add_done_callback(lambda _: leaving.cancel())
        return call, sent_s


def _acquire(semaphore: threading.Semaphore, patience_s: float) -> None:
    if not semaphore.acquire(timeout=max(0.0, patience_s)):
        raise TimeoutError(f"the server has not answered for {PATIENCE_S:g} s")


def _record(planned: PlannedCall, call: Any, *, planned_s: float, sent_s: float) -> CallRecord:
    """Wait for the end of a call; return what became of it."""
    first_s, messages = None, list[bytes]()
    if planned.method in _CALLS:
        with suppress(grpc.RpcError):  # its status is noted
            for message in call:
                first_s = first_s or time.monotonic()
                messages.append(message)
    is_well, ended_s = call.code() is grpc.StatusCode.OK, time.monotonic()
    if is_well and planned.method is Method.TRANSLATE:
        messages = [call.result()]
    kind: Any = pb.TranslatedSentence if planned.method is Method.TRANSLATE_DOCUMENT else pb.TranslateResponse
    answers = [kind.FromString(message) for message in messages]
    outcome, status = wire.outcome(call)
    if planned.leave_after_s is not None and call.code() is grpc.StatusCode.CANCELLED:
        outcome = Outcome.LEFT
    if is_well and planned.method is Method.TRANSLATE_STREAM:
        if refused := next((answer.error for answer in answers if answer.HasField("error")), None):
            outcome, within = wire.outcome_within_stream(refused)
            status = f"{status}, {within} within"
        elif len(answers) != len(planned.messages):
            outcome, status = Outcome.ERROR, f"{status}, {len(answers)} answers to {len(planned.messages)} requests"
    return CallRecord(
        planned_s=planned_s,
        sent_s=sent_s,
        first_s=first_s,
        ended_s=ended_s,
        method=planned.method.value,
        profile=planned.profile,
        outcome=outcome,
        status=status,
        num_texts=planned.num_texts,
        **_account(answers),
    )


def _account(answers: Sequence[Any]) -> dict[str, Any]:
    """Return tokens and stages as the server accounts for them; nothing if it has answered nothing."""
    counts = [answer.sentence if isinstance(answer, pb.TranslatedSentence) else answer for answer in answers]
    tokens = {name: sum(getattr(one, name) for one in counts) for name in ("num_source_tokens", "num_target_tokens")}
    stages = {
        f"{stage}_s": max(getattr(answer.timings, stage).ToNanoseconds() / 1e9 for answer in answers)
        for stage in ("queue", "encode", "decode", "text")
        if answers
    }
    return {**tokens, **stages}
