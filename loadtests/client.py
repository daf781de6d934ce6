"""Makes planned calls over gRPC and notes what became of each.

Knows nothing of Locust: its threads are real ones, or gevent's where Locust has put those in their place.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import grpc
from dragoman.v1 import translation_pb2 as pb

from loadtests import wire
from loadtests.records import CallRecord
from loadtests.wire import Method, Outcome
from loadtests.workload import PlannedCall

_KEY_VARIABLE: Final = "DRAGOMAN_API_KEY"
"""Holds the key of the API where no flag names a file with it."""

_CALLS: Final = {Method.TRANSLATE_DOCUMENT: "unary_stream", Method.TRANSLATE_STREAM: "stream_stream"}
"""How the methods whose answers are streams are called."""
_CONNECT_S: Final = 20.0
_MAX_THREADS: Final = 10_000
"""Calls whose answers are streams that `Client.begin` reads at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to call a server that asks who calls; `add_access_flags` says what the files are."""

    key: str | None = None
    tls: bool = False
    ca_file: str | Path | None = None
    certificate_file: str | Path | None = None
    private_key_file: str | Path | None = None

    def channel(self, target: str) -> grpc.Channel:
        """Return a connection of its own, whose calls are never retried; OSError if a file cannot be read."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        files = (self.ca_file, self.private_key_file, self.certificate_file)
        if not self.tls and not any(files):
            return grpc.insecure_channel(target, options=options)
        credentials = grpc.ssl_channel_credentials(*(Path(file).read_bytes() if file else None for file in files))
        return grpc.secure_channel(target, credentials, options=options)


OPEN: Final = Access()
"""Of a server that needs neither TLS nor a key."""


def add_access_flags(parser: Any) -> None:
    """Declare how to call a server that asks who calls; `parser` is an `argparse.ArgumentParser` or a group of one."""
    add = parser.add_argument
    add("--api-key-file", metavar="FILE", help=f"holds the API key (what {_KEY_VARIABLE} holds)")
    add("--tls", action="store_true", help="encrypt; implied by the flags below, whose files are PEM")
    add("--ca-file", metavar="FILE", help="whom to trust (the public authorities)")
    add("--certificate-file", metavar="FILE", help="of the client, for mutual TLS")
    add("--private-key-file", metavar="FILE", help="belongs to --certificate-file")


def access_of(options: argparse.Namespace) -> Access:
    """Return what the flags of `add_access_flags` say; OSError if the file with the key cannot be read."""
    key_file = options.api_key_file
    key = Path(key_file).read_text(encoding="utf-8") if key_file else os.environ.get(_KEY_VARIABLE, "")
    files = {name: getattr(options, name) for name in ("ca_file", "certificate_file", "private_key_file")}
    return Access(key=key.strip() or None, tls=options.tls, **files)


class Client:
    """Connections to a server, and the calls made over them."""

    def __init__(
        self, target: str, access: Access = OPEN, *, num_channels: int = 2, timeout_s: float = _CONNECT_S
    ) -> None:
        """Return once all connections to HOST:PORT stand; raise ConnectionError if they do not in time.

        Each of the `num_channels` has a thread of gRPC, and a server admits some hundred calls on each.
        """
        self._metadata = (("authorization", f"Bearer {access.key}"),) if access.key else ()
        self._readers = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="reader")
        self._channels = [access.channel(target) for _ in range(num_channels)]
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
            raise ConnectionError(f"{target}: no connection within {timeout_s:g} s") from error

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
    tokens = {
        name: sum(getattr(count, name) for count in counts) for name in ("num_source_tokens", "num_target_tokens")
    }
    stages = {
        f"{stage}_s": max(getattr(answer.timings, stage).ToNanoseconds() / 1e9 for answer in answers)
        for stage in ("queue", "encode", "decode", "text")
        if answers
    }
    return {**tokens, **stages}
