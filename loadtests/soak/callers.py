"""Callers: each a thread with a connection of its own, that makes one call after the other and notes what it saw.

They use gRPC's threaded client: its asynchronous one leaks a little memory with each call that is cancelled while an
answer is awaited (grpc/grpc#43360).
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import grpc

from loadtests.cancellations.plan import Moment
from loadtests.soak.book import Book
from loadtests.soak.judging import Seen, judge
from loadtests.soak.ledger import Ending
from loadtests.soak.plan import PATIENT_S, PlannedCall
from loadtests.wire import Method

REQUEST_ID_KEY: Final = "x-request-id"
"""Metadata that names a call."""

_DETAILS_KEY: Final = "grpc-status-details-bin"
"""The server sends it with every failure that is its own."""

_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # or callers would share connections
    ("grpc.enable_retries", 0),  # a call that is repeated would be counted twice
    ("grpc.max_send_message_length", -1),
)
_OLDER: Final = 0.9
"""Weight of what was learned before, when another answer comes."""


def connect(target: str) -> grpc.Channel:
    """Return a connection of its own, whose calls are never repeated."""
    return grpc.insecure_channel(target, options=_OPTIONS)


def seen(call: Any, messages: Sequence[bytes]) -> Seen:
    """Return what a client sees of a call that has ended."""
    status = call.code().name
    has_details = any(key == _DETAILS_KEY for key, _ in call.trailing_metadata() or ())
    is_of_server = status == "OK" or (has_details and status != "CANCELLED")  # which the server tells nobody
    return Seen(status=status, is_of_server=is_of_server, messages=tuple(messages), details=call.details() or "")


def seen_unary(call: Any) -> Seen:
    """Wait until a call with one answer has ended; return what its client sees."""
    return seen(call, [call.result()] if call.code() is grpc.StatusCode.OK else [])


class UsualTimes:
    """How long answers take of late, in seconds by method; any thread may ask and tell."""

    def __init__(self) -> None:
        self._times: dict[Method, float] = {}

    def of(self, method: Method) -> float:
        """Return the time of a method; that of a short call as long as nobody has told."""
        return self._times.get(method, 0.1)

    def learn(self, method: Method, took_s: float) -> None:
        """Add the time of an answer."""
        self._times[method] = _OLDER * self._times.get(method, took_s) + (1 - _OLDER) * took_s


class Caller:
    """Makes calls, one at a time."""

    def __init__(self, target: str, book: Book, usual: UsualTimes, references: Sequence[bytes]) -> None:
        """Connect; `references` are what the answers to the probes must mean."""
        self._target = target
        self._book = book
        self._usual = usual
        self._references = references
        self._channel = connect(target)

    def make(self, planned: PlannedCall) -> None:
        """Make a call, let it end as planned, and note what became of it."""
        began_s = time.monotonic()
        is_over = threading.Event()
        call = self._begin(planned, is_over)
        leaver = self._leaver(call, planned)
        try:
            messages = self._read(call, planned)
            ended = seen(call, messages)
        finally:
            is_over.set()
            if leaver:
                leaver.cancel()
                leaver.join()
        if planned.ending is Ending.DISCONNECTS:
            self._channel.close()
            self._channel = connect(self._target)
        if planned.kind == "usual" and ended.status == "OK":
            self._usual.learn(planned.method, time.monotonic() - began_s)
        reference = None if planned.probe is None else self._references[planned.probe]
        self._book.note(judge(planned, ended, reference=reference))

    def close(self) -> None:
        """Disconnect."""
        self._channel.close()

    def _begin(self, planned: PlannedCall, is_over: threading.Event) -> Any:
        timeout_s = PATIENT_S
        if planned.ending is Ending.HURRIES:
            timeout_s = planned.share * self._usual.of(planned.method)
        told = {"timeout": timeout_s, "metadata": ((REQUEST_ID_KEY, planned.request_id),)}
        match planned.method:
            case Method.TRANSLATE_STREAM:
                return self._channel.stream_stream(planned.path)(_sent(planned, is_over), **told)
            case Method.TRANSLATE_DOCUMENT:
                return self._channel.unary_stream(planned.path)(planned.raw[0], **told)
            case _:
                return self._channel.unary_unary(planned.path).future(planned.raw[0], **told)

    def _leaver(self, call: Any, planned: PlannedCall) -> threading.Timer | None:
        """Let somebody end the call in time, while its answer is read; None if that is not wanted, or done."""
        if planned.moment is Moment.NEVER or self._leaves_after_first(planned):
            return None
        leave = self._parting(call, planned)
        if planned.moment is Moment.AT_ONCE:
            leave()
            return None
        leaver = threading.Timer(planned.share * self._usual.of(planned.method), leave)
        leaver.start()
        return leaver

    def _read(self, call: Any, planned: PlannedCall) -> list[bytes]:
        """Read what comes until the call has ended."""
        if planned.method is Method.TRANSLATE:
            return [call.result()] if call.code() is grpc.StatusCode.OK else []
        messages = []
        try:
            for message in call:
                messages.append(message)
                if self._leaves_after_first(planned) and len(messages) == 1:
                    self._parting(call, planned)()
        except grpc.RpcError:
            pass  # its status is looked at later
        return messages

    def _parting(self, call: Any, planned: PlannedCall) -> Callable[[], object]:
        close: Callable[[], object] = self._channel.close
        cancel: Callable[[], object] = call.cancel
        return close if planned.ending is Ending.DISCONNECTS else cancel

    @staticmethod
    def _leaves_after_first(planned: PlannedCall) -> bool:
        return planned.moment is Moment.ANSWERING and planned.method is not Method.TRANSLATE


def _sent(planned: PlannedCall, is_over: threading.Event) -> Iterator[bytes]:
    yield from planned.raw
    if not planned.half_closes:
        is_over.wait()
