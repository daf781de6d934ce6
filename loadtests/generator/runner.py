"""Offers load to a server from this process, or from several while the server is sampled.

Calls are serialized before they are sent, and gRPC's own threads send them: 0.6 ms of CPU time per call, compared with
1.9 ms for Locust (100 calls/s, two cores shared with the server).
"""

import gc
import itertools
import multiprocessing
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from tqdm import tqdm

from loadtests.generator.arrivals import Arrivals, make_schedule, poisson
from loadtests.generator.calls import Outcome
from loadtests.generator.client import CONNECT_TIMEOUT_S, MAX_OVERRUN_S, NUM_CHANNELS, Client
from loadtests.generator.metrics import Sample, sampling
from loadtests.generator.records import CallRecord, Summary, summarize
from loadtests.generator.server import Target
from loadtests.generator.workload import Workload

_NUM_USERS: Final = 32  # of a closed loop; enough to fill the batches of all workers
_RETRY_S: Final = 0.1  # pause of a rejected user
_PREPARE_TIMEOUT_S: Final = 120.0  # until all processes have prepared their calls
_LEAD_S: Final = 0.2  # from the moment when all processes are ready to the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The offered load: calls to warm up, then measured calls at the same rate."""

    workload: Workload
    arrivals: Arrivals | None = None  # of all processes together; None: a closed loop of users
    num_users: int = 1  # of the closed loop
    retry_s: float = 0.0  # pause of a rejected user
    duration_s: float
    warm_up_s: float = 0.0
    seed: int = 1
    num_processes: int = 1

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

    def latencies_ms(self) -> dict[str, list[tuple[float, float]]]:
        """Return scheduled time in seconds and latency of each call, by outcome."""
        points = defaultdict[str, list[tuple[float, float]]](list)
        for one in self.records:
            points[one.outcome.value].append((one.planned_s - self.began_s, 1000 * one.latency_s))
        return points


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
            arrivals=poisson(rate_per_s),
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


def offer(target: Target, load: Load, *, pids: Sequence[int] = ()) -> Run:
    """Offer load from processes of its own, sample the server, and wait until every call has ended.

    Raises RuntimeError if a process fails, ValueError if no call was scheduled in the measured time.
    """
    context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    start = context.Value("d", 0.0)
    ready = context.Barrier(load.num_processes, partial(_set_start, start))
    with (
        sampling(target.metrics_url, pids) as samples,
        ProcessPoolExecutor(
            load.num_processes, mp_context=context, initializer=_join, initargs=(start, ready)
        ) as processes,
    ):
        futures = [
            processes.submit(_send_together, replace(target, process=None), load, index)
            for index in range(load.num_processes)
        ]
        with tqdm(total=load.total_s, unit="s", desc="load", disable=None, leave=False) as bar:
            while wait(futures, timeout=0.5).not_done:
                bar.update(min(0.5, load.total_s - bar.n))
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:  # a broken barrier only follows the failure of another process
            error = next((one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0])
            raise RuntimeError(str(error) or type(error).__name__) from error
        ended = [future.result() for future in futures]
    records = sorted((record for _, share, _ in ended for record in share), key=lambda record: record.planned_s)
    return _run(load, start.value, records, sum(cpu_s for *_, cpu_s in ended), samples)


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


_shared: dict[str, Any] = {}  # of a sending process: start of the schedule, barrier of all processes


def _join(start: Any, ready: Any) -> None:
    _shared.update(start=start, ready=ready)


def _set_start(start: Any) -> None:
    start.value = time.monotonic() + _LEAD_S


def _send_together(target: Target, load: Load, index: int) -> tuple[float, list[CallRecord], float]:
    """Send as one of several processes once all are ready; a failure releases the others."""

    def wait_for_others() -> float:
        gc.collect()
        gc.freeze()  # prepared calls need no garbage collection
        _shared["ready"].wait(_PREPARE_TIMEOUT_S)
        return float(_shared["start"].value)

    try:
        return _send(target, load, index, wait_to_start=wait_for_others)
    except BaseException:
        _shared["ready"].abort()
        raise


def _send(
    target: Target, load: Load, index: int = 0, *, wait_to_start: Callable[[], float] = time.monotonic
) -> tuple[float, list[CallRecord], float]:
    """Send the calls of one process; return start, records and CPU time."""
    calls = load.workload.calls(load.seed)
    times = {"warm_up_s": load.warm_up_s, "duration_s": load.duration_s}
    schedule = make_schedule(load.arrivals, **times, seed=load.seed) if load.arrivals else []
    share = [(calls.call(one.number, method=one.method), one.offset_s) for one in schedule[index :: load.num_processes]]
    with Client(target, num_channels=NUM_CHANNELS, connect_timeout_s=CONNECT_TIMEOUT_S) as client:
        start_s, cpu_s = wait_to_start(), time.process_time()
        if load.arrivals is None:
            users = range(index, load.num_users, load.num_processes)
            endless = map(calls.call, itertools.count(index, load.num_processes))
            until = {"began_s": start_s, "total_s": load.total_s}
            records = client.closed_loop(len(users), endless, **until, retry_s=load.retry_s)
        else:
            records = client.send((call, start_s + offset_s) for call, offset_s in share)
    return start_s, records, time.process_time() - cpu_s
