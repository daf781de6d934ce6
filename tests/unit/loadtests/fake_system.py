"""Stands for a server under load: one that answers so many calls a second and lets the others wait."""

from loadtests.records import Summary, summarize
from loadtests.wire import Outcome
from tests.unit.loadtests.fake_calls import record


class FakeSystem:
    """Answers within its service time below its capacity; above it, calls wait the longer the more there are."""

    def __init__(
        self, name: str, log: list[tuple[str, float, int]], *, capacity_per_s: float, service_s: float
    ) -> None:
        self._name = name
        self._log = log
        self._capacity_per_s = capacity_per_s
        self._service_s = service_s

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        self._log.append((self._name, rate_per_s, seed))
        count = max(1, round(rate_per_s * duration_s))
        late_s = max(0.0, rate_per_s / self._capacity_per_s - 1)
        planned = [number / rate_per_s for number in range(count)]
        records = [
            record(Outcome.ANSWERED, planned_s=planned_s, latency_s=planned_s * late_s + self._service_s)
            for planned_s in planned
        ]
        return summarize(records, duration_s=duration_s)

    def throughput_per_s(self, *, duration_s: float) -> float:
        self._log.append((self._name, 0.0, 0))
        return self._capacity_per_s
