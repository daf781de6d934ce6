"""Artificial call records, runs and systems."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.generator.calls import Outcome
from loadtests.generator.records import CallRecord, Summary, summarize


def record(
    outcome: Outcome, *, planned_s: float = 0.0, lag_s: float = 0.0, latency_s: float = 0.01, **fields: Any
) -> CallRecord:
    times = {"planned_s": planned_s, "sent_s": planned_s + lag_s, "ended_s": planned_s + latency_s}
    return CallRecord(**{**times, "outcome": outcome, "status": outcome.name, **fields})


def summary_of(*, latencies_s: Sequence[float] = (), num_errors: int = 0, num_rejected: int = 0) -> Summary:
    """Ten seconds of calls."""
    answered = [record(Outcome.ANSWERED, latency_s=latency_s) for latency_s in latencies_s]
    others = [record(Outcome.ERROR)] * num_errors + [record(Outcome.REJECTED)] * num_rejected
    return summarize([*answered, *others], duration_s=10.0)


@dataclass
class FakeSystem:
    """A server that answers a number of calls per second; the others wait."""

    name: str
    log: list[tuple[str, float, int]]
    capacity_per_s: float
    service_s: float

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        self.log.append((self.name, rate_per_s, seed))
        late_s = max(0.0, rate_per_s / self.capacity_per_s - 1)
        planned = [number / rate_per_s for number in range(max(1, round(rate_per_s * duration_s)))]
        waits = [{"planned_s": at_s, "latency_s": at_s * late_s + self.service_s} for at_s in planned]
        return summarize([record(Outcome.ANSWERED, **times) for times in waits], duration_s=duration_s)

    def throughput_per_s(self, *, duration_s: float) -> float:
        self.log.append((self.name, 0.0, 0))
        return self.capacity_per_s
