"""Polling of conditions that no event announces."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_TIMEOUT_S: Final = 60.0  # only reached by a test that would otherwise hang
_POLL_S: Final = 0.01
_LOOP_POLL_S: Final = 0.001


def wait_until(is_reached: Callable[[], T], *, timeout_s: float = _TIMEOUT_S, state: Callable[[], object] = str) -> T:
    """Wait until a condition returns a true value and return it; otherwise fail with `state`, such as a log.

    An OSError counts as false: a program that is starting does not listen yet.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(OSError):
            if value := is_reached():
                return value
        assert time.monotonic() < until_s, f"condition not reached within {timeout_s:g} s\n{state()}"
        time.sleep(_POLL_S)


async def until(holds: Callable[[], bool]) -> None:
    """Poll a condition in the event loop.

    The sleep between polls releases the interpreter lock to the threads of the server; an event loop that yields
    without sleeping takes the lock back before they wake up.
    """
    async with asyncio.timeout(_TIMEOUT_S):
        while not holds():
            await asyncio.sleep(_LOOP_POLL_S)
