"""Calls as an ordinary client makes them, and callers who translate all along and note every answer.

They use gRPC's threaded client: its asynchronous one leaks a little memory with each call that is cancelled while an
answer is awaited (grpc/grpc#43360), and so would show growth of its own.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import grpc
from dragoman.v1 import translation_pb2 as pb
from grpc_health.v1 import health_pb2

from loadtests.contract import meaning
from loadtests.target import ServerError
from loadtests.wire import Method

TIMEOUT_S: Final = 60.0
"""Deadline of a call whose caller waits: only reached if the server has forgotten it."""

WRONG_ANSWER: Final = "WRONG_ANSWER"
"""In place of OK: an answer came, but not the right one."""

_DETAILS_KEY: Final = "grpc-status-details-bin"
"""The server sends it with every failure that is its own."""
_CHANNEL_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # or callers would share connections
    ("grpc.enable_retries", 0),  # a call that is repeated would be counted twice
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
_SERVING: Final = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING).SerializeToString()
_MAX_MESSAGE_CHARACTERS: Final = 160
_PROGRESS_TIMEOUT_S: Final = 90.0


def connect(target: str) -> grpc.Channel:
    """Return a connection of its own, whose calls are never repeated."""
    return grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What became of a call, as its client sees it; times in seconds on the monotonic clock."""

    status: str
    message: str = ""
    is_of_server: bool = True
    """Whether the server gave the status, and not the client's own library."""

    messages: tuple[bytes, ...] = ()
    answer: bytes = b""
    """What the translations mean (`contract.meaning`), if that was asked for."""

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


class Client:
    """A connection of its own; one thread at a time uses it."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._channel = connect(target)

    def translate(self, request: bytes, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask for translations and keep what they mean."""
        return self.call(Method.TRANSLATE, request, timeout_s=timeout_s, read=meaning)

    def check(self, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask for the health of the server; OK only if it serves."""
        reply = self.call(Method.CHECK, b"", timeout_s=timeout_s)
        return reply.unless(reply.messages == (_SERVING,), "the server does not serve")

    def list_models(self, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask what models there are, which needs the event loop only; OK only if there is one."""
        reply = self.call(Method.LIST_MODELS, b"", timeout_s=timeout_s)
        return reply.unless(any(reply.messages), "there is no model")

    def call(
        self,
        method: Method,
        request: bytes,
        *,
        timeout_s: float = TIMEOUT_S,
        read: Callable[[bytes], bytes] = lambda _: b"",
        **options: Any,
    ) -> Reply:
        """Make any unary call; `read` makes `Reply.answer` of a message."""
        began_s = time.monotonic()
        reply = reply_of(
            self._channel.unary_stream(method.path)(request, timeout=timeout_s, **options), began_s=began_s
        )
        return replace(reply, answer=read(reply.messages[0])) if reply.status == "OK" else reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request whose right answer is known."""

    request: bytes
    answer: bytes
    """As `Reply.answer` was before anything went wrong; bit for bit."""

    def ask(self, client: Client, *, timeout_s: float = TIMEOUT_S) -> Reply:
        """Ask it; the reply has another status if it is an answer, but not the right one."""
        reply = client.translate(self.request, timeout_s=timeout_s)
        return reply.unless(reply.answer == self.answer, f"{_shown(reply.answer)} instead of {_shown(self.answer)}")


def learn_answers(target: str, requests: Sequence[bytes]) -> list[Question]:
    """Ask a server that is well; what it answers now is what it must answer later, bit for bit.

    Raises:
        ServerError: if it does not answer.
    """
    questions = []
    with Client(target) as client:
        for request in requests:
            reply = client.translate(request)
            if reply.status != "OK":
                raise ServerError(f"a server to which nothing was done answers {reply.status}: {reply.message}")
            questions.append(Question(request=request, answer=reply.answer))
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
        """Let so many threads translate and one more look: a call without queue and model.

        There is a pause between two calls of each, so that the machine is busy and not full.
        """
        self.translations: list[Reply] = []
        self.looks: list[Reply] = []
        asks = [question.ask for question in questions]
        turns = [
            *((self.translations, [*asks[number:], *asks[:number]], each_s) for number in range(num_translating)),
            (self.looks, [look], look_each_s),
        ]
        self._target = target
        self._is_over, self._progress = threading.Event(), threading.Condition()
        self._latest_s = [0.0] * len(turns)
        self._threads = [
            threading.Thread(target=self._call, args=(number, *turn), name="bystander", daemon=True)
            for number, turn in enumerate(turns)
        ]

    def wait_for_answers(self) -> None:
        """Return once each of them has ended a call that began after this.

        Raises:
            ServerError: if one of them waits for very long.
        """
        now_s = time.monotonic()
        with self._progress:
            if not self._progress.wait_for(lambda: min(self._latest_s) >= now_s, _PROGRESS_TIMEOUT_S):
                raise ServerError(f"a bystander has waited for more than {_PROGRESS_TIMEOUT_S:g} s")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _call(
        self, number: int, replies: list[Reply], calls: Sequence[Callable[[Client], Reply]], each_s: float
    ) -> None:
        with Client(self._target) as client:
            for call in itertools.cycle(calls):
                reply = call(client)
                replies.append(reply)
                with self._progress:
                    self._latest_s[number] = reply.began_s
                    self._progress.notify_all()
                if self._is_over.wait(each_s):
                    return


def _shown(answer: bytes) -> list[tuple[str, float]]:
    """Return what a message shows of an answer: texts and scores."""
    translations = pb.TranslateResponse.FromString(answer).translations
    return [(one.text, one.score) for translation in translations for one in translation.hypotheses]
