"""Makes planned calls over gRPC and notes what became of each.

Knows nothing of Locust: its threads are real ones, or gevent's where Locust has put those in their place.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
from dragoman.v1 import translation_pb2 as pb

from loadtests import wire
from loadtests.records import CallRecord
from loadtests.wire import Method, Outcome
from loadtests.workload import PlannedCall

KEY_VARIABLE: Final = "DRAGOMAN_API_KEY"
"""Holds the key of the API where no flag names a file with it."""

_ANSWERS: Final[Mapping[Method, Any]] = {
    Method.TRANSLATE: pb.TranslateResponse,
    Method.TRANSLATE_DOCUMENT: pb.TranslatedSentence,
    Method.TRANSLATE_STREAM: pb.TranslateResponse,
}
_STREAMING: Final = {Method.TRANSLATE_DOCUMENT, Method.TRANSLATE_STREAM}
_MAX_THREADS: Final = 10_000
"""Calls whose answers are streams that `Client.begin` reads at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to call a server that asks who calls."""

    key: str | None = None
    tls: bool = False
    """Whether to encrypt; implied by the files below, which are PEM."""

    ca: Path | None = None
    """Whom to trust; None: the public authorities."""

    certificate: Path | None = None
    """Of the client, for mutual TLS."""

    private_key: Path | None = None

    def channel(self, target: str) -> grpc.Channel:
        """Return a connection of its own, whose calls are never retried.

        Raises:
            OSError: if a file cannot be read.
        """
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        files = (self.ca, self.private_key, self.certificate)
        if not self.tls and not any(files):
            return grpc.insecure_channel(target, options=options)
        credentials = grpc.ssl_channel_credentials(*(path and path.read_bytes() for path in files))
        return grpc.secure_channel(target, credentials, options=options)


OPEN: Final = Access()
"""Of a server that needs neither TLS nor a key."""


def add_access_flags(parser: Any) -> None:
    """Declare how to call a server that asks who calls; `parser` is an `argparse.ArgumentParser` or a group of one."""
    add = parser.add_argument
    add("--api-key-file", metavar="FILE", help=f"holds the API key (what {KEY_VARIABLE} holds)")
    add("--tls", action="store_true", help="encrypt; implied by the flags below, whose files are PEM")
    add("--ca-file", metavar="FILE", help="whom to trust (the public authorities)")
    add("--certificate-file", metavar="FILE", help="of the client, for mutual TLS")
    add("--private-key-file", metavar="FILE", help="belongs to --certificate-file")


def access_of(options: argparse.Namespace) -> Access:
    """Return what the flags of `add_access_flags` say.

    Raises:
        OSError: if the file with the key cannot be read.
    """

    def path(name: str | None) -> Path | None:
        return Path(name) if name else None

    key_file = path(options.api_key_file)
    key = os.environ.get(KEY_VARIABLE, "") if key_file is None else key_file.read_text(encoding="utf-8")
    return Access(
        key=key.strip() or None,
        tls=options.tls,
        ca=path(options.ca_file),
        certificate=path(options.certificate_file),
        private_key=path(options.private_key_file),
    )


class Client:
    """Connections to a server, and the calls made over them."""

    def __init__(self, target: str, access: Access = OPEN, *, num_channels: int = 2) -> None:
        """Connect when the first call is made.

        Args:
            target: HOST:PORT.
            access: TLS and key.
            num_channels: connections; each has a thread of gRPC, and a server admits some hundred calls on each.
        """
        self._metadata = (("authorization", f"Bearer {access.key}"),) if access.key else ()
        self._channels = [access.channel(target) for _ in range(num_channels)]
        self._callables = [_callables(channel) for channel in self._channels]
        self._num_calls = 0
        self._readers = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="reader")

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return once all connections stand.

        Raises:
            ConnectionError: if the time runs out first.
        """
        try:
            for channel in self._channels:
                grpc.channel_ready_future(channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError as error:
            raise ConnectionError(f"no connection within {timeout_s:g} s") from error

    def make(self, planned: PlannedCall, planned_s: float) -> CallRecord:
        """Make a call and wait until it has ended.

        Args:
            planned: the call.
            planned_s: when it should be sent, on `time.monotonic()`; its deadline counts from there.
        """
        call, sent_s = self._start(planned, planned_s)
        first_s, messages = None, list[bytes]()
        if planned.method in _STREAMING:
            try:
                for message in call:
                    first_s = first_s or time.monotonic()
                    messages.append(message)
            except grpc.RpcError:
                pass  # its status is noted
        return _record(planned, call, planned_s=planned_s, sent_s=sent_s, first_s=first_s, messages=messages)

    def begin(self, planned: PlannedCall, planned_s: float, on_end: Callable[[CallRecord], None]) -> None:
        """Make a call as `make` does without waiting; another thread hands over the record."""
        if planned.method in _STREAMING:
            self._readers.submit(lambda: on_end(self.make(planned, planned_s)))
            return
        call, sent_s = self._start(planned, planned_s)
        call.add_done_callback(lambda ended: on_end(_record(planned, ended, planned_s=planned_s, sent_s=sent_s)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for channel in self._channels:
            channel.close()
        self._readers.shutdown()

    def _start(self, planned: PlannedCall, planned_s: float) -> tuple[Any, float]:
        """Send a call; return it and when it was sent."""
        callable_ = self._callables[self._num_calls % len(self._callables)][planned.method]
        self._num_calls += 1
        sent_s = time.monotonic()
        settings = {"timeout": planned_s + planned.timeout_s - sent_s, "metadata": self._metadata}
        match planned.method:
            case Method.TRANSLATE_STREAM:
                call = callable_(iter(planned.messages), **settings)
            case Method.TRANSLATE_DOCUMENT:
                call = callable_(planned.messages[0], **settings)
            case _:
                call = callable_.future(planned.messages[0], **settings)
        if planned.leave_after_s is not None:
            leaving = threading.Timer(max(0.0, planned_s + planned.leave_after_s - sent_s), call.cancel)
            leaving.start()
            call.add_done_callback(lambda _: leaving.cancel())
        return call, sent_s


def _callables(channel: grpc.Channel) -> dict[Method, Any]:
    """Return what makes each call, of bytes: requests are made beforehand."""
    kinds = {Method.TRANSLATE_DOCUMENT: channel.unary_stream, Method.TRANSLATE_STREAM: channel.stream_stream}
    return {method: kinds.get(method, channel.unary_unary)(method.path) for method in Method}


def _record(
    planned: PlannedCall,
    call: Any,
    *,
    planned_s: float,
    sent_s: float,
    first_s: float | None = None,
    messages: Sequence[bytes] = (),
) -> CallRecord:
    """Return what became of a call; waits for the end of one that answers once."""
    code = call.code()
    ended_s = time.monotonic()
    method = planned.method
    if code is grpc.StatusCode.OK and method in _ANSWERS and method not in _STREAMING:
        messages = [call.result()]
    answers = [_ANSWERS[method].FromString(message) for message in messages]
    outcome, status = _outcome(call, code, answers, planned)
    return CallRecord(
        planned_s=planned_s,
        sent_s=sent_s,
        first_s=first_s,
        ended_s=ended_s,
        method=method.value,
        profile=planned.profile,
        outcome=outcome,
        status=status,
        num_texts=planned.num_texts,
        **_account(answers),
    )


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

    def longest(stage: str) -> float:
        durations = (getattr(answer.timings, stage) for answer in answers)
        return max(float(duration.seconds + duration.nanos / 1e9) for duration in durations)

    return {
        "num_source_tokens": sum(count.num_source_tokens for count in counts),
        "num_target_tokens": sum(count.num_target_tokens for count in counts),
        **{f"{stage}_s": longest(stage) for stage in ("queue", "encode", "decode", "text")},
    }
