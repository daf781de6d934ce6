"""What an overload came to, and which promises it broke: pure functions of the records."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from matplotlib.figure import Figure

from loadtests.records import MAX_GENERATOR_LAG_P99_MS, CallRecord, Summary, percentile
from loadtests.report import COLOURS, figures_line, rounded
from loadtests.wire import Outcome

_MAX_REJECTED_P99_MS: Final = 50.0
_MIN_GOODPUT: Final = 0.5
"""Of the capacity: the generator and the rejections take their share of the cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """Everything that was measured; times in seconds from its start."""

    began_s: float
    """On the generator's clock."""

    records: Sequence[CallRecord]
    summary: Summary
    capacity_per_s: float
    """Calls of this size that the server can answer, by the second."""

    memory_mb: Sequence[tuple[float, float]]
    """Resident memory of the server over time; empty: not known."""

    settings: Mapping[str, Any]

    @property
    def goodput(self) -> float:
        """Calls answered in time per second, as a share of the capacity."""
        return self.summary.goodput_per_s / self.capacity_per_s

    @property
    def rss_growth_mb(self) -> float | None:
        """By how much the memory grew at most; None: not known."""
        sizes = [size_mb for _, size_mb in self.memory_mb]
        return max(sizes) - sizes[0] if sizes else None

    @property
    def rejected_p99_from_send_ms(self) -> float | None:
        """As the p99 of the rejections, without the generator's own lag."""
        times_s = [one.ended_s - one.sent_s for one in self.records if one.outcome is Outcome.REJECTED]
        return 1000 * percentile(times_s, 0.99) if times_s else None


def broken_promises(overload: Overload, *, max_rss_growth_mb: float) -> list[str]:
    """Return a sentence for each promise that did not hold."""
    summary, rejected, growth_mb = overload.summary, overload.summary.rejected_latency, overload.rss_growth_mb
    checks = {
        "nothing was rejected: this was no overload": rejected is None,
        f"rejected calls waited more than {_MAX_REJECTED_P99_MS:g} ms at p99": rejected is not None
        and rejected.p99_ms >= _MAX_REJECTED_P99_MS,
        f"{summary.late} accepted calls were not answered before their deadline": summary.late > 0,
        f"{summary.errors} calls failed otherwise: {dict(summary.statuses)}": summary.errors > 0,
        f"the server grew by more than {max_rss_growth_mb:g} MB": growth_mb is not None
        and growth_mb > max_rss_growth_mb,
        f"less than {_MIN_GOODPUT:.0%} of the capacity was answered": overload.goodput < _MIN_GOODPUT,
        f"the generator itself was more than {MAX_GENERATOR_LAG_P99_MS:g} ms late at p99": summary.generator_lagged,
    }
    return [sentence for sentence, is_broken in checks.items() if is_broken]


def line(overload: Overload) -> str:
    """Return `overload name=value ...`, the promises first."""
    summary, rejected = overload.summary, overload.summary.rejected_latency
    answered = summary.stages["client"]
    return figures_line(
        "overload",
        {
            "rejected_p99_ms": rounded(rejected.p99_ms if rejected else None),
            "accepted_late": summary.late,
            "errors_other": summary.errors,
            "rss_growth_mb": rounded(overload.rss_growth_mb),
            "offered": summary.offered,
            "accepted": summary.answered + summary.late,
            "rejected": summary.rejected,
            "capacity_per_s": rounded(overload.capacity_per_s),
            "offered_per_s": rounded(summary.offered_per_s),
            "goodput": rounded(overload.goodput, 2),
            "rejected_p50_ms": rounded(rejected.p50_ms if rejected else None),
            "rejected_p99_from_send_ms": rounded(overload.rejected_p99_from_send_ms),
            "accepted_p99_ms": rounded(answered.p99_ms if answered else None),
            "generator_lag_p99_ms": rounded(summary.generator_lag.p99_ms),
        },
    )


def as_json(overload: Overload, broken: Sequence[str]) -> dict[str, Any]:
    """Return settings, figures, verdict, memory, and every call as [planned, lag, latency, status]."""
    return {
        "settings": dict(overload.settings),
        "capacity_per_s": overload.capacity_per_s,
        "goodput": overload.goodput,
        "rss_growth_mb": overload.rss_growth_mb,
        "rejected_p99_from_send_ms": overload.rejected_p99_from_send_ms,
        "summary": asdict(overload.summary),
        "broken_promises": list(broken),
        "memory_mb": [[round(at_s, 3), round(size_mb, 1)] for at_s, size_mb in overload.memory_mb],
        "calls": [
            [round(one.planned_s - overload.began_s, 5), round(one.lag_s, 5), round(one.latency_s, 5), one.status]
            for one in sorted(overload.records, key=lambda one: one.planned_s)
        ],
    }


def picture(overload: Overload) -> Figure:
    """Draw calls by the second in which they came or ended, the time until the end of each, and the memory."""
    figure = Figure(figsize=(9, 8), layout="constrained")
    rates, latencies, memory = figure.subplots(3, 1, sharex=True)
    offered = Counter(int(one.planned_s - overload.began_s) for one in overload.records)
    seconds = range(max(offered) + 1)
    rates.plot(seconds, [offered[second] for second in seconds], color="black", label="offered")
    for kind, colour in COLOURS.items():
        records = [one for one in overload.records if one.outcome is kind]
        if records:
            ended = Counter(int(one.ended_s - overload.began_s) for one in records)
            rates.plot(seconds, [ended[second] for second in seconds], color=colour, label=kind.value)
        times = [one.planned_s - overload.began_s for one in records]
        latencies.scatter(times, [1000 * one.latency_s for one in records], s=3, color=colour, label=kind.value)
    rates.axhline(overload.capacity_per_s, color="grey", linestyle=":", label="capacity")
    rates.set_ylabel("calls a second")
    rates.legend(loc="upper right")
    latencies.axhline(1000 * overload.settings["deadline_s"], color="black", linestyle=":", linewidth=1)
    latencies.set(yscale="log", ylabel="milliseconds to the end")
    memory.plot([at_s for at_s, _ in overload.memory_mb], [size_mb for _, size_mb in overload.memory_mb])
    memory.set(xlabel="seconds", ylabel="server memory, MiB", ylim=(0, None))
    return figure
