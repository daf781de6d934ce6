"""What the storm came to, and which promises it broke: pure functions of the records."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtests.records import MAX_GENERATOR_LAG_P99_MS, CallRecord, percentile
from loadtests.wire import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one storm."""

    offered: int
    accepted: int
    """Calls that the server took, answered in time or not."""

    accepted_late: int
    rejected: int
    errors: int
    statuses: dict[str, int] = field(default_factory=dict)
    rejected_p50_ms: float | None
    rejected_p99_ms: float | None
    """From the planned arrival to the refusal; None: nothing was refused."""

    rejected_p99_from_send_ms: float | None
    accepted_p99_ms: float | None
    generator_lag_p99_ms: float
    capacity_per_s: float
    offered_per_s: float
    goodput: float
    """Calls answered in time per second, as a share of the capacity."""

    rss_growth_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What must hold under any load."""

    max_rejected_p99_ms: float = 50.0
    max_rss_growth_mb: float = 128.0
    min_goodput: float = 0.5
    """The generator and the refusals take their share of the cores."""

    max_generator_lag_p99_ms: float = MAX_GENERATOR_LAG_P99_MS
    """Beyond it, the generator was measured and not the server."""


def summarize(
    records: Sequence[CallRecord], *, capacity_per_s: float, duration_s: float, rss_growth_mb: float
) -> Summary:
    """Return the figures of a storm with at least one call; `duration_s` is the time in which calls arrived."""
    of = {kind: [record for record in records if record.outcome is kind] for kind in Outcome}
    answered, rejected, late = of[Outcome.ANSWERED], of[Outcome.REJECTED], of[Outcome.LATE]
    return Summary(
        offered=len(records),
        accepted=len(answered) + len(late),
        accepted_late=len(late),
        rejected=len(rejected),
        errors=len(of[Outcome.ERROR]),
        statuses=dict(Counter(record.status for record in records)),
        rejected_p50_ms=_ms([record.latency_s for record in rejected], 0.5),
        rejected_p99_ms=_ms([record.latency_s for record in rejected], 0.99),
        rejected_p99_from_send_ms=_ms([record.ended_s - record.sent_s for record in rejected], 0.99),
        accepted_p99_ms=_ms([record.latency_s for record in answered], 0.99),
        generator_lag_p99_ms=1000 * percentile([record.lag_s for record in records], 0.99),
        capacity_per_s=capacity_per_s,
        offered_per_s=len(records) / duration_s,
        goodput=len(answered) / duration_s / capacity_per_s,
        rss_growth_mb=rss_growth_mb,
    )


def broken_promises(summary: Summary, promises: Promises) -> list[str]:
    """Return a sentence for each promise that did not hold."""
    checks = {
        "nothing was rejected: this was no overload": summary.rejected == 0,
        f"rejected calls waited more than {promises.max_rejected_p99_ms:g} ms at p99": (
            summary.rejected_p99_ms is not None and summary.rejected_p99_ms >= promises.max_rejected_p99_ms
        ),
        f"{summary.accepted_late} accepted calls were not answered before their deadline": summary.accepted_late > 0,
        f"{summary.errors} calls failed otherwise: {summary.statuses}": summary.errors > 0,
        f"the server grew by more than {promises.max_rss_growth_mb:g} MB": (
            summary.rss_growth_mb > promises.max_rss_growth_mb
        ),
        f"less than {promises.min_goodput:.0%} of the capacity was answered": summary.goodput < promises.min_goodput,
        f"the generator itself was more than {promises.max_generator_lag_p99_ms:g} ms late at p99": (
            summary.generator_lag_p99_ms > promises.max_generator_lag_p99_ms
        ),
    }
    return [sentence for sentence, is_broken in checks.items() if is_broken]


def _ms(latencies_s: Sequence[float], share: float) -> float | None:
    return 1000 * percentile(latencies_s, share) if latencies_s else None
