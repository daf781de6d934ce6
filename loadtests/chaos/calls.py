"""Calls as an ordinary client makes them, each noted with its status, its time and what was answered."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import grpc
from dragoman.v1 import translation_pb2 as pb
from grpc_health.v1 import health_pb2

from loadtests import wire

PATIENCE_S: Final = 30.0
"""Deadline of calls that should be answered."""

_OPTIONS: Final = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]
_MAX_MESSAGE_CHARACTERS: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What became of a call; times in seconds on the monotonic clock."""

    status: str
    message: str = ""
    """Of a status that is not OK."""

    answer: tuple[tuple[str, float], ...] = ()
    """Text and score of every translation; other calls have none."""

    began_s: float
    ended_s: float

    @property
    def latency_s(self) -> float:
        """How long the caller waited."""
        return self.ended_s - self.began_s


class Client:
    """A connection of its own; one thread at a time uses it."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._methods: dict[wire.Method, Any] = {}

    def translate(self, request: bytes, *, timeout_s: float = PATIENCE_S) -> Reply:
        """Ask for translations and keep them."""
        return self.call(wire.Method.TRANSLATE, request, timeout_s=timeout_s, read=_translations)

    def check(self, *, timeout_s: float = PATIENCE_S) -> Reply:
        """Ask for the health of the server; OK only if it serves."""
        return self.call(wire.Method.CHECK, b"", timeout_s=timeout_s, read=_require_serving)

    def load_model(self, model: str) -> Reply:
        """Ask for a version of a model to be loaded."""
        request = pb.LoadModelRequest(model=model).SerializeToString()
        return self.call(wire.Method.LOAD_MODEL, request, timeout_s=PATIENCE_S)

    def call(
        self,
        method: wire.Method,
        request: bytes,
        *,
        timeout_s: float,
        read: Callable[[bytes], tuple[tuple[str, float], ...]] = lambda _: (),
        **options: Any,
    ) -> Reply:
        """Make any unary call; `read` makes its answer, or raises a ValueError that says what is wrong."""
        began_s = time.monotonic()
        try:
            response: bytes = self._method(method)(request, timeout=timeout_s, **options)
            answer, status, message = read(response), grpc.StatusCode.OK.name, ""
        except grpc.RpcError as error:
            answer, status, message = (), error.code().name, (error.details() or "")[:_MAX_MESSAGE_CHARACTERS]
        except ValueError as error:
            answer, status, message = (), "WRONG_ANSWER", str(error)
        return Reply(status=status, message=message, answer=answer, began_s=began_s, ended_s=time.monotonic())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._channel.close()

    def _method(self, method: wire.Method) -> Any:
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(method.path)
        return self._methods[method]


def _translations(response: bytes) -> tuple[tuple[str, float], ...]:
    message = pb.TranslateResponse.FromString(response)
    return tuple(
        (hypothesis.text, hypothesis.score)
        for translation in message.translations
        for hypothesis in translation.hypotheses
    )


def _require_serving(response: bytes) -> tuple[tuple[str, float], ...]:
    status = health_pb2.HealthCheckResponse.FromString(response).status
    if status != health_pb2.HealthCheckResponse.SERVING:
        raise ValueError(f"health is {health_pb2.HealthCheckResponse.ServingStatus.Name(status)}")
    return ()
