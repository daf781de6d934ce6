"""Makes a planned call over gRPC and notes what became of it.

Knows nothing of Locust: its threads are real ones, or gevent's where Locust has put those in their place.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
from dragoman.v1 import translation_pb2 as pb

from loadtests import wire
from loadtests.records import CallRecord
from loadtests.wire import Method, Outcome
from loadtests.workload import PlannedCall

_NUM_CHANNELS: Final = 2
"""Connections of a process. gRPC lets a server take some hundred calls at a time on each."""
_ANSWERS: Final[Mapping[Method, Any]] = {
    Method.TRANSLATE: pb.TranslateResponse,
    Method.TRANSLATE_DOCUMENT: pb.TranslatedSentence,
    Method.TRANSLATE_STREAM: pb.TranslateResponse,
}


class Client:
    """Connections to a server, and the calls made over them."""

    def __init__(self, target: str, *, key: str | None = None, ca: Path | None = None) -> None:
        """Connect when the first call is made.

        Args:
            target: HOST:PORT.
            key: of the API, if the server asks for one.
            ca: certificate of the authority that signed the server's; None: no encryption.
        """
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._channels = [_channel(target, ca) for _ in range(_NUM_CHANNELS)]
        self._callables = [_callables(channel) for channel in self._channels]
        self._num_calls = 0

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return once all connections stand.

        Raises:
            ConnectionError: if the time runs out first.
        """
        try:
            for channel in self._channels:
                grpc.channel_ready_future(channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError as error:
            raise ConnectionError(f"no server within {timeout_s:g} s") from error

    def make(self, planned: PlannedCall, planned_s: float) -> CallRecord:
        """Make a call and wait until it has ended.

        Args:
            planned: the call.
            planned_s: when it should be sent, on `time.monotonic()`; its deadline counts from there.
        """
        callables = self._callables[self._num_calls % len(self._callables)]
        self._num_calls += 1
        sent_s = time.monotonic()
        call = _begin(
            callables[planned.method],
            planned,
            timeout=planned_s + planned.timeout_s - sent_s,
            metadata=self._metadata,
        )
        leaving = None
        if planned.leave_after_s is not None:
            leaving = threading.Timer(max(0.0, planned_s + planned.leave_after_s - sent_s), call.cancel)
            leaving.start()
        first_s, messages = _messages(call, planned.method)
        code = call.code()
        ended_s = time.monotonic()
        if leaving is not None:
            leaving.cancel()
        answers = [_ANSWERS[planned.method].FromString(message) for message in messages]
        outcome, status = _outcome(call, code, answers, planned)
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for channel in self._channels:
            channel.close()


def _channel(target: str, ca: Path | None) -> grpc.Channel:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    if ca is None:
        return grpc.insecure_channel(target, options=options)
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(ca.read_bytes()), options=options)


def _callables(channel: grpc.Channel) -> dict[Method, Any]:
    """Return what makes each call, of bytes: requests are made beforehand."""
    kinds = {Method.TRANSLATE_DOCUMENT: channel.unary_stream, Method.TRANSLATE_STREAM: channel.stream_stream}
    return {method: kinds.get(method, channel.unary_unary)(method.path) for method in Method}


def _begin(callable_: Any, planned: PlannedCall, **settings: Any) -> Any:
    match planned.method:
        case Method.TRANSLATE_STREAM:
            return callable_(iter(planned.messages), **settings)
        case Method.TRANSLATE_DOCUMENT:
            return callable_(planned.messages[0], **settings)
        case _:
            return callable_.future(planned.messages[0], **settings)


def _messages(call: Any, method: Method) -> tuple[float | None, Sequence[bytes]]:
    """Wait for the end; return when the first message of a stream came, and what the translating methods answered."""
    if method in {Method.TRANSLATE_DOCUMENT, Method.TRANSLATE_STREAM}:
        return _streamed(call)
    is_answered = call.code() is grpc.StatusCode.OK
    return None, [call.result()] if is_answered and method in _ANSWERS else []


def _streamed(call: Any) -> tuple[float | None, Sequence[bytes]]:
    first_s, messages = None, list[bytes]()
    try:
        for message in call:
            first_s = first_s or time.monotonic()
            messages.append(message)
    except grpc.RpcError:
        return first_s, messages  # the status is looked at by the caller
    return first_s, messages


def _outcome(call: Any, code: grpc.StatusCode, answers: Sequence[Any], planned: PlannedCall) -> tuple[Outcome, str]:
    if code is grpc.StatusCode.CANCELLED and planned.leave_after_s is not None:
        return Outcome.LEFT, code.name
    outcome, status = wire.outcome(call)
    if outcome is Outcome.ANSWERED and planned.method is Method.TRANSLATE_STREAM:
        refused = [answer.error for answer in answers if answer.HasField("error")]
        if refused:
            outcome, within = wire.outcome_within_stream(refused[0])
            return outcome, f"{status}, {within} within"
        if len(answers) != len(planned.messages):
            return Outcome.ERROR, f"{status}, {len(answers)} answers to {len(planned.messages)} requests"
    return outcome, status


def _account(answers: Sequence[Any]) -> dict[str, Any]:
    """Return tokens and stages as the server accounts for them."""
    if not answers:
        return {}
    counts = [answer.sentence if isinstance(answer, pb.TranslatedSentence) else answer for answer in answers]
    timings = [answer.timings for answer in answers]
    return {
        "num_source_tokens": sum(count.num_source_tokens for count in counts),
        "num_target_tokens": sum(count.num_target_tokens for count in counts),
        "queue_s": max(_seconds(timing.queue) for timing in timings),
        "encode_s": max(_seconds(timing.encode) for timing in timings),
        "decode_s": max(_seconds(timing.decode) for timing in timings),
        "text_s": max(_seconds(timing.text) for timing in timings),
    }


def _seconds(duration: Any) -> float:
    seconds: float = duration.seconds + duration.nanos / 1e9
    return seconds
