"""Offers load to a server that runs already from processes of their own, watches it meanwhile, gathers every call."""

import gc
import itertools
import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from loadtests.arrivals import Arrivals, make_schedule
from loadtests.client import Client
from loadtests.generator import closed_loop, open_loop
from loadtests.records import CallRecord, Summary, summarize, write_records
from loadtests.sampler import Sample, Sampler
from loadtests.target import Target
from loadtests.workload import PlannedCall, Workload

CLOSED: Final = "closed"
"""In place of arrivals: users who wait for their answers."""

RECORDS_NAME: Final = "calls.jsonl"
"""Every call of a run, its warm-up included."""

MAX_PROCESSES: Final = 64
_MAX_S: Final = 86_400
_CONNECT_S: Final = 20.0
_PREPARE_S: Final = 120.0
"""Most seconds until all processes have made their calls."""
_LEAD_S: Final = 0.2
"""Between the moment in which all processes are ready and the start."""


class LoadError(Exception):
    """The load could not be offered, so that nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is offered."""

    workload: Workload
    arrivals: Arrivals | None
    """Of the calls of all processes together; None: a closed loop, whose users wait for their answers."""

    num_users: int = 1
    """Of the closed loop."""

    duration_s: float
    """Of what is measured."""

    warm_up_s: float = 0.0
    """Before it, at the same rate."""

    seed: int = 1
    num_processes: int = 1
    """That send; each makes its share of one schedule."""

    def __post_init__(self) -> None:
        """Check what a type cannot say.

        Raises:
            ValueError: naming the field and what it must be.
        """
        if not 0 < self.duration_s <= _MAX_S or not 0 <= self.warm_up_s <= _MAX_S:
            seconds = f"{self.warm_up_s:g} s to warm up and {self.duration_s:g} s"
            raise ValueError(f"{seconds}: expected up to {_MAX_S}, the second above 0")
        if not 1 <= self.num_processes <= MAX_PROCESSES:
            raise ValueError(f"{self.num_processes} processes: expected 1 to {MAX_PROCESSES}")
        if not self.num_processes <= self.num_users <= 10_000 and self.arrivals is None:
            raise ValueError(f"{self.num_users} users: expected at least one for each process, at most 10000")

    @property
    def total_s(self) -> float:
        """In which calls are made."""
        return self.warm_up_s + self.duration_s

    def schedule(self, index: int) -> tuple[list[PlannedCall], list[float]]:
        """Return the calls of one of the processes and when they arrive, in seconds from the start."""
        if self.arrivals is None:
            return [], []
        calls = self.workload.calls(self.seed)
        whole = make_schedule(self.arrivals, warm_up_s=self.warm_up_s, duration_s=self.duration_s, seed=self.seed)
        share = whole[index :: self.num_processes]
        return [calls.call(one.number, method=one.method) for one in share], [one.offset_s for one in share]

    def endless_calls(self, index: int) -> Iterator[PlannedCall]:
        """Return the calls of the users of one of the processes."""
        return map(self.workload.calls(self.seed).call, itertools.count(index, self.num_processes))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What became of it."""

    records: Sequence[CallRecord]
    """Of the measured time, in the order in which they were planned."""

    warm_up_records: Sequence[CallRecord]
    samples: Sequence[Sample]
    """The server's metrics over time, warm-up included."""

    began_s: float
    """When the measured time began, on `time.monotonic()`."""

    duration_s: float
    generator_cpu_s: float
    """Processor time of all sending processes while they sent, warm-up included."""

    def summary(self) -> Summary:
        """Return the figures of the measured time.

        Raises:
            ValueError: if not one call was planned in it.
        """
        return summarize(self.records, duration_s=self.duration_s, generator_cpu_s=self.generator_cpu_s)


def offer(target: Target, load: Load, *, directory: Path, pids: Sequence[int] = ()) -> LoadResult:
    """Offer load and wait until every call has ended.

    Args:
        target: a server that answers calls.
        load: what is offered.
        directory: gets `calls.jsonl` with every call, in place of that of an earlier run.
        pids: processes of this machine that make up the server, whose processor time and memory are sampled.

    Raises:
        LoadError: if a sending process fails.
    """
    context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    start = context.Value("d", 0.0)
    ready = context.Barrier(load.num_processes, partial(_set_start, start))
    with (
        Sampler(target.metrics_url, pids) as sampler,
        ProcessPoolExecutor(
            load.num_processes, mp_context=context, initializer=_join, initargs=(start, ready)
        ) as processes,
    ):
        futures = [
            processes.submit(_send, target.address, target.access, load, index) for index in range(load.num_processes)
        ]
        _show_progress(futures, load.total_s)
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:  # those that waited for a process that failed say nothing of it
            error = next((one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0])
            raise LoadError(f"{target.address}: {error or type(error).__name__}") from error
        ended = [future.result() for future in futures]
        began_s = start.value + load.warm_up_s
    records = sorted((record for share, _ in ended for record in share), key=lambda record: record.planned_s)
    write_records(directory / RECORDS_NAME, records)
    return LoadResult(
        records=[record for record in records if record.planned_s >= began_s],
        warm_up_records=[record for record in records if record.planned_s < began_s],
        samples=sampler.samples,
        began_s=began_s,
        duration_s=load.duration_s,
        generator_cpu_s=sum(cpu_s for _, cpu_s in ended),
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
        client = Client(address, access)
        client.wait_until_ready(_CONNECT_S)
        calls, arrivals = load.schedule(index)
        users = load.endless_calls(index)
        gc.collect()
        gc.freeze()  # what has been made stays, and need not be looked at while calls are sent
        ready.wait(_PREPARE_S)
    except BaseException:
        ready.abort()
        raise
    began_s, cpu_s = _shared["start"].value, time.process_time()
    with client:
        if load.arrivals is None:
            num_users = len(range(index, load.num_users, load.num_processes))
            records = closed_loop(client, users, num_callers=num_users, began_s=began_s, total_s=load.total_s)
        else:
            _, records = open_loop(client, calls, arrivals, began_s=began_s)
    return records, time.process_time() - cpu_s


def _show_progress(futures: Sequence["Future[Any]"], total_s: float) -> None:
    began_s = time.monotonic()
    with tqdm(total=round(total_s), unit="s", desc="load", disable=None, leave=False) as bar:
        while wait(futures, timeout=0.5).not_done:
            bar.update(min(round(total_s), int(time.monotonic() - began_s)) - bar.n)
