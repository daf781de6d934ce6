"""Whether a server is at rest: nothing in flight, queued or decoded."""

import math
import time
from collections.abc import Mapping
from typing import Final

from loadtests.server_process import ServerProcess

_CALLS: Final = ("mt_requests_in_flight", "mt_open_streams")
_SEGMENTS: Final = (
    "mt_queue_segments",
    "mt_queue_tokens",
    "mt_queue_work_tokens",
    "mt_batch_live_segments",
    "mt_batch_live_rows",
)
_STEPS: Final = "mt_decoder_steps_total"
"""Grows as long as anything is in a batch."""
_POLL_S: Final = 0.25


def open_calls(samples: Mapping[str, float]) -> dict[str, float]:
    """Return the gauges of calls that are not 0; a task of the server answers each."""
    return _above_zero(samples, _CALLS)


def held_segments(samples: Mapping[str, float]) -> dict[str, float]:
    """Return the gauges of what waits or is decoded that are not 0."""
    return _above_zero(samples, _SEGMENTS)


def work_left(samples: Mapping[str, float]) -> dict[str, float]:
    """Return the gauges of calls and segments that are not 0: nobody's, once nobody asks."""
    return {**open_calls(samples), **held_segments(samples)}


def wait_for_rest(server: ServerProcess, *, timeout_s: float) -> dict[str, float]:
    """Return what is not at rest soon after the last caller has left: gauges that are not 0, steps still run."""
    until_s = time.monotonic() + timeout_s
    num_steps = math.nan
    while True:
        samples = server.samples()
        left = work_left(samples)
        if samples[_STEPS] != num_steps:
            left[_STEPS] = samples[_STEPS] - num_steps
        if not left or time.monotonic() > until_s:
            return left
        num_steps = samples[_STEPS]
        time.sleep(_POLL_S)


def _above_zero(samples: Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    return {name: value for name, value in samples.items() if value and name.startswith(names)}
