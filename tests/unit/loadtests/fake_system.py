"""Stands for a server under load: one that answers so many calls a second and lets the others wait."""

from dataclasses import dataclass

from loadtests.records import Summary, summarize
from loadtests.wire import Outcome
from tests.unit.loadtests.fake_calls import record


@dataclass
class FakeSystem:
    """Answers within its service time below its capacity; above it, calls wait the longer the more there are."""

    name: str
    log: list[tuple[str, float, int]]
    capacity_per_s: float
    service_s: float

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        self.log.append((self.name, rate_per_s, seed))
        late_s = max(0.0, rate_per_s / self.capacity_per_s - 1)
        planned = [number / rate_per_s for number in range(max(1, round(rate_per_s * duration_s)))]
        waits = [{"planned_s": at_s, "latency_s": at_s * late_s + self.service_s} for at_s in planned]
        calls = [record(Outcome.ANSWERED, **times) for times in waits]
        return summarize(calls, duration_s=duration_s)

    def throughput_per_s(self, *, duration_s: float) -> float:
        self.log.append((self.name, 0.0, 0))
        return self.capacity_per_s
