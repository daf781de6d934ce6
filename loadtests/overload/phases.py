"""The two phases: what the server can do, found by asking as fast as it answers; then many times that."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from loadtests.overload.calls import Caller
from loadtests.records import CallRecord
from loadtests.wire import Outcome

_PATIENT_S: Final = 60.0
"""Deadline of the calls that find out the capacity: none of them shall be refused for being late."""


def closed_loop(caller: Caller, *, num_open: int, warm_up_s: float, duration_s: float) -> float:
    """Keep so many calls under way; return the calls answered per second once warm.

    Raises:
        TimeoutError: if the server stops answering.
        RuntimeError: if a call fails.
    """
    began_s = time.monotonic()
    until_s = began_s + warm_up_s + duration_s
    while (now_s := time.monotonic()) < until_s:
        caller.send(now_s, timeout_s=_PATIENT_S)
        if not caller.wait_below(num_open, _PATIENT_S):
            raise TimeoutError(f"the server has not answered for {_PATIENT_S:g} s")
    records = caller.wait(_PATIENT_S)
    failed = [record.status for record in records if record.outcome is not Outcome.ANSWERED]
    if failed:
        raise RuntimeError(f"{len(failed)} calls failed while the capacity was measured, the first with {failed[0]}")
    return sum(began_s + warm_up_s <= record.ended_s < until_s for record in records) / duration_s


def open_loop(
    caller: Caller, arrivals: Sequence[float], *, timeout_s: float, each_s: float, tick: Callable[[float], None]
) -> tuple[float, list[CallRecord]]:
    """Send a call at each arrival, whatever becomes of those before; return when it began, and the records.

    Args:
        caller: sends them.
        arrivals: in seconds from the start.
        timeout_s: deadline of each call, from its arrival.
        each_s: how often to call `tick`.
        tick: called with the seconds since the start.
    """
    began_s = time.monotonic()
    next_tick_s = 0.0
    for arrival_s in arrivals:
        if arrival_s >= next_tick_s:
            tick(time.monotonic() - began_s)
            next_tick_s += each_s
        time.sleep(max(0.0, began_s + arrival_s - time.monotonic()))
        caller.send(began_s + arrival_s, timeout_s=timeout_s)
    records = caller.wait(timeout_s + _PATIENT_S)
    tick(time.monotonic() - began_s)
    return began_s, records
