"""Offers load to a server: calls at random moments whatever became of those before, or callers who wait.

Sent by gRPC's own threads as bytes made beforehand, not by Locust, which can do more and takes three times the
processor time: 1.9 ms a call instead of 0.6 (100 calls/s, on two cores that a server kept busy). Whoever sends shares
the cores with the server that is measured; at 200 calls/s that would take a fifth of two cores from it.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import grpc
from dragoman.v1 import translation_pb2 as pb

from loadtests import wire
from loadtests.arrivals import Poisson
from loadtests.overload.calls import Caller
from loadtests.overload.phases import closed_loop, open_loop
from loadtests.records import Summary, summarize
from loadtests.workload import Workload

_NUM_CALLERS: Final = 32
"""Who wait: enough to fill the batches of all streams."""
_NUM_REQUESTS: Final = 256
"""Different ones of callers who wait."""
_NUM_PATIENT_CALLERS: Final = 8
"""Who want to know what is said, not how quickly."""
_PATIENT_S: Final = 120.0
_WARM_UP_S: Final = 1.5
"""In which calls come that do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Offers calls of one workload."""

    workload: Workload

    def offer(self, target: str, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        """Have calls arrive at random moments (Poisson), the same for the same seed; summarise those after warm-up.

        Raises:
            RuntimeError: if not one call comes.
            TimeoutError: if calls do not end long after their deadline.
        """
        arrivals = Poisson(rate_per_s).times(_WARM_UP_S + duration_s, seed)
        requests = _requests(self.workload, seed, count=len(arrivals))
        cpu_s = time.process_time()
        with Caller(target, requests) as caller:
            began_s, records = open_loop(
                caller, arrivals, timeout_s=self.workload.deadline_s, each_s=duration_s, tick=lambda _: None
            )
        cpu_s = time.process_time() - cpu_s
        counted = [record for record in records if record.planned_s >= began_s + _WARM_UP_S]
        if not counted:
            raise RuntimeError(f"not one call came within {duration_s:g} s at {rate_per_s:g} calls/s")
        share = len(counted) / len(records)
        return summarize(counted, duration_s=duration_s, generator_cpu_s=share * cpu_s)

    def throughput_per_s(self, target: str, *, duration_s: float) -> float:
        """Return the calls answered in a second for callers who wait for each answer."""
        with Caller(target, _requests(self.workload, 0, count=_NUM_REQUESTS)) as caller:
            return closed_loop(caller, num_open=_NUM_CALLERS, warm_up_s=_WARM_UP_S, duration_s=duration_s)

    def to(self, target: str) -> "SenderTo":
        """Return what offers the same to one server."""
        return SenderTo(sender=self, target=target)

    def answers(self, target: str, *, count: int) -> list[pb.TranslateResponse]:
        """Return the answers to so many different requests, in order; grpc.RpcError if one fails."""
        with grpc.insecure_channel(target) as channel, ThreadPoolExecutor(_NUM_PATIENT_CALLERS) as pool:
            method = channel.unary_unary(wire.TRANSLATE, response_deserializer=pb.TranslateResponse.FromString)
            ask = partial(method, timeout=_PATIENT_S, wait_for_ready=True)
            return list(pool.map(ask, _requests(self.workload, 0, count=count)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderTo:
    """Offers calls of one workload to one server: a `loadtests.capacity.contender.Contender`."""

    sender: Sender
    target: str

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        """See `Sender.offer`."""
        return self.sender.offer(self.target, rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)

    def throughput_per_s(self, *, duration_s: float) -> float:
        """See `Sender.throughput_per_s`."""
        return self.sender.throughput_per_s(self.target, duration_s=duration_s)


def _requests(workload: Workload, seed: int, *, count: int) -> list[bytes]:
    return [call.messages[0] for call in islice(workload.calls(seed), count)]
