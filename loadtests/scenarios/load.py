"""`load`: offer a load, check it against an objective and a baseline, and write a page, JSON and all call records."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from loadtests.generator.arrivals import parse_arrivals
from loadtests.generator.flags import flags_of, parsed_by, within
from loadtests.generator.metrics import server_info
from loadtests.generator.records import MAX_GENERATOR_LAG_P99_MS, write_records
from loadtests.generator.runner import Load, Run, offer
from loadtests.generator.server import Target
from loadtests.generator.slo import GRAMMAR, parse_slo
from loadtests.generator.workload import Workload
from loadtests.report.page import Series, render, series_of
from loadtests.report.report import Report, environment, markdown, rounded

NAME: Final = "loadtest"
DESCRIPTION: Final = """\
Offers calls to a server and reports latency, throughput and errors. Without --target it starts a server on free local
ports with the bundled model. For a running server, use --target HOST:PORT, and --metrics-url to include its metrics.
The API key is the value of DRAGOMAN_API_KEY.

Open loop: calls are scheduled in advance and do not wait for each other. Latency counts from the scheduled time, so a
stalled server cannot hide waiting (no coordinated omission). The lag of the generator itself is reported; above
--max-lag the run is invalid. `--arrivals closed --users N` is a closed loop, whose users wait for their responses.

Arrivals: poisson; constant; burst:every=S,size=N (N calls of the rate arrive at once, every S seconds);
ramp:from=N,to=N; trace:FILE[,speed=N] (one offset in seconds per line, or {"offset_s": 1.5, "method": "Translate"}).

Percentiles are of accepted calls (answered or late). Rejections and errors are separate figures; an objective should
bound them as well.

OUTPUT contains loadtest.html (a single file), loadtest.json (for --baseline), calls.jsonl (every call), and the log of
a started server.

exit codes: 0 all objectives held; 1 objective or baseline violated, generator late, server failed; 2 invalid usage"""

_CLOSED: Final = "closed"  # value of --arrivals for a closed loop
_DURATIONS: Final = {"full": (60.0, 10.0), "short": (10.0, 3.0)}  # seconds by mode: measured, warm-up
_MAX_LAG_MS: Final = {"full": MAX_GENERATOR_LAG_P99_MS, "short": 100.0}  # short runs are for busy machines
_FORMAT: Final = 1  # of `loadtest.json`

# figures that must not regress, and the sign of a regression; rejected, late and failed calls lower the goodput
_COMPARED: Final[Mapping[str, int]] = {"p50_ms": 1, "p95_ms": 1, "goodput_per_s": -1, "tokens_per_s": -1}

_Figures = Mapping[str, float | None]
_Baseline = Mapping[str, Any] | None
_LATENCIES: Final = ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `load`."""
    add = parser.add_argument_group("arrivals").add_argument
    add("--arrivals", default="poisson", metavar="KIND", help="see above, or closed (poisson)")
    add("--rate", type=float, default=10.0, metavar="N", help="calls per second, at most about 500 (10)")
    add("--users", type=within(1, 10_000, int), default=8, metavar="N", help="users of the closed loop (8)")
    add("--duration", type=within(0.001, 86_400), metavar="S", help="measured seconds (60; short: 10)")
    add("--warm-up", type=within(0, 86_400), metavar="S", help="seconds before them (10; short: 3)")

    add = parser.add_argument_group("objectives").add_argument
    add("--slo", type=parsed_by(parse_slo), metavar="BOUNDS", help=GRAMMAR.replace("%", "%%"))
    add("--baseline", type=Path, metavar="JSON", help="loadtest.json of an earlier run of the same load")
    allowed = "allowed regression of p50, p95, goodput and tokens_per_s against the baseline (10%%)"
    add("--max-regression", type=parsed_by(parse_share), default=0.1, metavar="SHARE", help=allowed)
    lags = "{full:g}; short: {short:g}".format(**_MAX_LAG_MS)
    add("--max-lag", type=float, metavar="MS", help=f"allowed generator lag at p99 ({lags})")


def prepare(options: argparse.Namespace, workload: Workload) -> Callable[[Target], Report]:
    """Return the measurement; raises ValueError or OSError for invalid flags."""
    duration_s, warm_up_s = _DURATIONS[options.mode]
    is_closed = options.arrivals == _CLOSED
    load = Load(
        workload=workload,
        arrivals=None if is_closed else parse_arrivals(options.arrivals, rate_per_s=options.rate),
        num_users=options.users,
        duration_s=duration_s if options.duration is None else options.duration,
        warm_up_s=warm_up_s if options.warm_up is None else options.warm_up,
        seed=options.seed,
    )
    baseline = read_baseline(options.baseline, settings_of(load)) if options.baseline else None
    return partial(_measure, options, load, baseline)


def _measure(options: argparse.Namespace, load: Load, baseline: _Baseline, target: Target) -> Report:
    run = offer(target, load)
    write_records(options.output / "calls.jsonl", [*run.warm_up_records, *run.records])
    return report_of(run, options, environment("load"), baseline=baseline, broken=target.stop())


def report_of(
    run: Run,
    options: argparse.Namespace,
    where: Mapping[str, Any],
    *,
    baseline: _Baseline = None,
    broken: Sequence[str] = (),
) -> Report:
    """Check a run against its objective, the lag limit and the baseline."""
    load, series, slo = run.load, series_of(run), options.slo
    figures = figures_of(run, series)
    lag_ms = run.summary.generator_lag.p99_ms
    max_lag_ms = _MAX_LAG_MS[options.mode] if options.max_lag is None else options.max_lag
    late = f"generator_lag_p99_ms is {lag_ms:.1f}, limit {max_lag_ms:g}: the run is invalid"
    violations = [*broken, *([late] if lag_ms > max_lag_ms else []), *(slo.violations(run.summary) if slo else [])]
    changes: list[list[str]] = []
    if baseline is not None:
        changes, regressions = compare(baseline["figures"], figures, options.max_regression)
        violations += regressions
        before, now = (f"{one['cpu']} with {one['cores']} cores" for one in (baseline["machine"], where["machine"]))
        if before != now:
            print(f"loadtests load: the baseline was measured on {before}, this run on {now}", file=sys.stderr)
    values = {
        "format": _FORMAT,
        **where,
        "server": server_info(run.samples[-1].values if run.samples else {}),
        "settings": settings_of(load),
        **{name: getattr(load, name) for name in ("duration_s", "warm_up_s", "seed")},
        "slo": str(slo or ""),
        "broken": violations,
        "figures": figures,
        "summary": asdict(run.summary),
        "series": [{"name": name, **one._asdict()} for name, one in series.items()],
    }
    return Report(
        name=NAME,
        figures={
            "profile": load.workload.profile.value,
            "rate": _CLOSED if load.arrivals is None else f"{load.arrivals.rate_per_s:g}",
            **{name: rounded(figures[name]) for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms")},
            **{name: rounded(figures[name], 4) for name in ("goodput", "rejected", "errors")},
            "tokens_per_s": rounded(figures["tokens_per_s"], 0),
            "generator_lag_p99_ms": rounded(lag_ms),
        },
        values=values,
        broken=violations,
        table=markdown(("figure", "baseline", "now", "change"), changes) if changes else "",
        page=partial(render, run, series, values, changes),
    )


def settings_of(load: Load) -> dict[str, Any]:
    """Return the settings that must be equal for two runs to be comparable."""
    return {
        "profile": load.workload.profile.value,
        "arrivals": _CLOSED if load.arrivals is None else load.arrivals.text,
        "rate_per_s": None if load.arrivals is None else load.arrivals.rate_per_s,
        "users": load.num_users if load.arrivals is None else None,
        "workload": flags_of(load.workload),
    }


def figures_of(run: Run, series: Mapping[str, Series]) -> _Figures:
    """Return figures by name with unit, shares from 0 to 1; None: unknown."""
    summary = run.summary

    def mean(name: str) -> float | None:
        return fmean(series[name].values) if series[name].points else None

    return {
        **(asdict(summary.latency) if summary.latency else dict.fromkeys(_LATENCIES)),
        "goodput": summary.goodput,
        "goodput_per_s": summary.goodput_per_s,
        **{name: getattr(summary, name) / summary.offered for name in ("rejected", "late", "left", "errors")},
        "tokens_per_s": summary.tokens_per_s,
        "batch_segments_mean": mean("segments of a step"),
        "queue_segments_max": max(series["queue"].values, default=None),
        "server_cores": mean("processor"),
        "server_memory_mb_max": max(series["memory"].values, default=None),
        "generator_cores": None if summary.generator_cpu_s is None else summary.generator_cpu_s / run.load.duration_s,
        "generator_lag_p99_ms": summary.generator_lag.p99_ms,
    }


def read_baseline(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an earlier `loadtest.json`; raises ValueError if it is invalid or has other settings."""
    try:
        baseline: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version, before = baseline["format"], baseline["settings"]
        # KeyError, TypeError or AttributeError if a part that is read later is missing
        baseline["machine"]["cpu"], baseline["machine"]["cores"], baseline["figures"].items(), before.items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not the JSON of a load test ({type(error).__name__}: {error})") from error
    if version != _FORMAT:
        raise ValueError(f"{path}: format {version}, expected {_FORMAT}; record a new baseline")
    if changed := [name for name in settings if before.get(name) != settings[name]]:
        pairs = "; ".join(f"{name} {before.get(name)}, now {settings[name]}" for name in changed)
        raise ValueError(f"the baseline has another load: {pairs}; offer the same load, or record a new baseline")
    return baseline


def compare(before: _Figures, now: _Figures, max_regression: float) -> tuple[list[list[str]], list[str]]:
    """Return table rows of name (with a star if compared), baseline, now and change; and the regressions."""
    rows, sentences = [], []
    for name, value in now.items():
        old = before.get(name)
        old_text, text = ("none" if one is None else f"{one:.4g}" for one in (old, value))
        change = value / old - 1 if old and value is not None else None
        change_text = "" if change is None else f"{change:+.1%}"
        rows.append([f"{name} *" if name in _COMPARED else name, old_text, text, change_text])
        regression = _COMPARED.get(name, 0) * (change or 0.0)
        if name in _COMPARED and old is not None and value is None:
            sentences.append(f"{name} was {old_text} in the baseline and is unknown now")
        elif regression > max_regression:
            limit = f"a regression of {regression:.1%}, limit {max_regression:.1%}"
            sentences.append(f"{name} is {text}, baseline {old_text}: {limit}")
    return rows, sentences


def parse_share(text: str) -> float:
    """Parse a share such as `10%` or `0.1`; raises ValueError, also for a negative one."""
    number = text.strip()
    share = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    if not 0 <= share < math.inf:
        raise ValueError(f"{text}: expected a share such as 10%")
    return share
