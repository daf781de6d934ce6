"""Calls that end in every way a caller can end them, made side by side at a steady pace."""

import enum
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Final

from loadtests.stress.callers import TIMEOUT_S, Client, Reply, connect, reply_of
from loadtests.wire import Method

_OLDER: Final = 0.9
_FIRST_USUAL_S: Final = 0.1


class Kind(enum.Enum):
    """What a call is for; its caller waits for the answer, and a refusal is one, unless it is one of the last three."""

    USUAL = "usual"
    PROBE = "probe"
    """Its answer never changes."""

    REFUSED = "refused"
    SWAP = "swap"
    CANCELS = "cancels"
    DISCONNECTS = "disconnects"
    SHORT_DEADLINE = "short deadline"


class Moment(enum.Enum):
    """When a caller cancels or disconnects: how often, and between which shares of the usual time."""

    AT_ONCE = (3, 0.0, 0.0)
    """Before the request is admitted, as likely as not before it is read."""

    WAITING = (5, 0.0, 0.1)
    """In the queue."""

    DECODING = (6, 0.0, 1.0)
    ANSWERING = (5, 0.8, 1.2)
    """When the answer is due; of methods that answer with several messages, after the first one."""

    NEVER = (0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """One call, and what must come of it."""

    request_id: str
    """Of the call; those of a stream's requests are the ids of their messages."""

    kind: Kind
    method: Method
    path: str = ""
    raw: tuple[bytes, ...]
    answers: tuple[str, ...] = ("OK",)
    """Status that each message is answered with if there is time: OK, or that of its refusal."""

    is_counted: bool = True
    """False: gRPC refuses it itself, before any code of the server sees it."""

    moment: Moment = Moment.NEVER
    share: float = 0.0
    """When its caller cancels or disconnects, or its deadline, as a share of the usual time."""

    half_closes: bool = True
    """Of a stream: whether the caller says that no more requests come."""

    @property
    def label(self) -> str:
        """What it is counted as: its kind and its method."""
        return f"{self.kind.value} {self.method.value}"


class Caller(Client):
    """Makes planned calls, one at a time."""

    def __init__(self, target: str, usual_s: dict[Method, float]) -> None:
        """Connect; `usual_s` is how long answers take of late, which all callers learn together."""
        super().__init__(target)
        self._target = target
        self._usual_s = usual_s

    def make(self, planned: PlannedCall) -> Reply:
        """Make a call, end it as planned, and return what became of it."""
        after_s = planned.share * self._usual_s.get(planned.method, _FIRST_USUAL_S)
        began_s, is_over = time.monotonic(), threading.Event()
        call = self._begin(planned, is_over, after_s if planned.kind is Kind.SHORT_DEADLINE else TIMEOUT_S)
        part = self._channel.close if planned.kind is Kind.DISCONNECTS else call.cancel
        parts_after_first = planned.moment is Moment.ANSWERING and planned.method is not Method.TRANSLATE
        timer = threading.Timer(after_s, part)
        if planned.moment is Moment.AT_ONCE:
            part()
        elif planned.moment is not Moment.NEVER and not parts_after_first:
            timer.start()
        try:
            reply = reply_of(call, began_s=began_s, on_first=part if parts_after_first else lambda: None)
        finally:
            is_over.set()
            timer.cancel()
            if timer.ident is not None:
                timer.join()
        if planned.kind is Kind.DISCONNECTS:
            self._channel.close()
            self._channel = connect(self._target)
        if planned.kind is Kind.USUAL and reply.status == "OK":
            older_s = self._usual_s.get(planned.method, reply.latency_s)
            self._usual_s[planned.method] = _OLDER * older_s + (1 - _OLDER) * reply.latency_s
        return reply

    def _begin(self, planned: PlannedCall, is_over: threading.Event, timeout_s: float) -> Any:
        def requests() -> Iterator[bytes]:
            yield from planned.raw
            if not planned.half_closes:
                is_over.wait()

        path, settings = planned.path or planned.method.path, {"timeout": timeout_s}
        metadata = (("x-request-id", planned.request_id),)
        if planned.method is Method.TRANSLATE_STREAM:
            return self._channel.stream_stream(path)(requests(), metadata=metadata, **settings)
        return self._channel.unary_stream(path)(planned.raw[0], metadata=metadata, **settings)


def paced(
    plan: Iterator[PlannedCall], rate_per_s: float | None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[float, PlannedCall]]:
    """Yield each call with its time: evenly, and what was missed is not made up for, as the load is to be constant."""
    next_s = clock()
    for planned in plan:
        due_s = max(next_s, clock())
        next_s = due_s + (1.0 / rate_per_s if rate_per_s else 0.0)
        yield due_s, planned


@dataclass(slots=True, kw_only=True)
class Load:
    """Callers side by side that make the calls of a plan; each call is made by the next caller that is free."""

    target: str
    num_callers: int
    note: Callable[[PlannedCall, Reply], None]
    """Gets each call that has ended, from any thread."""

    look_each_s: float
    _usual_s: dict[Method, float] = field(default_factory=dict)

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
        schedule, lock, is_over = paced(plan, rate_per_s), threading.Lock(), threading.Event()

        def make_calls() -> int:
            num_in_time = 0
            with Caller(self.target, self._usual_s) as caller:
                while True:
                    with lock:
                        due_s, planned = next(schedule, (math.inf, None))
                    if planned is None or due_s >= until_s or is_over.wait(max(0.0, due_s - time.monotonic())):
                        return num_in_time
                    self.note(planned, caller.make(planned))
                    num_in_time += time.monotonic() <= until_s

        num_ended = 0
        with ThreadPoolExecutor(self.num_callers, thread_name_prefix="caller") as pool:
            running = {pool.submit(make_calls) for _ in range(self.num_callers)}
            try:
                while running:
                    look()
                    done, running = wait(running, self.look_each_s, return_when=FIRST_EXCEPTION)
                    num_ended += sum(future.result() for future in done)
            finally:
                is_over.set()  # if something fails, all callers stop
        return num_ended
