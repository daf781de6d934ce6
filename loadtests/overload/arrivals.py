"""When calls arrive: as callers who know nothing of each other, and do not wait for answers."""

import random


def poisson_arrivals(rate_per_s: float, duration_s: float, seed: int) -> list[float]:
    """Return the times of arrival, in seconds from the start, with exponential gaps.

    Raises:
        ValueError: if the rate or the duration is not above 0.
    """
    if rate_per_s <= 0 or duration_s <= 0:
        raise ValueError(f"no arrivals at {rate_per_s} calls/s within {duration_s} s")
    generator = random.Random(seed)
    times, at_s = [], generator.expovariate(rate_per_s)
    while at_s < duration_s:
        times.append(at_s)
        at_s += generator.expovariate(rate_per_s)
    return times


def texts_per_call(texts_per_s: float, *, at_least: int, at_most: int, max_calls_per_s: float) -> int:
    """Return how many texts a call must have so that the generator need not send more calls than it can."""
    needed = int(-(-texts_per_s // max_calls_per_s))
    return min(max(needed, at_least), at_most)
