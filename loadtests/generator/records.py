"""Call records and the figures of a run."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.generator.calls import Outcome

MAX_GENERATOR_LAG_P99_MS: Final = 25.0  # above it, the run measures the generator instead of the server


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call; times in seconds on `time.monotonic()`, which all processes of a machine share."""

    planned_s: float  # scheduled time; latency counts from here, so a slow generator cannot hide waiting
    sent_s: float
    first_s: float | None = None  # first message of a response stream; None for unary methods or without a message
    ended_s: float
    method: str = "Translate"
    profile: str = ""  # of the texts; empty without texts
    outcome: Outcome
    status: str  # gRPC status name and further details
    num_texts: int = 0
    num_source_tokens: int = 0
    num_target_tokens: int = 0
    queue_s: float | None = None  # this and the next three: `StageTimings` of the server, the maximum of a stream
    encode_s: float | None = None
    decode_s: float | None = None
    text_s: float | None = None

    @property
    def latency_s(self) -> float:
        """Time from the scheduled time to the end."""
        return self.ended_s - self.planned_s

    @property
    def lag_s(self) -> float:
        """Delay of the generator."""
        return self.sent_s - self.planned_s


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile for a share above 0 and at most 1.

    Raises ValueError without values or if the share is out of range.
    """
    if not values or not 0 < share <= 1:
        raise ValueError(f"no percentile {share} of {len(values)} values")
    return sorted(values)[math.ceil(share * len(values)) - 1]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Nearest-rank percentiles of durations."""

    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, durations_s: Sequence[float]) -> "Percentiles":
        """Summarize durations in seconds; raises ValueError without durations."""
        ordered = sorted(durations_s)
        return cls(*(1000 * percentile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99, 1.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of a run; None if no call qualifies."""

    duration_s: float  # of the arrivals
    offered: int
    answered: int  # before their deadline
    rejected: int
    late: int
    left: int
    errors: int
    statuses: Mapping[str, int]  # number of calls by method and status, such as `Translate OK`
    latency: Percentiles | None  # of accepted calls that were not cancelled: answered and late
    rejected_latency: Percentiles | None  # from the scheduled time to the rejection
    answered_latency: Percentiles | None
    generator_lag: Percentiles
    source_tokens: int  # this and the next one: of answered calls
    target_tokens: int
    generator_cpu_s: float | None
    offered_per_s: float
    goodput_per_s: float  # calls answered before their deadline
    goodput: float  # share of them among the calls that were not cancelled by the client
    tokens_per_s: float  # target tokens
    generator_lagged: bool  # the run is not valid

    @property
    def figures(self) -> dict[str, float | None]:
        """The figures of an objective."""
        latencies = {
            name: getattr(self.latency, f"{name}_ms") / 1000 if self.latency else None
            for name in ("p50", "p90", "p95", "p99", "max")
        }
        shares = {name: getattr(self, name) / self.offered for name in ("rejected", "late", "errors")}
        return {**latencies, **shares, "goodput": self.goodput, "goodput/s": self.goodput_per_s}


def summarize(records: Sequence[CallRecord], *, duration_s: float, generator_cpu_s: float | None = None) -> Summary:
    """Return the figures of a run; raises ValueError without records or time."""
    if not records or duration_s <= 0:
        raise ValueError(f"{len(records)} calls within {duration_s:g} s: nothing to summarize")
    by_outcome = {kind: [record for record in records if record.outcome is kind] for kind in Outcome}
    counts = {kind: len(found) for kind, found in by_outcome.items()}
    answered = by_outcome[Outcome.ANSWERED]
    lag = Percentiles.of([record.lag_s for record in records])
    target_tokens = sum(record.num_target_tokens for record in answered)
    return Summary(
        duration_s=duration_s,
        offered=len(records),
        answered=len(answered),
        rejected=counts[Outcome.REJECTED],
        late=counts[Outcome.LATE],
        left=counts[Outcome.LEFT],
        errors=counts[Outcome.ERROR],
        statuses=dict(sorted(Counter(f"{record.method} {record.status}" for record in records).items())),
        latency=_percentiles([record.latency_s for record in (*answered, *by_outcome[Outcome.LATE])]),
        rejected_latency=_percentiles([record.latency_s for record in by_outcome[Outcome.REJECTED]]),
        answered_latency=_percentiles([record.latency_s for record in answered]),
        generator_lag=lag,
        source_tokens=sum(record.num_source_tokens for record in answered),
        target_tokens=target_tokens,
        generator_cpu_s=generator_cpu_s,
        offered_per_s=len(records) / duration_s,
        goodput_per_s=len(answered) / duration_s,
        goodput=len(answered) / max(1, len(records) - counts[Outcome.LEFT]),
        tokens_per_s=target_tokens / duration_s,
        generator_lagged=lag.p99_ms > MAX_GENERATOR_LAG_P99_MS,
    )


def _percentiles(durations_s: Sequence[float]) -> Percentiles | None:
    return Percentiles.of(durations_s) if durations_s else None
