"""Callers with ordinary wishes, who must not notice that bad inputs come in beside them."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import grpc
from dragoman.v1 import translation_pb2 as pb

from loadtests import wire
from loadtests.bad_inputs.answers import serialized_translations

_NUM_REQUESTS: Final = 16
"""Different ones, so that each is translated again soon."""

_TIMEOUT_S: Final = 60.0
_TRANSLATE_EACH_S: Final = 0.25
_LOOK_EACH_S: Final = 0.05


@dataclass(slots=True, kw_only=True)
class Calls:
    """What became of the calls of one bystander."""

    latencies_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, more: "Calls") -> None:
        """Count the calls of another."""
        self.latencies_s += more.latencies_s
        self.failures += more.failures


class Bystanders:
    """Two callers beside the bad ones, each with a connection and a thread of its own.

    One translates ordinary sentences, which must come out the same to the last bit whoever is in the batch. The other
    asks what models there are, which needs neither queue nor model, so that what it waits for is the server's event
    loop.
    """

    def __init__(self, target: str, *, seed: int, known: dict[int, Sequence[bytes]]) -> None:
        """Connect to a server.

        Args:
            target: its address.
            seed: of the sentences.
            known: translations by the number of their request, to compare with and to add to.
        """
        self.translating = Calls()
        self.looking = Calls()
        self._is_over = threading.Event()
        requests = wire.Requests(seed, count=_NUM_REQUESTS)
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.insecure_channel(target, options=options) for _ in range(2)]
        translate, look = (
            self._channels[0].unary_unary(wire.TRANSLATE),
            self._channels[1].unary_unary(wire.Method.LIST_MODELS.path),
        )

        def translated(number: int) -> str:
            number %= _NUM_REQUESTS
            translations = serialized_translations(translate(requests.unary(number), timeout=_TIMEOUT_S))
            if known.setdefault(number, translations) != translations:
                return "a sentence was translated otherwise than before"
            return "" if translations else "there is no translation"

        def looked(number: int) -> str:  # noqa: ARG001
            has_models = pb.ListModelsResponse.FromString(look(b"", timeout=_TIMEOUT_S)).models
            return "" if has_models else "there is no model"

        self._threads = [
            threading.Thread(target=self._go_on, args=arguments, daemon=True)
            for arguments in ((translated, self.translating, _TRANSLATE_EACH_S), (looked, self.looking, _LOOK_EACH_S))
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        for channel in self._channels:
            channel.close()

    def _go_on(self, ask: Callable[[int], str], calls: Calls, each_s: float) -> None:
        number = 0
        while number == 0 or not self._is_over.wait(each_s):
            began_s = time.perf_counter()
            try:
                failure = ask(number)
            except grpc.RpcError as error:
                failure = f"{error.code().name}: {error.details()}"
            calls.latencies_s.append(time.perf_counter() - began_s)
            calls.failures += [failure] if failure else []
            number += 1
