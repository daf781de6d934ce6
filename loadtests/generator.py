"""Offers load from this process: calls at random moments whatever became of those before, or callers who wait.

Sent by gRPC's own threads as bytes made beforehand, not by Locust, which can do more and takes three times the
processor time: 1.9 ms a call instead of 0.6 (100 calls/s, on two cores that a server kept busy). A generator shares
the cores with a server on the same machine; at 200 calls/s that would take a fifth of two cores from it.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from loadtests.arrivals import poisson
from loadtests.client import Client
from loadtests.records import CallRecord, Summary, summarize
from loadtests.target import Target
from loadtests.wire import Outcome
from loadtests.workload import PlannedCall, Workload

_NUM_WAITING_CALLERS: Final = 32
"""Of a closed loop: enough to fill the batches of all streams."""

_NUM_CHANNELS: Final = 4
_PATIENCE_S: Final = 60.0
"""Deadline of calls in a closed loop, and what a call may take beyond its deadline."""
_WARM_UP_S: Final = 1.5
"""In which calls come that do not count."""
_RETRY_S: Final = 0.1
"""After which a caller who waits repeats a call that was rejected."""
_NUM_CALLS: Final = 256
"""Different ones of a closed loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """Offers the calls of one workload to one server: a `loadtests.capacity.System`.

    Raises ConnectionError if the server cannot be reached, TimeoutError if calls do not end long after their deadline.
    """

    target: Target
    workload: Workload

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        """Have calls arrive at random moments (Poisson), the same for the same seed; summarise those after warm-up.

        Raises RuntimeError if not one call comes.
        """
        arrivals = poisson(rate_per_s).times(_WARM_UP_S + duration_s, seed)
        calls = list(itertools.islice(self.workload.calls(seed), len(arrivals)))
        cpu_s = time.process_time()
        with self.connect() as client:
            began_s, records = open_loop(client, calls, arrivals)
        cpu_s = time.process_time() - cpu_s
        counted = [record for record in records if record.planned_s >= began_s + _WARM_UP_S]
        if not counted:
            raise RuntimeError(f"not one call came within {duration_s:g} s at {rate_per_s:g} calls/s")
        share = len(counted) / len(records)
        return summarize(counted, duration_s=duration_s, generator_cpu_s=share * cpu_s)

    def throughput_per_s(
        self, *, duration_s: float, num_callers: int = _NUM_WAITING_CALLERS, warm_up_s: float = _WARM_UP_S
    ) -> float:
        """Return the calls answered in a second, after warm-up, for callers who wait for each answer.

        They neither leave nor have a short deadline. Raises RuntimeError if a call fails, or none is answered.
        """
        calls = itertools.islice(self.workload.calls(0), _NUM_CALLS)
        patient = itertools.cycle([replace(call, timeout_s=_PATIENCE_S, leave_after_s=None) for call in calls])
        with self.connect() as client:
            began_s, total_s = time.monotonic(), warm_up_s + duration_s
            records = closed_loop(
                client, patient, num_callers=num_callers, began_s=began_s, total_s=total_s, retry_s=_RETRY_S
            )
        failed = [record.status for record in records if record.outcome not in {Outcome.ANSWERED, Outcome.REJECTED}]
        if failed:
            raise RuntimeError(f"{len(failed)} calls of callers who wait failed, the first with {failed[0]}")
        answered = [record.ended_s - began_s for record in records if record.outcome is Outcome.ANSWERED]
        if not answered:
            raise RuntimeError(f"no call of callers who wait was answered: {records[-1].status}")
        return sum(warm_up_s <= ended_s < total_s for ended_s in answered) / duration_s

    def connect(self) -> Client:
        """Return a client whose connections stand; to be closed."""
        return Client(self.target.address, self.target.access, num_channels=_NUM_CHANNELS)


def closed_loop(
    client: Client,
    calls: Iterator[PlannedCall],
    *,
    num_callers: int,
    began_s: float,
    total_s: float,
    retry_s: float = 0.0,
) -> list[CallRecord]:
    """Let callers make calls, each the next one when the one before has ended, until the time is over.

    Who is rejected pauses for `retry_s`. `began_s` is on `time.monotonic()`. Raises TimeoutError if a call does not end
    long after its deadline.
    """
    free = threading.Semaphore(num_callers)

    def release(record: CallRecord) -> None:
        if retry_s and record.outcome is Outcome.REJECTED:
            threading.Timer(retry_s, free.release).start()
        else:
            free.release()

    def due() -> Iterator[tuple[PlannedCall, float]]:
        for call in calls:
            _acquire(free, call.timeout_s + _PATIENCE_S)
            due_s = max(began_s, time.monotonic())
            if due_s >= began_s + total_s:
                return
            yield call, due_s

    return _send(client, due(), release)


def open_loop(
    client: Client, calls: Sequence[PlannedCall], arrivals: Sequence[float], *, began_s: float | None = None
) -> tuple[float, list[CallRecord]]:
    """Make a call at each arrival, whatever becomes of those before; return when it began, and the records.

    Arrivals are seconds from the start, ascending; `began_s` is the start on `time.monotonic()`, None: now. Raises
    TimeoutError if calls do not end long after their deadline.
    """
    start_s = time.monotonic() if began_s is None else began_s
    due = zip(calls, (start_s + arrival_s for arrival_s in arrivals), strict=True)
    return start_s, _send(client, due, lambda _: None)


def _send(
    client: Client, due: Iterable[tuple[PlannedCall, float]], on_end: Callable[[CallRecord], None]
) -> list[CallRecord]:
    """Begin each call when it is due; return what became of them when all have ended."""
    records, ended = list[CallRecord](), threading.Semaphore(0)

    def note(record: CallRecord) -> None:
        records.append(record)
        on_end(record)
        ended.release()

    num_begun, until_s = 0, 0.0
    for call, due_s in due:
        time.sleep(max(0.0, due_s - time.monotonic()))
        client.begin(call, due_s, note)
        num_begun, until_s = num_begun + 1, max(until_s, due_s + call.timeout_s + _PATIENCE_S)
    for _ in range(num_begun):
        _acquire(ended, until_s - time.monotonic())
    return records


def _acquire(semaphore: threading.Semaphore, patience_s: float) -> None:
    if not semaphore.acquire(timeout=max(0.0, patience_s)):
        raise TimeoutError(f"the server has not answered for {_PATIENCE_S:g} s")
