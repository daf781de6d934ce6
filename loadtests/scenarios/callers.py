"""Calls that end in every way a caller can end them, and callers who make them and note every answer.

They use gRPC's threaded client: its asynchronous one leaks a little memory with each call that is cancelled while an
answer is awaited (grpc/grpc#43360), and so would show growth of its own.
"""

import enum
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import grpc
from dragoman.v1 import translation_pb2 as pb
from grpc_health.v1 import health_pb2

from loadtests.scenarios.contract import meaning
from loadtests.generator.server import ServerError, Target
from loadtests.generator.calls import Method

TIMEOUT_S: Final = 60.0  # deadline of a call whose caller waits: only reached if the server has forgotten it
WRONG_ANSWER: Final = "WRONG_ANSWER"  # in place of OK: an answer came, but not the right one
_DETAILS_KEY: Final = "grpc-status-details-bin"  # the server sends it with every failure that is its own
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
_SERVING: Final = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING).SerializeToString()
_OLDER: Final = 0.9
_FIRST_USUAL_S: Final = 0.1
_MAX_MESSAGE_CHARACTERS: Final = 160
_PROGRESS_TIMEOUT_S: Final = 90.0


def connect(target: str) -> grpc.Channel:
    """Return a connection of its own, whose calls are never retried: a second one would be counted, too."""
    return Target(address=target).channel(*_CHANNEL_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What became of a call, as its client sees it; times in seconds on the monotonic clock."""

    status: str
    message: str = ""
    is_of_server: bool = True  # the server gave the status, and not the client's own library
    messages: tuple[bytes, ...] = ()
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def latency_s(self) -> float:
        """How long the caller waited."""
        return self.ended_s - self.began_s

    def unless(self, is_right: bool, otherwise: str) -> "Reply":
        """Return this reply, with another status and message if it is an answer, but not the right one."""
        return self if is_right or self.status != "OK" else replace(self, status=WRONG_ANSWER, message=otherwise)


def reply_of(call: Any, *, began_s: float, on_first: Callable[[], object] = lambda: None) -> Reply:
    """Read what comes until a call has ended; it is made like one with many answers, as every call can be."""
    messages: list[bytes] = []
    with suppress(grpc.RpcError):  # its status is looked at below
        for message in call:
            messages.append(message)
            if len(messages) == 1:
                on_first()
    status = call.code().name
    has_details = any(key == _DETAILS_KEY for key, _ in call.trailing_metadata() or ())
    return Reply(
        status=status,
        message=(call.details() or "")[:_MAX_MESSAGE_CHARACTERS],
        is_of_server=status == "OK" or (has_details and status != "CANCELLED"),  # which the client's library says
        messages=tuple(messages),
        began_s=began_s,
        ended_s=time.monotonic(),
    )


class Kind(enum.Enum):
    """What a call is for; its caller waits for the answer, and a refusal is one, unless it is one of the last three."""

    USUAL = "usual"
    PROBE = "probe"  # its answer never changes
    REFUSED = "refused"
    SWAP = "swap"
    CANCELS = "cancels"
    DISCONNECTS = "disconnects"
    SHORT_DEADLINE = "short deadline"


class Moment(enum.Enum):
    """When a caller cancels or disconnects: how often, and between which shares of the usual time."""

    AT_ONCE = (3, 0.0, 0.0)  # before the request is admitted, as likely as not before it is read
    WAITING = (5, 0.0, 0.1)  # in the queue
    DECODING = (6, 0.0, 1.0)
    ANSWERING = (5, 0.8, 1.2)  # when the answer is due; of methods with answers of several messages, after the first
    NEVER = (0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """One call, and what must come of it."""

    request_id: str  # of the call; those of a stream's requests are the ids of their messages
    kind: Kind
    method: Method
    path: str = ""  # in place of that of the method
    raw: tuple[bytes, ...]
    answers: tuple[str, ...] = ("OK",)  # to each message if there is time: OK, or the status of its refusal
    is_counted: bool = True  # False: gRPC refuses it; the server sees nothing, or a call that ends half received
    moment: Moment = Moment.NEVER
    share: float = 0.0  # of the usual time, until its caller cancels or disconnects, or its deadline passes
    half_closes: bool = True  # of a stream: whether the caller says that no more requests come

    @property
    def label(self) -> str:
        """What it is counted as: its kind and its method."""
        return f"{self.kind.value} {self.method.value}"


class Client:
    """A connection of its own; one thread at a time uses it."""

    def __init__(self, target: str, *, usual_s: dict[Method, float] | None = None) -> None:
        """Connect; `usual_s` is how long planned calls take of late, which clients learn together."""
        self._target = target
        self._channel = connect(target)
        self._usual_s = {} if usual_s is None else usual_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, method: Method, request: bytes, *, timeout_s: float = TIMEOUT_S, **options: Any) -> Reply:
        """Make any unary call and wait for its end."""
        began_s = time.monotonic()
        return reply_of(self._channel.unary_stream(method.path)(request, timeout=timeout_s, **options), began_s=began_s)

    def check(self, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask for the health of the server; OK only if it serves."""
        reply = self.call(Method.CHECK, b"", timeout_s=timeout_s)
        return reply.unless(reply.messages == (_SERVING,), "the server does not serve")

    def list_models(self, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask what models there are, which needs the event loop only; OK only if there is one."""
        reply = self.call(Method.LIST_MODELS, b"", timeout_s=timeout_s)
        return reply.unless(any(reply.messages), "there is no model")

    def make(self, planned: PlannedCall) -> Reply:
        """Make a call, end it as planned, and return what became of it."""
        after_s = planned.share * self._usual_s.get(planned.method, _FIRST_USUAL_S)
        began_s, is_over = time.monotonic(), threading.Event()

        def requests() -> Iterator[bytes]:
            yield from planned.raw
            if not planned.half_closes:
                is_over.wait()

        is_stream = planned.method is Method.TRANSLATE_STREAM
        begin = self._channel.stream_stream if is_stream else self._channel.unary_stream
        call = begin(planned.path or planned.method.path)(
            requests() if is_stream else planned.raw[0],
            timeout=after_s if planned.kind is Kind.SHORT_DEADLINE else TIMEOUT_S,
            metadata=(("x-request-id", planned.request_id),),
        )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request whose right answer is known."""

    request: bytes
    answer: bytes  # what it meant (`contract.meaning`) before anything went wrong; bit for bit

    def ask(self, client: Client, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask it; the reply has another status if it is an answer, but not the right one."""
        reply = client.call(Method.TRANSLATE, self.request, timeout_s=timeout_s)
        answer = meaning(reply.messages[0]) if reply.messages else b""
        return reply.unless(answer == self.answer, f"{_shown(answer)} instead of {_shown(self.answer)}")


def learn_answers(target: str, requests: Sequence[bytes]) -> list[Question]:
    """Ask a server that is well what it must answer later, bit for bit; ServerError if it does not answer."""
    questions = []
    with Client(target) as client:
        for request in requests:
            reply = client.call(Method.TRANSLATE, request)
            if reply.status != "OK":
                raise ServerError(f"a server to which nothing was done answers {reply.status}: {reply.message}")
            questions.append(Question(request=request, answer=meaning(reply.messages[0])))
    return questions


class Bystanders:
    """Threads that call, one call after the other and each on a connection of its own, from `with` to its end."""

    def __init__(
        self,
        target: str,
        questions: Sequence[Question],
        *,
        num_translating: int = 3,
        each_s: float = 0.02,
        look: Callable[[Client], Reply] = Client.check,
        look_each_s: float = 0.02,
    ) -> None:
        """Let so many threads translate and one more look, without queue and model; pauses leave room for others."""
        self.translations: list[Reply] = []
        self.looks: list[Reply] = []
        self._target = target
        self._is_over, self._progress = threading.Event(), threading.Condition()
        asks: list[Callable[[Client], Reply]] = [question.ask for question in questions]
        turns = [(self.translations, [*asks[first:], *asks[:first]], each_s) for first in range(num_translating)]
        turns.append((self.looks, [look], look_each_s))
        self._threads = [
            threading.Thread(target=self._call, args=turn, name="bystander", daemon=True) for turn in turns
        ]
        self._latest_s = dict.fromkeys(self._threads, 0.0)  # when its last call that has ended began

    def wait_for_answers(self) -> None:
        """Return once each of them has ended a call that began after this; ServerError if one waits for very long."""
        now_s = time.monotonic()
        with self._progress:
            if not self._progress.wait_for(lambda: min(self._latest_s.values()) >= now_s, _PROGRESS_TIMEOUT_S):
                raise ServerError(f"a bystander has waited for more than {_PROGRESS_TIMEOUT_S:g} s")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _call(self, replies: list[Reply], calls: Sequence[Callable[[Client], Reply]], each_s: float) -> None:
        with Client(self._target) as client:
            for call in itertools.cycle(calls):
                reply = call(client)
                replies.append(reply)
                with self._progress:
                    self._latest_s[threading.current_thread()] = reply.began_s
                    self._progress.notify_all()
                if self._is_over.wait(each_s):
                    return


def paced(
    plan: Iterable[PlannedCall], rate_per_s: float | None, *, clock: Callable[[], float] = time.monotonic
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
    note: Callable[[PlannedCall, Reply], None]  # gets each call that has ended, from any thread
    look_each_s: float
    _usual_s: dict[Method, float] = field(default_factory=dict)

    def run(
        self,
        plan: Iterable[PlannedCall],
        *,
        rate_per_s: float | None = None,
        duration_s: float = math.inf,
        look: Callable[[], object] = lambda: None,
    ) -> int:
        """Make calls until the time is up or the plan is through, and look at the server; return how many ended so."""
        until_s = time.monotonic() + duration_s
        schedule, lock, is_over = paced(plan, rate_per_s), threading.Lock(), threading.Event()

        def make_calls() -> int:
            num_in_time = 0
            with Client(self.target, usual_s=self._usual_s) as caller:
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


def _shown(answer: bytes) -> list[tuple[str, float]]:
    """Return what a message shows of an answer: texts and scores."""
    translations = pb.TranslateResponse.FromString(answer).translations
    return [(one.text, one.score) for translation in translations for one in translation.hypotheses]
