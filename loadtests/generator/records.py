"""What became of each call, in memory and as JSON lines, and the figures that the calls of a run come to."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from loadtests.generator.calls import Outcome

MAX_GENERATOR_LAG_P99_MS: Final = 25.0
"""Beyond it, the generator was measured and not the server."""

STAGES: Final = ("client", "queue", "encode", "decode", "text", "beyond")
"""Where a call spends its time: all of it as its caller sees it; as the server accounts for it; and what is left, which
is the network, gRPC, and waiting before the server looked at the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call; times in seconds on `time.monotonic()`, which all processes of a machine share."""

    planned_s: float
    """When it should have been sent. Waiting is counted from here, or a slow generator would hide it."""

    sent_s: float
    first_s: float | None = None  # when the first of a stream of answers came; None: none, or the method answers once
    ended_s: float
    method: str = "Translate"
    profile: str = ""  # of the texts; empty where there are none
    outcome: Outcome
    status: str  # name of the gRPC status, and behind it what else is known
    num_texts: int = 0
    num_source_tokens: int = 0
    num_target_tokens: int = 0
    queue_s: float | None = None
    """As the next three, of the server's own account (`StageTimings`); None: there is none. The longest of a stream."""

    encode_s: float | None = None
    decode_s: float | None = None
    text_s: float | None = None

    @property
    def latency_s(self) -> float:
        """What a caller who came as planned has waited."""
        return self.ended_s - self.planned_s

    client_s = latency_s  # by the name of the stage

    @property
    def beyond_s(self) -> float | None:
        """What the server's account leaves of a call; None for one of many answers, whose times overlap."""
        known = [one for one in (self.queue_s, self.encode_s, self.decode_s, self.text_s) if one is not None]
        return max(0.0, self.latency_s - sum(known)) if len(known) == 4 and self.first_s is None else None

    @property
    def lag_s(self) -> float:
        """How late the generator was."""
        return self.sent_s - self.planned_s


def write_records(path: Path, records: Iterable[CallRecord]) -> None:
    """Write records, one a line, in place of an older file; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({**asdict(record), "outcome": record.outcome.value}) + "\n" for record in records)
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(lines)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of them, above 0, does not exceed (nearest rank).

    Raises ValueError if there is no value, or the share is out of range.
    """
    if not values or not 0 < share <= 1:
        raise ValueError(f"no percentile {share} of {len(values)} values")
    return sorted(values)[math.ceil(share * len(values)) - 1]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of durations, in milliseconds, by nearest rank."""

    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, durations_s: Sequence[float]) -> "Percentiles":
        """Summarise durations in seconds; ValueError if there is none."""
        ordered = sorted(durations_s)
        return cls(*(1000 * percentile(ordered, share) for share in (0.5, 0.9, 0.95, 0.99, 1.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one run; shares are of the calls offered, 0 to 1. None: there are no such calls, or no account."""

    duration_s: float  # in which calls arrived
    offered: int
    answered: int  # before their deadline
    rejected: int
    late: int
    left: int
    errors: int
    statuses: Mapping[str, int]  # calls by method and status, `Translate OK` for instance
    latency: Percentiles | None
    """From when a call should have been sent to its end, of the calls that were admitted and not cancelled: those
    answered, and those that were late, which have waited for their deadline at least."""

    rejected_latency: Percentiles | None  # from when a call should have been sent to its rejection
    stages: Mapping[str, Percentiles | None]  # of the calls answered, by `STAGES`
    generator_lag: Percentiles  # how much later than planned calls were sent
    source_tokens: int  # of the calls answered, as those below
    target_tokens: int
    generator_cpu_s: float | None  # processor time that sending took

    offered_per_s: float
    goodput_per_s: float  # answered before their deadline
    goodput: float  # share answered before their deadline, of the calls whose callers meant to wait
    tokens_per_s: float  # target tokens answered
    generator_lagged: bool  # the run does not count because the generator itself was late


def summarize(records: Sequence[CallRecord], *, duration_s: float, generator_cpu_s: float | None = None) -> Summary:
    """Return the figures of a run; `duration_s` is the time in which calls arrived.

    Raises ValueError if there is no record, or no time.
    """
    if not records or duration_s <= 0:
        raise ValueError(f"{len(records)} calls within {duration_s:g} s: nothing to summarise")
    of = {kind: [record for record in records if record.outcome is kind] for kind in Outcome}
    answered = of[Outcome.ANSWERED]
    lag = Percentiles.of([record.lag_s for record in records])
    target_tokens = sum(record.num_target_tokens for record in answered)
    return Summary(
        duration_s=duration_s,
        offered=len(records),
        answered=len(answered),
        rejected=len(of[Outcome.REJECTED]),
        late=len(of[Outcome.LATE]),
        left=len(of[Outcome.LEFT]),
        errors=len(of[Outcome.ERROR]),
        statuses=dict(sorted(Counter(f"{record.method} {record.status}" for record in records).items())),
        latency=_percentiles([record.latency_s for record in (*answered, *of[Outcome.LATE])]),
        rejected_latency=_percentiles([record.latency_s for record in of[Outcome.REJECTED]]),
        stages={name: _percentiles(stage_times(answered, name)) for name in STAGES},
        generator_lag=lag,
        source_tokens=sum(record.num_source_tokens for record in answered),
        target_tokens=target_tokens,
        generator_cpu_s=generator_cpu_s,
        offered_per_s=len(records) / duration_s,
        goodput_per_s=len(answered) / duration_s,
        goodput=len(answered) / max(1, len(records) - len(of[Outcome.LEFT])),
        tokens_per_s=target_tokens / duration_s,
        generator_lagged=lag.p99_ms > MAX_GENERATOR_LAG_P99_MS,
    )


def _percentiles(durations_s: Sequence[float]) -> Percentiles | None:
    return Percentiles.of(durations_s) if durations_s else None


def stage_times(records: Sequence[CallRecord], stage: str) -> list[float]:
    """Return the seconds that calls spent in one of `STAGES`; calls that do not know are left out."""
    times = (getattr(record, f"{stage}_s") for record in records)
    return [time_s for time_s in times if time_s is not None]
