"""Results of a Locust test beyond Locust's statistics: outcomes, lag of the generator, stages, thresholds."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from loadtests.generator.calls import Outcome
from loadtests.generator.records import CallRecord
from loadtests.generator.slo import Slo

_STAGES: Final = ("queue", "encode", "decode", "text")
_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass
class Tally:
    """Counts of calls. Each worker sends its counts to the master, which adds them."""

    outcomes: Counter[str] = field(default_factory=Counter)
    lags_ms: Counter[int] = field(default_factory=Counter)  # number of calls by lag, rounded down
    stages_s: Counter[str] = field(default_factory=Counter)  # total time by stage, of answered calls with stages

    def add(self, call: CallRecord) -> None:
        """Count a call."""
        self.outcomes[call.outcome.value] += 1
        self.lags_ms[int(1000 * call.lag_s)] += 1
        if call.outcome is Outcome.ANSWERED and call.queue_s is not None:
            self.stages_s.update({stage: getattr(call, f"{stage}_s") for stage in _STAGES})
            self.stages_s["calls"] += 1

    def take(self) -> dict[str, dict[Any, float]]:
        """Return the counts and start again from zero."""
        counts = {name: dict(counter) for name, counter in vars(self).items()}
        for counter in vars(self).values():
            counter.clear()
        return counts

    def merge(self, counts: Mapping[str, Mapping[Any, float]]) -> None:
        """Add the counts that `take` returned in a worker."""
        for name, counter in counts.items():
            getattr(self, name).update(counter)

    def lag_ms(self, share: float) -> float:
        """Return a nearest-rank percentile of the lag; 0 without calls."""
        rank = math.ceil(share * self.lags_ms.total())
        for lag_ms in sorted(self.lags_ms):
            rank -= self.lags_ms[lag_ms]
            if rank <= 0:
                return lag_ms
        return 0.0

    def figures(self, statistics: Any) -> dict[str, float | None]:
        """Return the figures of thresholds, from these counts and Locust's statistics of all accepted calls.

        Latencies are in seconds, `goodput/s` in calls per second, the rest are shares of the calls.
        """
        offered = self.outcomes.total()
        has_latency = bool(statistics.response_times)
        latencies = {
            name: statistics.get_response_time_percentile(share) / 1000 if has_latency else None
            for name, share in _PERCENTILES.items()
        }
        seconds = (statistics.last_request_timestamp or 0.0) - statistics.start_time
        answered = self.outcomes[Outcome.ANSWERED.value]
        return {
            **latencies,
            "max": statistics.max_response_time / 1000 if has_latency else None,
            "goodput": answered / max(1, offered - self.outcomes[Outcome.LEFT.value]),
            "goodput/s": answered / max(1.0, seconds),
            "rejected": self.outcomes[Outcome.REJECTED.value] / max(1, offered),
            "late": self.outcomes[Outcome.LATE.value] / max(1, offered),
            "errors": self.outcomes[Outcome.ERROR.value] / max(1, offered),
        }

    def stage_means_ms(self) -> dict[str, float]:
        """Return the mean time of answered calls in each stage of the server."""
        count = self.stages_s["calls"]
        return {stage: 1000 * self.stages_s[stage] / count for stage in _STAGES} if count else {}


def violations(
    tally: Tally, statistics: Any, *, slo: Slo | None, max_lag_ms: float, lost_workers: Iterable[str] = ()
) -> list[str]:
    """Return a sentence for each reason that a test fails."""
    lag_ms, lost = tally.lag_ms(0.99), sorted(lost_workers)
    conditions = {
        "no call was made": tally.outcomes.total() > 0,
        f"generator lag at p99 is {lag_ms:.0f} ms, limit {max_lag_ms:g}: the run is invalid": lag_ms <= max_lag_ms,
        f"{len(lost)} workers were lost: {', '.join(lost)}": not lost,
    }
    failed = [sentence for sentence, holds in conditions.items() if not holds]
    return failed + (slo.violations(tally.figures(statistics)) if slo and tally.outcomes else [])
