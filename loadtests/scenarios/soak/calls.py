"""Calls that clients end in every possible way, and the callers that make them."""

import enum
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from loadtests.generator.calls import Method, Reply, read_reply
from loadtests.generator.client import TIMEOUT_S, Client
from loadtests.generator.server import Target

_DECAY: Final = 0.9  # weight of older latencies in the moving average
_FIRST_USUAL_S: Final = 0.1


class Kind(enum.Enum):
    """Purpose of a call. Clients of the last three do not wait for the response."""

    USUAL = "usual"
    PROBE = "probe"  # its response never changes
    REJECTED = "rejected"
    SWAP = "swap"
    CANCELS = "cancels"
    DISCONNECTS = "disconnects"
    SHORT_DEADLINE = "short deadline"


class Moment(enum.Enum):
    """Moment of a cancellation or disconnection: weight, and range in multiples of the usual latency."""

    AT_ONCE = (3, 0.0, 0.0)  # before admission
    WAITING = (5, 0.0, 0.1)  # in the queue
    DECODING = (6, 0.0, 1.0)
    ANSWERING = (5, 0.8, 1.2)  # when the response is due; after the first message of a response stream
    NEVER = (0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCall:
    """A call and its expected result."""

    request_id: str  # of the call; requests of a stream have their own
    kind: Kind
    method: Method
    path: str = ""  # replaces the path of the method
    raw: tuple[bytes, ...]
    answers: tuple[str, ...] = ("OK",)  # status of each message if there is time
    is_counted: bool = True  # False: gRPC rejects it, so the server sees nothing, or a call that breaks off
    moment: Moment = Moment.NEVER
    share: float = 0.0  # of the usual latency, until cancellation, disconnection or deadline
    half_closes: bool = True  # of a stream: whether the client ends its side

    @property
    def label(self) -> str:
        """Kind and method."""
        return f"{self.kind.value} {self.method.value}"


class SoakClient(Client):
    """A client that ends calls as planned; clients share the usual latencies by method."""

    def __init__(self, target: Target, *, usual_s: dict[Method, float] | None = None) -> None:
        super().__init__(target)
        self._usual_s = {} if usual_s is None else usual_s

    def perform(self, planned: ExpectedCall) -> Reply:
        """Make a call and end it as planned."""
        after_s = planned.share * self._usual_s.get(planned.method, _FIRST_USUAL_S)
        began_s, is_over, channel = time.monotonic(), threading.Event(), self.channels[0]

        def requests() -> Iterator[bytes]:
            yield from planned.raw
            if not planned.half_closes:
                is_over.wait()

        is_stream = planned.method is Method.TRANSLATE_STREAM
        begin = channel.stream_stream if is_stream else channel.unary_stream
        call = begin(planned.path or planned.method.path)(
            requests() if is_stream else planned.raw[0],
            timeout=after_s if planned.kind is Kind.SHORT_DEADLINE else TIMEOUT_S,
            metadata=(("x-request-id", planned.request_id),),
        )
        leave = channel.close if planned.kind is Kind.DISCONNECTS else call.cancel
        leaves_after_first = planned.moment is Moment.ANSWERING and planned.method is not Method.TRANSLATE
        timer = threading.Timer(after_s, leave)
        if planned.moment is Moment.AT_ONCE:
            leave()
        elif planned.moment is not Moment.NEVER and not leaves_after_first:
            timer.start()
        try:
            reply = read_reply(call, began_s=began_s, on_first=leave if leaves_after_first else lambda: None)
        finally:
            is_over.set()
            timer.cancel()
            if timer.ident is not None:
                timer.join()
        if planned.kind is Kind.DISCONNECTS:
            channel.close()
            self.channels[0] = self._target.channel()
        if planned.kind is Kind.USUAL and reply.status == "OK":
            older_s = self._usual_s.get(planned.method, reply.latency_s)
            self._usual_s[planned.method] = _DECAY * older_s + (1 - _DECAY) * reply.latency_s
        return reply


def paced(
    plan: Iterable[ExpectedCall], rate_per_s: float | None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[float, ExpectedCall]]:
    """Yield each call with its time, evenly spaced; after a delay, calls are not faster, to keep the load constant."""
    next_s = clock()
    for planned in plan:
        due_s = max(next_s, clock())
        next_s = due_s + (1.0 / rate_per_s if rate_per_s else 0.0)
        yield due_s, planned


@dataclass(slots=True, kw_only=True)
class CallerPool:
    """Parallel callers; each call is made by the next free caller."""

    address: str
    num_callers: int
    record: Callable[[ExpectedCall, Reply], None]  # called with each finished call, from any thread
    sample_each_s: float
    _usual_s: dict[Method, float] = field(default_factory=dict)

    def run(
        self,
        plan: Iterable[ExpectedCall],
        *,
        rate_per_s: float | None = None,
        duration_s: float = math.inf,
        sample: Callable[[], object] = lambda: None,
    ) -> int:
        """Make calls until the plan or the time ends; return the number of calls that ended in time.

        `sample` is called every `sample_each_s`.
        """
        until_s = time.monotonic() + duration_s
        schedule, lock, is_over = paced(plan, rate_per_s), threading.Lock(), threading.Event()

        def make_calls() -> int:
            num_in_time = 0
            with SoakClient(Target(address=self.address), usual_s=self._usual_s) as caller:
                while True:
                    with lock:
                        due_s, planned = next(schedule, (math.inf, None))
                    if planned is None or due_s >= until_s or is_over.wait(max(0.0, due_s - time.monotonic())):
                        return num_in_time
                    self.record(planned, caller.perform(planned))
                    num_in_time += time.monotonic() <= until_s

        num_ended = 0
        with ThreadPoolExecutor(self.num_callers, thread_name_prefix="caller") as pool:
            running = {pool.submit(make_calls) for _ in range(self.num_callers)}
            try:
                while running:
                    sample()
                    done, running = wait(running, self.sample_each_s, return_when=FIRST_EXCEPTION)
                    num_ended += sum(future.result() for future in done)
            finally:
                is_over.set()  # a failure stops all callers
        return num_ended
