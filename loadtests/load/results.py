"""Results of a Locust test: figures of thresholds from Locust's statistics, and the reasons that fail a test."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from loadtests.generator.calls import Outcome
from loadtests.generator.metrics import CPU_SECONDS, RESIDENT_BYTES, Sample
from loadtests.generator.slo import Slo

_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_FAILED: Final = (Outcome.REJECTED, Outcome.LATE, Outcome.ERROR)
_PREFIX: Final = re.compile(rf"({'|'.join(outcome.value for outcome in _FAILED)}): ")
_BYTES_PER_MIB: Final = 2**20


def count_outcomes(statistics: Any) -> Counter[Outcome]:
    """Return the number of calls by outcome; messages of failures start with the outcome.

    Only accepted calls have a response time. A call that its user cancels as planned does not count as a failure.
    """
    counts = Counter[Outcome]()
    for failure in statistics.errors.values():
        match = _PREFIX.search(str(failure.error))
        counts[Outcome(match[1]) if match else Outcome.ERROR] += failure.occurrences
    num_untimed_failures = counts[Outcome.REJECTED] + counts[Outcome.ERROR]
    counts[Outcome.LEFT] = max(0, statistics.total.num_none_requests - num_untimed_failures)
    counts[Outcome.ANSWERED] = statistics.total.num_requests - counts.total()
    return counts


def figures_of(statistics: Any) -> dict[str, float | None]:
    """Return the figures of thresholds.

    Latencies are in seconds, `goodput/s` in calls per second, the rest are shares of the calls.
    """
    total, counts = statistics.total, count_outcomes(statistics)
    offered, answered = max(1, counts.total()), counts[Outcome.ANSWERED]
    has_latency = bool(total.response_times)
    latencies = {
        name: total.get_response_time_percentile(share) / 1000 if has_latency else None
        for name, share in _PERCENTILES.items()
    }
    seconds = (total.last_request_timestamp or 0.0) - total.start_time
    return {
        **latencies,
        "max": total.max_response_time / 1000 if has_latency else None,
        "goodput": answered / max(1, counts.total() - counts[Outcome.LEFT]),
        "goodput/s": answered / max(1.0, seconds),
        "rejected": counts[Outcome.REJECTED] / offered,
        "late": counts[Outcome.LATE] / offered,
        "errors": counts[Outcome.ERROR] / offered,
    }


def violations(
    statistics: Any, *, slo: Slo | None, lag_ms: float, max_lag_ms: float, num_lost_workers: int = 0
) -> list[str]:
    """Return a sentence for each reason that a test fails."""
    num_calls = statistics.total.num_requests
    conditions = {
        "no call was made": num_calls > 0,
        f"generator lag at p99 is {lag_ms:.0f} ms, limit {max_lag_ms:g}: the run is invalid": lag_ms <= max_lag_ms,
        f"{num_lost_workers} workers were lost": not num_lost_workers,
    }
    failed = [sentence for sentence, holds in conditions.items() if not holds]
    return failed + (slo.violations(figures_of(statistics)) if slo and num_calls else [])


def server_figures(samples: Sequence[Sample]) -> dict[str, str]:
    """Return figures of the server between the first and the last sample; empty without two."""
    known = [sample for sample in samples if sample.values]
    if len(known) < 2:
        return {}
    first, last = known[0], known[-1]

    def growth(name: str) -> float:
        return last.total(name) - first.total(name)

    seconds = last.at_s - first.at_s
    segments, steps = growth("dragoman_batch_segments_sum"), growth("dragoman_batch_segments_count")
    return {
        "server_tokens_per_s": f"{growth('dragoman_target_tokens_total') / seconds:.0f}",
        "server_segments_per_step": f"{segments / max(1.0, steps):.1f}",
        "server_cpu_cores": f"{growth(CPU_SECONDS) / seconds:.2f}",
        "server_memory_mib": f"{last.total(RESIDENT_BYTES) / _BYTES_PER_MIB:.0f}",
    }
