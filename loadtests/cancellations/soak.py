"""The soak: callers side by side, the server's memory meanwhile, and what is left when all have gone."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import grpc

from loadtests import wire
from loadtests.cancellations.callers import Caller
from loadtests.cancellations.plan import Method, PlannedCall, planned_calls
from loadtests.target import ServerProcess, wait_until_idle

_NUM_CHANNELS: Final = 4
_NUM_USUAL: Final = 32
"""Calls that find out how long an answer usually takes."""
_SETTLE_TIMEOUT_S: Final = 30.0
_SAMPLE_EACH_S: Final = 0.25
_WINDOW: Final = 0.1
"""Share of the samples, at each end, whose medians are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResult:
    """What a soak came to."""

    num_calls: int
    ends: dict[str, int]
    unanswered: Sequence[str]
    memory_mb: Sequence[float]
    """Of the server, from the end of the warm-up, at even distances."""

    left: dict[str, float] = field(default_factory=dict)
    """What is not at rest: gauges of work that are not back at 0, steps still run."""

    elapsed_s: float

    @property
    def rss_growth_mb(self) -> float:
        """Memory towards the end less that after the warm-up."""
        size = max(1, round(_WINDOW * len(self.memory_mb)))
        return median(self.memory_mb[-size:]) - median(self.memory_mb[:size])


def soak(
    server: ServerProcess, methods: Sequence[Method], *, num_calls: int, num_warm_up: int, num_callers: int, seed: int
) -> SoakResult:
    """Make all calls of a plan, after others that only warm up."""
    requests = wire.Requests(seed)
    with ExitStack() as stack:
        channels = [stack.enter_context(_connect(server)) for _ in range(_NUM_CHANNELS)]
        usual_s = _usual_s(channels[0], requests)
        callers = [Caller(channels[index % _NUM_CHANNELS], requests, usual_s) for index in range(num_callers)]
        _run(callers, planned_calls(methods, num_warm_up, seed + 1))
        with _MemorySampler(server) as memory:
            began_s = time.monotonic()
            _run(callers, planned_calls(methods, num_calls, seed))
            elapsed_s = time.monotonic() - began_s
            left = wait_until_idle(server, timeout_s=_SETTLE_TIMEOUT_S)
    return SoakResult(
        num_calls=num_calls + num_warm_up,
        ends=dict(sum((caller.ends for caller in callers), Counter())),
        unanswered=[line for caller in callers for line in caller.unanswered],
        memory_mb=memory.samples_mb,
        left=left,
        elapsed_s=elapsed_s,
    )


class _MemorySampler:
    """Notes the server's memory in a thread of its own, at least once at either end."""

    def __init__(self, server: ServerProcess) -> None:
        self.samples_mb: list[float] = []
        self._server = server
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> "_MemorySampler":
        self.samples_mb.append(self._server.rss_mb())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.samples_mb.append(self._server.rss_mb())

    def _sample(self) -> None:
        while not self._is_over.wait(_SAMPLE_EACH_S):
            self.samples_mb.append(self._server.rss_mb())


def _connect(server: ServerProcess) -> grpc.Channel:
    return grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)])


def _usual_s(channel: grpc.Channel, requests: wire.Requests) -> float:
    method = channel.unary_unary(wire.TRANSLATE)
    times = []
    for index in range(_NUM_USUAL):
        began_s = time.monotonic()
        method(requests.unary(index), timeout=60)
        times.append(time.monotonic() - began_s)
    return median(times)


def _run(callers: Sequence[Caller], plan: Iterator[PlannedCall]) -> None:
    """Let all callers make the calls of a plan, whoever is free the next."""
    lock = threading.Lock()

    def make_calls(caller: Caller) -> None:
        while True:
            with lock:
                planned = next(plan, None)
            if planned is None:
                return
            caller.make(planned)

    with ThreadPoolExecutor(len(callers)) as pool:
        list(pool.map(make_calls, callers))
