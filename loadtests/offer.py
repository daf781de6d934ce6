"""Offers load to a server that runs already from processes of their own, watches it meanwhile, gathers every call."""

import gc
import itertools
import multiprocessing
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tqdm import tqdm

from loadtests.arrivals import Arrivals, make_schedule
from loadtests.client import Client
from loadtests.generator import closed_loop, open_loop
from loadtests.records import CallRecord, Summary, summarize
from loadtests.sampler import Sample, sampling
from loadtests.target import Target
from loadtests.workload import Workload

_NUM_CHANNELS: Final = 4
"""Of each process; a server admits some hundred calls on each."""
_PREPARE_S: Final = 120.0
"""Most seconds until all processes have made their calls."""
_LEAD_S: Final = 0.2
"""Between the moment in which all processes are ready and the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is offered: calls for the time that is measured, and before it to warm up, at the same rate."""

    workload: Workload
    arrivals: Arrivals | None
    """Of the calls of all processes together; None: a closed loop, whose users wait for their answers."""

    num_users: int = 1
    """Of the closed loop."""

    duration_s: float
    warm_up_s: float = 0.0
    seed: int = 1
    num_processes: int = 1
    """That send; each makes its share of one schedule."""

    @property
    def total_s(self) -> float:
        """In which calls are made."""
        return self.warm_up_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What became of a load."""

    load: Load
    records: Sequence[CallRecord]
    """Of the measured time, in the order in which they were planned."""

    warm_up_records: Sequence[CallRecord]
    samples: Sequence[Sample]
    """The server's metrics over time, warm-up included."""

    began_s: float
    """When the measured time began, on `time.monotonic()`."""

    summary: Summary
    """Of the measured time, but for the processor time of the generator, which is that of the warm-up too."""

    def latencies_ms(self) -> dict[str, list[tuple[float, float]]]:
        """Return when each call should have come, in seconds, and its latency, by what became of it."""
        points = defaultdict[str, list[tuple[float, float]]](list)
        for one in self.records:
            points[one.outcome.value].append((one.planned_s - self.began_s, 1000 * one.latency_s))
        return points


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
            processes.submit(_send, target.address, target.access, load, index) for index in range(load.num_processes)
        ]
        with tqdm(total=load.total_s, unit="s", desc="load", disable=None, leave=False) as bar:
            while wait(futures, timeout=0.5).not_done:
                bar.update(min(0.5, load.total_s - bar.n))
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:  # those that waited for a process that failed say nothing of it
            error = next((one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0])
            raise RuntimeError(str(error) or type(error).__name__) from error
        ended = [future.result() for future in futures]
        began_s = start.value + load.warm_up_s
    records = sorted((record for share, _ in ended for record in share), key=lambda record: record.planned_s)
    measured = [record for record in records if record.planned_s >= began_s]
    cpu_s = sum(cpu_s for _, cpu_s in ended)
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


def _send(address: str, access: Any, load: Load, index: int) -> tuple[list[CallRecord], float]:
    """Make a process's share of the calls; return what became of them, and the processor time."""
    ready = _shared["ready"]
    try:
        client = Client(address, access, num_channels=_NUM_CHANNELS)
        calls = load.workload.calls(load.seed)
        times = {"warm_up_s": load.warm_up_s, "duration_s": load.duration_s}
        schedule = make_schedule(load.arrivals, **times, seed=load.seed) if load.arrivals else []
        share = schedule[index :: load.num_processes]
        planned = [calls.call(one.number, method=one.method) for one in share]
        gc.collect()
        gc.freeze()  # what has been made stays, and need not be looked at while calls are sent
        ready.wait(_PREPARE_S)
    except BaseException:
        ready.abort()
        raise
    began_s, cpu_s = _shared["start"].value, time.process_time()
    with client:
        if load.arrivals is None:
            users = range(index, load.num_users, load.num_processes)
            endless = map(calls.call, itertools.count(index, load.num_processes))
            records = closed_loop(client, endless, num_callers=len(users), began_s=began_s, total_s=load.total_s)
        else:
            _, records = open_loop(client, planned, [one.offset_s for one in share], began_s=began_s)
    return records, time.process_time() - cpu_s
