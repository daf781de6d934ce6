"""Offers load to a server that runs already: from this process, or from some of its own while the server is watched.

Calls are sent by gRPC's own threads as bytes made beforehand, not by Locust, which can do more and takes three times
the processor time: 1.9 ms a call instead of 0.6 (100 calls/s, on two cores that a server kept busy). A generator shares
the cores with a server on the same machine; at 200 calls/s that would take a fifth of two cores from it.
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
from loadtests.generator.client import PATIENCE_S, Client
from loadtests.generator.records import CallRecord, Summary, summarize
from loadtests.generator.metrics import Sample, sampling
from loadtests.generator.server import Target
from loadtests.generator.calls import Outcome
from loadtests.generator.workload import Workload

_NUM_WAITING_CALLERS: Final = 32  # enough to fill the batches of all streams
_RETRY_S: Final = 0.1  # after which a caller of a `Generator` who was rejected makes the next call
_PREPARE_S: Final = 120.0  # most seconds until all processes have made their calls
_LEAD_S: Final = 0.2  # between the moment in which all processes are ready and the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is offered: calls for the time that is measured, and before it to warm up, at the same rate."""

    workload: Workload
    arrivals: Arrivals | None = None
    """Of the calls of all processes together; None: a closed loop, whose users wait for their answers."""

    num_users: int = 1  # of the closed loop
    retry_s: float = 0.0  # for which a user whose call was rejected pauses
    duration_s: float
    warm_up_s: float = 0.0
    seed: int = 1
    num_processes: int = 1  # that send; each makes its share of one schedule

    @property
    def total_s(self) -> float:
        """In which calls are made."""
        return self.warm_up_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What became of a load."""

    load: Load
    records: Sequence[CallRecord]  # of the measured time, in the order in which they were planned
    warm_up_records: Sequence[CallRecord]
    samples: Sequence[Sample]  # the server's metrics over time, warm-up included
    began_s: float  # when the measured time began, on `time.monotonic()`
    summary: Summary  # of the measured time; the processor time of the generator is shared out by the number of calls

    def latencies_ms(self) -> dict[str, list[tuple[float, float]]]:
        """Return when each call should have come, in seconds, and its latency, by what became of it."""
        points = defaultdict[str, list[tuple[float, float]]](list)
        for one in self.records:
            points[one.outcome.value].append((one.planned_s - self.began_s, 1000 * one.latency_s))
        return points


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """Offers the calls of one workload to one server from this process: a `loadtests.capacity.System`.

    Raises ConnectionError if the server cannot be reached, TimeoutError if calls do not end long after their deadline.
    """

    target: Target
    workload: Workload
    warm_up_s: float = 1.5  # in which calls come that do not count

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        """Have calls arrive at random moments (Poisson), the same for the same seed; summarise those after warm-up.

        Raises ValueError if not one call comes.
        """
        times: dict[str, Any] = {"warm_up_s": self.warm_up_s, "duration_s": duration_s}
        load = Load(workload=self.workload, arrivals=poisson(rate_per_s), **times, seed=seed)
        return _run(load, *_send(self.target, load)).summary

    def throughput_per_s(self, *, duration_s: float, num_callers: int = _NUM_WAITING_CALLERS) -> float:
        """Return the calls answered in a second, after warm-up, for callers who wait for each answer.

        They neither leave nor have a short deadline. Raises RuntimeError if a call fails, or none is answered.
        """
        patient = replace(self.workload, deadline_s=PATIENCE_S, leaving=0.0)
        times: dict[str, Any] = {"warm_up_s": self.warm_up_s, "duration_s": duration_s}
        load = Load(workload=patient, num_users=num_callers, retry_s=_RETRY_S, **times)
        began_s, records, _ = _send(self.target, load)
        failed = [record.status for record in records if record.outcome not in {Outcome.ANSWERED, Outcome.REJECTED}]
        if failed:
            raise RuntimeError(f"{len(failed)} calls of callers who wait failed, the first with {failed[0]}")
        answered = [record.ended_s - began_s for record in records if record.outcome is Outcome.ANSWERED]
        if not answered:
            raise RuntimeError(f"no call of callers who wait was answered: {records[-1].status}")
        return sum(self.warm_up_s <= ended_s < load.total_s for ended_s in answered) / duration_s


def offer(target: Target, load: Load, *, pids: Sequence[int] = ()) -> Run:
    """Offer load and wait until every call has ended; sample the server, and those of its processes that are known.

    Raises:
        RuntimeError: if a sending process fails.
        ValueError: if not one call was planned in the measured time.
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
        if errors:  # those that waited for a process that failed say nothing of it
            error = next((one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0])
            raise RuntimeError(str(error) or type(error).__name__) from error
        ended = [future.result() for future in futures]
    records = sorted((record for _, share, _ in ended for record in share), key=lambda record: record.planned_s)
    return _run(load, start.value, records, sum(cpu_s for *_, cpu_s in ended), samples)


def _run(
    load: Load, start_s: float, records: Sequence[CallRecord], cpu_s: float, samples: Sequence[Sample] = ()
) -> Run:
    """Tell the calls that are measured from those that warm up."""
    began_s = start_s + load.warm_up_s
    measured = [record for record in records if record.planned_s >= began_s]
    cpu_s *= len(measured) / max(1, len(records))
    return Run(
        load=load,
        records=measured,
        warm_up_records=[record for record in records if record.planned_s < began_s],
        samples=samples,
        began_s=began_s,
        summary=summarize(measured, duration_s=load.duration_s, generator_cpu_s=cpu_s),
    )


_shared: dict[str, Any] = {}
"""Of a sending process: when the schedule starts, and the barrier at which the processes wait for each other."""


def _join(start: Any, ready: Any) -> None:
    _shared.update(start=start, ready=ready)


def _set_start(start: Any) -> None:
    """Let the schedule start soon; one process does so when all are ready. They share one monotonic clock."""
    start.value = time.monotonic() + _LEAD_S


def _send_together(target: Target, load: Load, index: int) -> tuple[float, list[CallRecord], float]:
    """Send as one of several processes, once all are ready; the others do not wait for one that failed."""

    def wait_for_others() -> float:
        gc.collect()
        gc.freeze()  # what has been made stays, and need not be looked at while calls are sent
        _shared["ready"].wait(_PREPARE_S)
        return float(_shared["start"].value)

    try:
        return _send(target, load, index, wait_to_start=wait_for_others)
    except BaseException:
        _shared["ready"].abort()
        raise


def _send(
    target: Target, load: Load, index: int = 0, *, wait_to_start: Callable[[], float] = time.monotonic
) -> tuple[float, list[CallRecord], float]:
    """Make a process's share of the calls; return when it started, what became of them, and the processor time."""
    calls = load.workload.calls(load.seed)
    times = {"warm_up_s": load.warm_up_s, "duration_s": load.duration_s}
    schedule = make_schedule(load.arrivals, **times, seed=load.seed) if load.arrivals else []
    share = [(calls.call(one.number, method=one.method), one.offset_s) for one in schedule[index :: load.num_processes]]
    with Client(target) as client:
        start_s, cpu_s = wait_to_start(), time.process_time()
        if load.arrivals is None:
            users = range(index, load.num_users, load.num_processes)
            endless = map(calls.call, itertools.count(index, load.num_processes))
            until = {"began_s": start_s, "total_s": load.total_s}
            records = client.closed_loop(len(users), endless, **until, retry_s=load.retry_s)
        else:
            records = client.send((call, start_s + offset_s) for call, offset_s in share)
    return start_s, records, time.process_time() - cpu_s
