"""How much of each fault is done: everything, or a little of everything for continuous integration."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Counts and seconds, all of them bounds: every fault ends by itself."""

    num_failing_runs: int
    """Runs of the network that fail, in each of two ways and two places."""

    hang_s: float
    num_logged_calls: int
    """Calls whose log lines nobody can write; a line has some 400 bytes."""

    stop_s: float = 5.0
    """For which the process is stopped."""

    clock_jump_s: float = 3600.0
    num_readers: int
    """Callers who never read their streams."""

    reading_timeout_s: float
    """Their deadline."""

    num_connections: int
    """Opened and dropped."""

    num_slow: int
    """Connections at a time that send a byte now and then."""

    slow_s: float
    num_metadata: int
    """Calls with more metadata than the server takes."""

    num_large: int
    num_pings: int
    num_resets: int
    """Calls that are cancelled as soon as they are sent."""

    num_garbage: int
    """Connections that send what is no gRPC."""


FULL: Final = Scale(
    num_failing_runs=10,
    hang_s=8.0,
    num_logged_calls=2000,
    num_readers=32,
    reading_timeout_s=10.0,
    num_connections=10_000,
    num_slow=400,
    slow_s=20.0,
    num_metadata=200,
    num_large=40,
    num_pings=20_000,
    num_resets=10_000,
    num_garbage=1300,
)

SHORT: Final = Scale(
    num_failing_runs=2,
    hang_s=2.0,
    num_logged_calls=50,
    num_readers=6,
    reading_timeout_s=2.0,
    num_connections=800,
    num_slow=100,
    slow_s=3.0,
    num_metadata=20,
    num_large=4,
    num_pings=2000,
    num_resets=800,
    num_garbage=160,
)

SCALES: Final = {"short": SHORT, "full": FULL}
