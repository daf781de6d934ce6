"""Calls that end in every way a caller can end them, made side by side at a steady pace."""

import enum
import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Final

import grpc

from loadtests.stress.callers import REQUEST_ID_KEY, TIMEOUT_S, Reply, connect, reply_of
from loadtests.wire import Method

_OLDER: Final = 0.9
_FIRST_USUAL_S: Final = 0.1


class Ending(enum.Enum):
    """How a call is meant to end."""

    WAITS = "waits"
    """Its caller waits for the answer; a refusal is one."""

    CANCELS = "cancels"
    DISCONNECTS = "disconnects"
    SHORT_DEADLINE = "short deadline"


class Moment(enum.Enum):
    """When a caller cancels or disconnects."""

    AT_ONCE = "at once"
    """Before the request is admitted, as likely as not before it is read."""

    WAITING = "waiting"
    """Within the first tenth of the usual time: in the queue."""

    DECODING = "decoding"
    """Anywhere in the usual time."""

    ANSWERING = "answering"
    """When the answer is due: a stream's after its first message, another's at the usual time, a little before or
    after."""

    NEVER = "never"


_WEIGHTS: Final = {Moment.AT_ONCE: 3, Moment.WAITING: 5, Moment.DECODING: 6, Moment.ANSWERING: 5, Moment.NEVER: 1}
_SHARES: Final = {Moment.WAITING: (0.0, 0.1), Moment.DECODING: (0.0, 1.0), Moment.ANSWERING: (0.8, 1.2)}


def draw_moment(generator: random.Random, *, may_wait: bool = True) -> tuple[Moment, float]:
    """Return when a caller cancels: the moment, and the time as a share of the usual one."""
    weights = {moment: weight for moment, weight in _WEIGHTS.items() if may_wait or moment is not Moment.NEVER}
    (moment,) = generator.choices(list(weights), list(weights.values()))
    return moment, generator.uniform(*_SHARES.get(moment, (0.0, 0.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """One call, and what must come of it."""

    request_id: str
    """Of the call; those of a stream's requests are the ids of their messages."""

    kind: str
    method: Method
    path: str = ""
    raw: tuple[bytes, ...]
    answers: tuple[str, ...] = ("OK",)
    """Status that each message is answered with if there is time: OK, or that of its refusal."""

    is_counted: bool = True
    """False: gRPC refuses it itself, before any code of the server sees it."""

    probe: int | None = None
    """Which one it is of the calls whose answers never change."""

    ending: Ending = Ending.WAITS
    moment: Moment = Moment.NEVER
    share: float = 0.0
    """When its caller cancels or disconnects, or its deadline, as a share of the usual time."""

    half_closes: bool = True
    """Of a stream: whether the caller says that no more requests come."""


class _Caller:
    """Makes calls, one at a time, on a connection of its own."""

    def __init__(self, target: str, usual_s: dict[Method, float]) -> None:
        """Connect; `usual_s` is how long answers take of late, which all callers learn together."""
        self._target = target
        self._usual_s = usual_s
        self._channel = connect(target)

    def make(self, planned: PlannedCall) -> Reply:
        """Make a call, end it as planned, and return what became of it."""
        began_s, is_over, timer = time.monotonic(), threading.Event(), None
        call = self._begin(planned, is_over)
        part = self._channel.close if planned.ending is Ending.DISCONNECTS else call.cancel
        parts_after_first = planned.moment is Moment.ANSWERING and planned.method is not Method.TRANSLATE
        if planned.moment is Moment.AT_ONCE:
            part()
        elif planned.moment is not Moment.NEVER and not parts_after_first:
            timer = threading.Timer(self._after_s(planned), part)
            timer.start()
        try:
            messages = _read(call, planned.method, after_first=part if parts_after_first else None)
            reply = reply_of(call, messages, began_s=began_s)
        finally:
            is_over.set()
            if timer:
                timer.cancel()
                timer.join()
        if planned.ending is Ending.DISCONNECTS:
            self._channel.close()
            self._channel = connect(self._target)
        if planned.ending is Ending.WAITS and reply.status == "OK":
            older_s = self._usual_s.get(planned.method, reply.latency_s)
            self._usual_s[planned.method] = _OLDER * older_s + (1 - _OLDER) * reply.latency_s
        return reply

    def close(self) -> None:
        """Disconnect."""
        self._channel.close()

    def _after_s(self, planned: PlannedCall) -> float:
        return planned.share * self._usual_s.get(planned.method, _FIRST_USUAL_S)

    def _begin(self, planned: PlannedCall, is_over: threading.Event) -> Any:
        timeout_s = self._after_s(planned) if planned.ending is Ending.SHORT_DEADLINE else TIMEOUT_S
        settings = {"timeout": timeout_s, "metadata": ((REQUEST_ID_KEY, planned.request_id),)}
        path = planned.path or planned.method.path
        match planned.method:
            case Method.TRANSLATE_STREAM:
                return self._channel.stream_stream(path)(_sent(planned, is_over), **settings)
            case Method.TRANSLATE_DOCUMENT:
                return self._channel.unary_stream(path)(planned.raw[0], **settings)
            case _:
                return self._channel.unary_unary(path).future(planned.raw[0], **settings)


def _read(call: Any, method: Method, *, after_first: Callable[[], object] | None) -> list[bytes]:
    """Read what comes until a call has ended; `after_first` is done when the first message of a stream came."""
    if method is Method.TRANSLATE:
        return [call.result()] if call.code() is grpc.StatusCode.OK else []
    messages = []
    try:
        for message in call:
            messages.append(message)
            if after_first and len(messages) == 1:
                after_first()
    except grpc.RpcError:
        pass  # its status is looked at later
    return messages


def _sent(planned: PlannedCall, is_over: threading.Event) -> Iterator[bytes]:
    yield from planned.raw
    if not planned.half_closes:
        is_over.wait()


class Pace:
    """Hands out the times of calls, evenly and never faster to make up for what was missed; any thread may ask."""

    def __init__(self, rate_per_s: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow so many calls a second; None: as fast as they are answered."""
        self._gap_s = 0.0 if rate_per_s is None else 1.0 / rate_per_s
        self._clock = clock
        self._next_s = clock()
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """Return how long to wait with the next call."""
        with self._lock:
            now_s = self._clock()
            at_s = max(self._next_s, now_s)  # what was missed is not made up for: the load is to be constant
            self._next_s = at_s + self._gap_s
            return at_s - now_s


class Load:
    """Callers side by side that make the calls of a plan; each call is made by the next caller that is free."""

    def __init__(
        self, target: str, *, num_callers: int, note: Callable[[PlannedCall, Reply], None], look_each_s: float
    ) -> None:
        """Say who calls; `note` gets each call that has ended, from any thread."""
        self._target = target
        self._num_callers = num_callers
        self._note = note
        self._look_each_s = look_each_s
        self._usual_s: dict[Method, float] = {}

    def run(
        self,
        plan: Iterator[PlannedCall],
        *,
        rate_per_s: float | None = None,
        duration_s: float = math.inf,
        look: Callable[[], object] = lambda: None,
    ) -> int:
        """Connect, make calls until the time is up or the plan is through, disconnect; look at the server meanwhile.

        Returns:
            How many calls ended before the time was up.
        """
        until_s = time.monotonic() + duration_s
        pace, num_in_time = Pace(rate_per_s), itertools.count()
        lock, is_over = threading.Lock(), threading.Event()

        def make_calls(caller: _Caller) -> None:
            while (wait_s := pace.wait_s()) < until_s - time.monotonic() and not is_over.wait(wait_s):
                with lock:
                    planned = next(plan, None)
                if planned is None:
                    return
                self._note(planned, caller.make(planned))
                if time.monotonic() <= until_s:
                    next(num_in_time)

        with ExitStack() as stack:
            callers = [
                stack.enter_context(closing(_Caller(self._target, self._usual_s))) for _ in range(self._num_callers)
            ]
            pool = stack.enter_context(ThreadPoolExecutor(len(callers), thread_name_prefix="caller"))
            stack.callback(is_over.set)  # the first of all: if something fails, all callers stop
            running = {pool.submit(make_calls, caller) for caller in callers}
            while running:
                look()
                done, running = wait(running, self._look_each_s, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
        return next(num_in_time)
