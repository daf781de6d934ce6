"""One run as it is kept: what was asked, on which machine, every figure, every series, and what did not hold."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from loadtests.flags import flags_of
from loadtests.load.offer import Load, LoadResult
from loadtests.load.series import Series, call_series, server_series
from loadtests.records import Summary
from loadtests.report import figures_line, rounded
from loadtests.slo import Slo

FORMAT: Final = 1
"""Of the JSON; a baseline of another one is refused."""

_LATENCIES: Final = ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything about one run."""

    load: Load
    result: LoadResult
    summary: Summary
    series: Mapping[str, Series]
    """By name."""

    machine: Mapping[str, Any]
    """As `loadtests.machine.describe_machine` returns it."""

    command: str
    server: Sequence[str]
    """What the server says of its version and model."""

    slo: str
    """As text; empty: none."""

    broken: Sequence[str]
    """A sentence for each thing that did not hold."""

    @property
    def figures(self) -> dict[str, float | None]:
        """By name with its unit, shares from 0 to 1; None: not known."""
        summary, load = self.summary, self.load
        latency = asdict(summary.latency) if summary.latency else dict.fromkeys(_LATENCIES)
        generator_s = summary.generator_cpu_s
        return {
            **latency,
            "goodput": summary.goodput,
            "goodput_per_s": summary.goodput_per_s,
            "rejected": summary.rejected / summary.offered,
            "late": summary.late / summary.offered,
            "left": summary.left / summary.offered,
            "errors": summary.errors / summary.offered,
            "tokens_per_s": summary.tokens_per_s,
            "batch_segments_mean": self.series["segments of a step"].mean,
            "queue_segments_max": self.series["queue"].highest,
            "server_cores": self.series["processor"].mean,
            "server_memory_mb_max": self.series["memory"].highest,
            "generator_cores": None if generator_s is None else generator_s / (load.warm_up_s + load.duration_s),
            "generator_lag_p99_ms": summary.generator_lag.p99_ms,
        }


def settings_of(load: Load) -> dict[str, Any]:
    """Return what makes two runs comparable: with other settings they are different tests."""
    return {
        "profile": load.workload.profile.value,
        "arrivals": "closed" if load.arrivals is None else load.arrivals.text,
        "rate_per_s": None if load.arrivals is None else load.arrivals.rate_per_s,
        "users": load.num_users if load.arrivals is None else None,
        "workload": flags_of(load.workload),
    }


def series_of(result: LoadResult) -> dict[str, Series]:
    """Return everything that can be drawn over time, by name."""
    times = {"began_s": result.began_s, "duration_s": result.duration_s}
    both = [*server_series(result.samples, **times), *call_series(result.records, **times)]
    return {series.name: series for series in both}


def broken_promises(summary: Summary, *, slo: Slo | None, max_lag_ms: float) -> list[str]:
    """Return a sentence for each thing that did not hold, with the figure and its limit; none: all held.

    Args:
        summary: of the run.
        slo: what was asked of it.
        max_lag_ms: of the generator, p99; beyond it the run says nothing about the server.
    """
    lag_ms = summary.generator_lag.p99_ms
    late = [f"generator_lag_p99_ms is {lag_ms:.1f}, the limit is {max_lag_ms:g}: the run does not count"]
    return [*(late if lag_ms > max_lag_ms else []), *(slo.broken(summary) if slo else [])]


def as_json(run: Run) -> dict[str, Any]:
    """Return JSON-ready values of everything but the single calls."""
    load = run.load
    return {
        "format": FORMAT,
        "command": run.command,
        "machine": dict(run.machine),
        "server": list(run.server),
        "settings": settings_of(load),
        "duration_s": load.duration_s,
        "warm_up_s": load.warm_up_s,
        "seed": load.seed,
        "processes": load.num_processes,
        "slo": run.slo,
        "broken": list(run.broken),
        "figures": run.figures,
        "summary": asdict(run.summary),
        "series": [asdict(series) for series in run.series.values()],
    }


def line(run: Run) -> str:
    """Return `loadtest name=value ...`."""
    load, figures = run.load, run.figures
    return figures_line(
        "loadtest",
        {
            "profile": load.workload.profile.value,
            "rate": "closed" if load.arrivals is None else f"{load.arrivals.rate_per_s:g}",
            **{name: rounded(figures[name]) for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms")},
            **{name: rounded(figures[name], 4) for name in ("goodput", "rejected", "errors")},
            "tokens_per_s": rounded(figures["tokens_per_s"], 0),
            "generator_lag_p99_ms": rounded(figures["generator_lag_p99_ms"]),
        },
    )
