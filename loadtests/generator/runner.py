"""Offers load to a server from this process, for searches and comparisons; Locust offers it in `loadtests.locustfile`.

Calls are planned and serialized before they are sent, and gRPC's own threads send them.
"""

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from tqdm import tqdm

from loadtests.generator.calls import Outcome
from loadtests.generator.client import CONNECT_TIMEOUT_S, MAX_OVERRUN_S, NUM_CHANNELS, Client
from loadtests.generator.metrics import Sample, sampling
from loadtests.generator.records import CallRecord, Summary, summarize
from loadtests.generator.server import Target
from loadtests.generator.workload import Workload

_NUM_USERS: Final = 32  # of a closed loop; enough to fill the batches of all workers
_MAX_RATE_PER_S: Final = 100_000.0  # more calls would fill the memory
_RETRY_S: Final = 0.1  # pause of a rejected user


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The offered load: calls to warm up, then measured calls at the same rate."""

    workload: Workload
    rate_per_s: float | None = None  # of Poisson arrivals; None: a closed loop of users
    num_users: int = 1  # of the closed loop
    retry_s: float = 0.0  # pause of a rejected user
    duration_s: float
    warm_up_s: float = 0.0
    seed: int = 1

    @property
    def total_s(self) -> float:
        """Warm-up and measured time."""
        return self.warm_up_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of a load."""

    load: Load
    records: Sequence[CallRecord]  # of the measured time, in the order of their scheduled times
    warm_up_records: Sequence[CallRecord]
    samples: Sequence[Sample]  # warm-up included
    began_s: float  # start of the measured time, on `time.monotonic()`
    summary: Summary  # of the measured time


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """Offers a workload to a server from this process.

    Raises ConnectionError if the server cannot be reached, TimeoutError if calls do not end long after their deadline.
    """

    target: Target
    workload: Workload
    warm_up_s: float = 1.5

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        """Offer Poisson arrivals; return the figures after the warm-up. Raises ValueError without calls."""
        load = Load(
            workload=self.workload,
            rate_per_s=rate_per_s,
            warm_up_s=self.warm_up_s,
            duration_s=duration_s,
            seed=seed,
        )
        return _run(load, *_send(self.target, load)).summary

    def throughput_per_s(self, *, duration_s: float, num_users: int = _NUM_USERS) -> float:
        """Return the calls per second of a closed loop after the warm-up, without cancellations and short deadlines.

        Raises RuntimeError if a call fails, or none is answered.
        """
        patient = replace(self.workload, deadline_s=MAX_OVERRUN_S, leaving=0.0)
        times: dict[str, Any] = {"warm_up_s": self.warm_up_s, "duration_s": duration_s}
        load = Load(workload=patient, num_users=num_users, retry_s=_RETRY_S, **times)
        began_s, records, _ = _send(self.target, load)
        failed = [record.status for record in records if record.outcome not in {Outcome.ANSWERED, Outcome.REJECTED}]
        if failed:
            raise RuntimeError(f"{len(failed)} calls of the closed loop failed, the first with {failed[0]}")
        answered = [record.ended_s - began_s for record in records if record.outcome is Outcome.ANSWERED]
        if not answered:
            raise RuntimeError(f"no call of the closed loop was answered: {records[-1].status}")
        return sum(self.warm_up_s <= ended_s < load.total_s for ended_s in answered) / duration_s


def poisson_times(rate_per_s: float, duration_s: float, seed: int) -> list[float]:
    """Return arrival times of independent callers in seconds, ascending, at least 0 and below the duration.

    Raises ValueError if the rate is out of range, or the duration is not positive and finite.
    """
    if not (0 < rate_per_s <= _MAX_RATE_PER_S and 0 < duration_s < math.inf):
        raise ValueError(f"{rate_per_s:g} calls/s for {duration_s:g} s: expected 0 to {_MAX_RATE_PER_S:g}, finite")
    generator = np.random.default_rng(seed % 2**64)
    times = generator.uniform(0.0, duration_s, generator.poisson(rate_per_s * duration_s))
    return [float(at_s) for at_s in np.sort(times)]


def schedule(load: Load) -> list[float]:
    """Return the times of all calls in order, those of the warm-up first; empty for a closed loop."""
    if load.rate_per_s is None:
        return []
    warm_up = poisson_times(load.rate_per_s, load.warm_up_s, load.seed + 1) if load.warm_up_s > 0 else []
    measured = poisson_times(load.rate_per_s, load.duration_s, load.seed)
    return [*warm_up, *(load.warm_up_s + at_s for at_s in measured)]


def offer(target: Target, load: Load, *, pids: Sequence[int] = ()) -> Run:
    """Offer load while the server is sampled, and wait until every call has ended.

    Raises ConnectionError if the server cannot be reached, TimeoutError if calls do not end long after their deadline,
    ValueError if no call was scheduled in the measured time.
    """
    with sampling(target.metrics_url, pids) as samples:
        sent = _send(target, load)
    return _run(load, *sent, samples)


def _run(
    load: Load, start_s: float, records: Sequence[CallRecord], cpu_s: float, samples: Sequence[Sample] = ()
) -> Run:
    began_s = start_s + load.warm_up_s
    measured = [record for record in records if record.planned_s >= began_s]
    cpu_s *= len(measured) / max(1, len(records))  # the warm-up takes its share
    return Run(
        load=load,
        records=measured,
        warm_up_records=[record for record in records if record.planned_s < began_s],
        samples=samples,
        began_s=began_s,
        summary=summarize(measured, duration_s=load.duration_s, generator_cpu_s=cpu_s),
    )


def _send(target: Target, load: Load) -> tuple[float, list[CallRecord], float]:
    """Send all calls; return start, records in the order of their scheduled times, and CPU time."""
    calls = load.workload.calls(load.seed)
    planned = [(calls.call(number), offset_s) for number, offset_s in enumerate(schedule(load))]
    gc.collect()
    gc.freeze()  # planned calls need no garbage collection
    with Client(target, num_channels=NUM_CHANNELS, connect_timeout_s=CONNECT_TIMEOUT_S) as client:
        start_s, cpu_s = time.monotonic(), time.process_time()
        if load.rate_per_s is None:
            users = {"began_s": start_s, "total_s": load.total_s, "retry_s": load.retry_s}
            records = client.closed_loop(load.num_users, calls, **users)
        else:
            bar = tqdm(planned, unit="calls", desc="load", disable=None, leave=False)
            records = client.send((call, start_s + offset_s) for call, offset_s in bar)
    return start_s, sorted(records, key=lambda record: record.planned_s), time.process_time() - cpu_s
