"""One run as it is kept: what was asked, on which machine, every figure, every series."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from loadtests.flags import flags_of
from loadtests.load import Load, LoadResult
from loadtests.loadtest.series import Series, call_series, server_series
from loadtests.records import Summary

FORMAT: Final = 1
"""Of the JSON; a baseline of another one is refused."""

_FACTS: Final = ("mt_build_info", "mt_model_info")
"""Metrics whose labels say what runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything about one run."""

    load: Load
    result: LoadResult
    summary: Summary
    series: Sequence[Series]
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
        summary = self.summary
        of = {series.name: series for series in self.series}
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
            "batch_segments_mean": of["segments of a step"].mean,
            "queue_segments_max": of["queue"].highest,
            "server_cores": of["processor"].mean,
            "server_memory_mb_max": of["memory"].highest,
            "generator_cores": None if generator_s is None else generator_s / self._sending_s,
            "generator_lag_p99_ms": summary.generator_lag.p99_ms,
        }

    @property
    def _sending_s(self) -> float:
        return self.load.warm_up_s + self.load.duration_s


_LATENCIES: Final = ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")


def command_line(module: str = "loadtests.loadtest") -> str:
    """Return how this program, a module, was called, fit to be called again."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def settings_of(load: Load) -> dict[str, Any]:
    """Return what makes two runs comparable: with other settings they are different tests."""
    return {
        "profile": load.workload.profile.value,
        "arrivals": "closed" if load.arrivals is None else load.arrivals.text,
        "rate_per_s": None if load.arrivals is None else load.arrivals.rate_per_s,
        "users": load.num_users if load.arrivals is None else None,
        "workload": flags_of(load.workload, profile_flag="--profile"),
    }


def series_of(result: LoadResult) -> list[Series]:
    """Return everything that can be drawn over time."""
    times = {"began_s": result.began_s, "duration_s": result.duration_s}
    return [*server_series(result.samples, **times), *call_series(result.records, **times)]


def server_facts(values: Mapping[str, float]) -> list[str]:
    """Return the labels of those metrics of a server that say what runs."""
    return [name.partition("{")[2].rstrip("}") for name in values if name.partition("{")[0] in _FACTS]


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
        "series": [asdict(series) for series in run.series],
    }


def line(run: Run) -> str:
    """Return `loadtest name=value ...`."""
    load, figures = run.load, run.figures
    fields = {
        "profile": load.workload.profile.value,
        "rate": "closed" if load.arrivals is None else f"{load.arrivals.rate_per_s:g}",
        **{name: _rounded(figures[name], 1) for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms")},
        **{name: _rounded(figures[name], 4) for name in ("goodput", "rejected", "errors")},
        "tokens_per_s": _rounded(figures["tokens_per_s"], 0),
        "generator_lag_p99_ms": _rounded(figures["generator_lag_p99_ms"], 1),
    }
    return " ".join(["loadtest", *(f"{name}={value}" for name, value in fields.items())])


def _rounded(value: float | None, digits: int) -> str:
    return "none" if value is None else f"{value:.{digits}f}"
