"""gRPC client of all load tests: planned calls at their scheduled time, and single calls.

Uses the threaded API of gRPC: the asynchronous one leaks memory with each call that is cancelled while a response is
awaited (grpc/grpc#43360). Under Locust, gevent replaces the threads.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self

import grpc
from grpc_health.v1 import health_pb2

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import (
    Method,
    Outcome,
    PlannedCall,
    Reply,
    outcome_of_call,
    outcome_within_stream,
    read_reply,
)
from loadtests.generator.records import CallRecord
from loadtests.generator.server import Target

TIMEOUT_S: Final = 60.0  # deadline of a single call; reached only if the server loses the call
MAX_OVERRUN_S: Final = 60.0  # time that a planned call may take beyond its deadline
NUM_CHANNELS: Final = 4  # for load: each has its own gRPC thread, and a server admits some hundred calls on each
CONNECT_TIMEOUT_S: Final = 20.0
_MAX_READERS: Final = 10_000  # response streams that `Client.begin` reads at the same time
_SERVING: Final = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING).SerializeToString()


class Client:
    """Connections to a server and the calls made on them."""

    def __init__(self, target: Target, *, num_channels: int = 1, connect_timeout_s: float | None = None) -> None:
        """Open the connections, and wait for them if there is a timeout.

        Raises ConnectionError if they are not ready in time, OSError if a file of the target cannot be read.
        """
        self._target = target
        self._metadata = (("authorization", f"Bearer {target.key}"),) if target.key else ()
        self._readers = ThreadPoolExecutor(_MAX_READERS, thread_name_prefix="reader")
        self.channels = [target.channel() for _ in range(num_channels)]
        self._num_calls = 0
        try:
            for channel in self.channels if connect_timeout_s is not None else ():
                grpc.channel_ready_future(channel).result(timeout=connect_timeout_s)
        except grpc.FutureTimeoutError as error:
            self.close()
            raise ConnectionError(f"{target.address}: no connection within {connect_timeout_s:g} s") from error

    def call(
        self,
        method: Method,
        request: bytes,
        *,
        timeout_s: float = TIMEOUT_S,
        metadata: Sequence[tuple[str, str]] = (),
        **options: Any,
    ) -> Reply:
        """Make a unary call and wait for its end."""
        began_s = time.monotonic()
        options |= {"timeout": timeout_s, "metadata": (*self._metadata, *metadata)}
        call = self.channels[0].unary_stream(method.path)(request, **options)
        return read_reply(call, began_s=began_s)

    def check(self, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Call the health service; OK only if the server is SERVING."""
        reply = self.call(Method.CHECK, b"", timeout_s=timeout_s)
        return reply.unless(reply.messages == (_SERVING,), "not SERVING")

    def list_models(self, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """List the models, which needs only the event loop; OK only if there is one."""
        reply = self.call(Method.LIST_MODELS, b"", timeout_s=timeout_s)
        return reply.unless(any(reply.messages), "no model")

    def make(self, planned: PlannedCall, planned_s: float) -> CallRecord:
        """Make a call that is scheduled for `planned_s` on `time.monotonic()`; wait for its end."""
        call, sent_s = self._start(planned, planned_s)
        return _record(planned, call, planned_s=planned_s, sent_s=sent_s)

    def begin(self, planned: PlannedCall, planned_s: float, on_end: Callable[[CallRecord], None]) -> None:
        """Make a call as `make` does, without waiting; another thread calls `on_end` with the record."""
        if planned.method.streams_responses:
            self._readers.submit(lambda: on_end(self.make(planned, planned_s)))
            return
        call, sent_s = self._start(planned, planned_s)
        call.add_done_callback(lambda ended: on_end(_record(planned, ended, planned_s=planned_s, sent_s=sent_s)))

    def send(
        self, due: Iterable[tuple[PlannedCall, float]], on_end: Callable[[CallRecord], object] = lambda _: None
    ) -> list[CallRecord]:
        """Begin each call when it is due, even if others are in progress; return the records when all have ended.

        Raises TimeoutError if calls do not end long after their deadline.
        """
        records, ended = list[CallRecord](), threading.Semaphore(0)

        def add(record: CallRecord) -> None:
            records.append(record)
            on_end(record)
            ended.release()

        num_begun, until_s = 0, 0.0
        for call, due_s in due:
            time.sleep(max(0.0, due_s - time.monotonic()))
            self.begin(call, due_s, add)
            num_begun, until_s = num_begun + 1, max(until_s, due_s + call.timeout_s + MAX_OVERRUN_S)
        for _ in range(num_begun):
            _acquire(ended, until_s - time.monotonic())
        return records

    def closed_loop(
        self, num_users: int, calls: Iterable[PlannedCall], *, began_s: float, total_s: float, retry_s: float
    ) -> list[CallRecord]:
        """Let users make calls until the time is over; each user waits for the response before its next call.

        A rejected user pauses for `retry_s`. `began_s` is on `time.monotonic()`. Raises as `send` does.
        """
        free = threading.Semaphore(num_users)

        def release(record: CallRecord) -> None:
            if retry_s and record.outcome is Outcome.REJECTED:
                threading.Timer(retry_s, free.release).start()
            else:
                free.release()

        def due() -> Iterator[tuple[PlannedCall, float]]:
            for call in calls:
                _acquire(free, call.timeout_s + MAX_OVERRUN_S)
                due_s = max(began_s, time.monotonic())
                if due_s >= began_s + total_s:
                    return
                yield call, due_s

        return self.send(due(), release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for channel in self.channels:
            channel.close()
        self._readers.shutdown()

    def _start(self, planned: PlannedCall, planned_s: float) -> tuple[Any, float]:
        """Send a call; return it and the time."""
        channel = self.channels[self._num_calls % len(self.channels)]
        self._num_calls += 1
        sent_s, method = time.monotonic(), planned.method
        options: dict[str, Any] = {"timeout": planned_s + planned.timeout_s - sent_s, "metadata": self._metadata}
        if method is Method.TRANSLATE_STREAM:
            call = channel.stream_stream(method.path)(iter(planned.messages), **options)
        elif method.streams_responses:
            call = channel.unary_stream(method.path)(planned.messages[0], **options)
        else:
            call = channel.unary_unary(method.path).future(planned.messages[0], **options)
        if planned.leave_after_s is not None:
            timer = threading.Timer(max(0.0, planned_s + planned.leave_after_s - sent_s), call.cancel)
            timer.start()
            call.add_done_callback(lambda _: timer.cancel())
        return call, sent_s


def _acquire(semaphore: threading.Semaphore, timeout_s: float) -> None:
    if not semaphore.acquire(timeout=max(0.0, timeout_s)):
        raise TimeoutError(f"no response within {MAX_OVERRUN_S:g} s after the deadline")


def _record(planned: PlannedCall, call: Any, *, planned_s: float, sent_s: float) -> CallRecord:
    """Wait for the end of a call; return its record."""
    method = planned.method
    reply = read_reply(call, began_s=sent_s, is_stream=method.streams_responses)
    kind: Any = pb.TranslatedSentence if method is Method.TRANSLATE_DOCUMENT else pb.TranslateResponse
    responses = [kind.FromString(message) for message in reply.messages] if method.translates else []
    outcome, status = outcome_of_call(call)
    if planned.leave_after_s is not None and reply.status == "CANCELLED":
        outcome = Outcome.LEFT
    if reply.status == "OK" and method is Method.TRANSLATE_STREAM:
        if error := next((response.error for response in responses if response.HasField("error")), None):
            outcome, within = outcome_within_stream(error)
            status = f"{status}, {within} within"
        elif len(responses) != len(planned.messages):
            num_requests = len(planned.messages)
            outcome, status = Outcome.ERROR, f"{status}, {len(responses)} responses to {num_requests} requests"
    return CallRecord(
        planned_s=planned_s,
        sent_s=sent_s,
        first_s=reply.first_s,
        ended_s=reply.ended_s,
        method=method.value,
        profile=planned.profile,
        outcome=outcome,
        status=status,
        num_texts=planned.num_texts,
        **_tokens_and_stages(responses),
    )


def _tokens_and_stages(responses: Sequence[Any]) -> dict[str, Any]:
    counted = [one.sentence if isinstance(one, pb.TranslatedSentence) else one for one in responses]
    tokens = {name: sum(getattr(one, name) for one in counted) for name in ("num_source_tokens", "num_target_tokens")}
    stages = {
        f"{stage}_s": max(getattr(response.timings, stage).ToNanoseconds() / 1e9 for response in responses)
        for stage in ("queue", "encode", "decode", "text")
        if responses
    }
    return {**tokens, **stages}
