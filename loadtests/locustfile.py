"""What Locust's users do: translate over one connection each, with a short pause between calls.

locust --headless --locustfile loadtests/locustfile.py --host localhost:50051 --users 10 --run-time 30s

DRAGOMAN_API_KEY is sent along where the server asks for a key. A call counts as failed if its status is not OK, and so
does a refusal for load: it is what a caller would see.
"""

import itertools
import os
import time
from collections.abc import Iterable
from typing import Any, ClassVar, Final

import grpc
import grpc.experimental.gevent
from locust import User, between

from loadtests import wire

# From here on, gRPC waits as gevent does: without it the first call would stop all users.
grpc.experimental.gevent.init_gevent()

_TIMEOUT_S: Final = 30.0
_SEEDS: Final = itertools.count()
"""Each user sends texts of its own."""


class TranslatingUser(User):  # type: ignore[misc]  # locust is not installed where types are checked
    """Mostly short requests, now and then a document or a stream."""

    wait_time = between(0.05, 0.2)

    def on_start(self) -> None:
        """Connect."""
        if not self.host:
            raise ValueError("name the server: --host HOST:PORT")
        key = os.environ.get("DRAGOMAN_API_KEY")
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._channel = grpc.insecure_channel(self.host, options=[("grpc.use_local_subchannel_pool", 1)])
        self._translate: Any = self._channel.unary_unary(wire.TRANSLATE)
        self._document: Any = self._channel.unary_stream(wire.TRANSLATE_DOCUMENT)
        self._stream: Any = self._channel.stream_stream(wire.TRANSLATE_STREAM)
        self._requests = wire.Requests(next(_SEEDS))
        self._num_calls = 0

    def on_stop(self) -> None:
        """Disconnect."""
        self._channel.close()

    def translate(self) -> None:
        """Two sentences."""
        self._measure("Translate", lambda number: [self._answer(number)])

    def translate_document(self) -> None:
        """Six sentences, one by one."""
        self._measure(
            "TranslateDocument",
            lambda number: self._document(self._requests.document(number), timeout=_TIMEOUT_S, metadata=self._metadata),
        )

    def translate_stream(self) -> None:
        """Three requests over one call."""
        self._measure(
            "TranslateStream",
            lambda number: self._stream(
                iter(self._requests.stream(number)), timeout=_TIMEOUT_S, metadata=self._metadata
            ),
        )

    tasks: ClassVar = {translate: 8, translate_document: 1, translate_stream: 1}

    def _answer(self, number: int) -> bytes:
        answer: bytes = self._translate(self._requests.unary(number), timeout=_TIMEOUT_S, metadata=self._metadata)
        return answer

    def _measure(self, name: str, call: Any) -> None:
        """Make a call and tell Locust how long it took, how much came back, and its error if it failed."""
        self._num_calls += 1
        began_s = time.perf_counter()
        num_bytes, error = _received(lambda: call(self._num_calls))
        self.environment.events.request.fire(
            request_type="grpc",
            name=name,
            response_time=(time.perf_counter() - began_s) * 1000,
            response_length=num_bytes,
            exception=error,
            context={},
        )


def _received(call: Any) -> tuple[int, Exception | None]:
    num_bytes = 0
    try:
        answers: Iterable[bytes] = call()
        for answer in answers:
            num_bytes += len(answer)
    except grpc.RpcError as error:
        return num_bytes, RuntimeError(f"{error.code().name}: {error.details()}")
    return num_bytes, None
