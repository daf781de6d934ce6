"""Offers one load, judges it, and leaves a page, JSON and every call behind."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from loadtests import baseline
from loadtests.arrivals import parse_arrivals
from loadtests.flags import flags_of, parsed_by, workload_of
from loadtests.offer import CLOSED, Load, Run, offer
from loadtests.page import Series, render, series_of
from loadtests.records import MAX_GENERATOR_LAG_P99_MS, write_records
from loadtests.report import Report, circumstances, markdown, rounded, unclean_end
from loadtests.sampler import server_facts
from loadtests.slo import GRAMMAR, Slo, parse_slo
from loadtests.target import Target

NAME: Final = "loadtest"
DESCRIPTION: Final = """\
Offers calls to a server and tells what became of them. Without --target it starts one on free ports of this machine,
with the model that ships; a server that runs elsewhere is named by --target HOST:PORT, and by --metrics-url if what
it exposes shall be on the page. DRAGOMAN_API_KEY is sent along where it asks for a key.

Calls arrive at moments that are fixed beforehand, whatever became of those before, and all times count from the moment
at which a call should have been sent: a server that stalls cannot hide it. A generator that was late itself is told
apart: its lag is printed, and beyond --max-lag the run does not count. `--arrivals closed --users N` is the usual
closed loop instead, whose users wait for their answers.

Arrivals: poisson; constant; burst:every=S,size=N (of the rate, so many come at once so often); ramp:from=N,to=N;
trace:FILE[,speed=N] (an offset in seconds a line, or {"offset_s": 1.5, "method": "Translate"}).

Percentiles are of the calls that the server took (answered or late); refusals and errors are figures of their own, so
an objective had better bound them too.

OUTPUT gets loadtest.html (one file, nothing else needed), loadtest.json (for --baseline), calls.jsonl (every call),
and the log of a server that was started.

exit codes: 0 all held; 1 objective or baseline broken, generator late, or the server failed; 2 called wrongly"""

_DURATIONS: Final = {"full": (60.0, 10.0), "short": (10.0, 3.0)}
"""Seconds by mode: measured, to warm up."""
_MAX_LAG_MS: Final = {"full": MAX_GENERATOR_LAG_P99_MS, "short": 100.0}
"""By mode: so few calls have hardly a p99, and the short form is for machines that do something else besides."""
_LATENCIES: Final = ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare what is asked of a load alone."""
    add = parser.add_argument_group("when calls come").add_argument
    add("--arrivals", default="poisson", metavar="KIND", help="as above, or closed (poisson)")
    add("--rate", type=float, default=10.0, metavar="N", help="calls a second, by all processes (10)")
    add("--users", type=int, default=8, metavar="N", help="of the closed loop (8)")
    add("--duration", type=float, metavar="S", help="seconds that are measured (60; short: 10)")
    add("--warm-up", type=float, metavar="S", help="seconds before them (10; short: 3)")
    add("--processes", type=int, default=1, metavar="N", help="that send; each can send some 500 a second (1)")

    add = parser.add_argument_group("what must hold").add_argument
    add("--slo", metavar="BOUNDS", help=GRAMMAR.replace("%", "%%"))
    add("--baseline", type=Path, metavar="JSON", help="loadtest.json of a run of the same load")
    add(
        "--max-regression",
        type=parsed_by(baseline.parse_share),
        default=0.1,
        metavar="SHARE",
        help="by which p50, p95, goodput and tokens_per_s may be worse than the baseline's (10%%)",
    )
    lags = "{full:g}; short: {short:g}".format(**_MAX_LAG_MS)
    add("--max-lag", type=float, metavar="MS", help=f"of the generator, p99 ({lags})")


def prepare(options: argparse.Namespace) -> Callable[[Target], Report]:
    """Return what offers a server the load; ValueError or OSError if that is not possible as the flags say."""
    duration_s, warm_up_s = _DURATIONS[options.mode]
    is_closed = options.arrivals == CLOSED
    load = Load(
        workload=workload_of(options),
        arrivals=None if is_closed else parse_arrivals(options.arrivals, rate_per_s=options.rate),
        num_users=options.users,
        duration_s=duration_s if options.duration is None else options.duration,
        warm_up_s=warm_up_s if options.warm_up is None else options.warm_up,
        seed=options.seed,
        num_processes=options.processes,
    )
    slo = parse_slo(options.slo) if options.slo else None
    kept = baseline.read_baseline(options.baseline, settings_of(load)) if options.baseline else None
    return partial(_measure, options, load, slo, kept)


def _measure(
    options: argparse.Namespace, load: Load, slo: Slo | None, kept: Mapping[str, Any] | None, target: Target
) -> Report:
    run = offer(target, load)
    write_records(options.output / "calls.jsonl", [*run.warm_up_records, *run.records])
    return report_of(
        run,
        circumstances("load"),
        slo=slo,
        max_lag_ms=_MAX_LAG_MS[options.mode] if options.max_lag is None else options.max_lag,
        kept=kept,
        max_regression=options.max_regression,
        broken=unclean_end(target),
    )


def report_of(
    run: Run,
    where: Mapping[str, Any],
    *,
    slo: Slo | None = None,
    max_lag_ms: float = MAX_GENERATOR_LAG_P99_MS,
    kept: Mapping[str, Any] | None = None,
    max_regression: float = 0.0,
    broken: Sequence[str] = (),
) -> Report:
    """Judge a run by its objective, by the lag of its generator, and by the baseline that was kept, if there is one."""
    load, series = run.load, series_of(run)
    figures = figures_of(run, series)
    lag_ms = run.summary.generator_lag.p99_ms
    late = f"generator_lag_p99_ms is {lag_ms:.1f}, the limit is {max_lag_ms:g}: the run does not count"
    not_held = [*broken, *([late] if lag_ms > max_lag_ms else []), *(slo.broken(run.summary) if slo else [])]
    changes: list[list[str]] = []
    if kept is not None:
        changes, worse = baseline.compare(kept["figures"], figures, max_regression)
        not_held += worse
        if sentence := baseline.differing_machine(kept, where["machine"]):
            print(f"loadtests load: {sentence}", file=sys.stderr)
    values = {
        "format": baseline.FORMAT,
        **where,
        "server": server_facts(run.samples[-1].values if run.samples else {}),
        "settings": settings_of(load),
        "duration_s": load.duration_s,
        "warm_up_s": load.warm_up_s,
        "seed": load.seed,
        "processes": load.num_processes,
        "slo": str(slo or ""),
        "broken": not_held,
        "figures": figures,
        "summary": asdict(run.summary),
        "series": [asdict(one) for one in series.values()],
    }
    return Report(
        name=NAME,
        figures={
            "profile": load.workload.profile.value,
            "rate": "closed" if load.arrivals is None else f"{load.arrivals.rate_per_s:g}",
            **{name: rounded(figures[name]) for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms")},
            **{name: rounded(figures[name], 4) for name in ("goodput", "rejected", "errors")},
            "tokens_per_s": rounded(figures["tokens_per_s"], 0),
            "generator_lag_p99_ms": rounded(lag_ms),
        },
        values=values,
        broken=not_held,
        table=markdown(("figure", "baseline", "now", "change"), changes) if changes else "",
        page=render(run, series, values, changes),
    )


def settings_of(load: Load) -> dict[str, Any]:
    """Return what makes two runs comparable: with other settings they are different tests."""
    return {
        "profile": load.workload.profile.value,
        "arrivals": "closed" if load.arrivals is None else load.arrivals.text,
        "rate_per_s": None if load.arrivals is None else load.arrivals.rate_per_s,
        "users": load.num_users if load.arrivals is None else None,
        "workload": flags_of(load.workload),
    }


def figures_of(run: Run, series: Mapping[str, Series]) -> dict[str, float | None]:
    """Return figures by name with its unit, shares from 0 to 1; None: not known."""
    summary = run.summary
    return {
        **(asdict(summary.latency) if summary.latency else dict.fromkeys(_LATENCIES)),
        "goodput": summary.goodput,
        "goodput_per_s": summary.goodput_per_s,
        **{name: getattr(summary, name) / summary.offered for name in ("rejected", "late", "left", "errors")},
        "tokens_per_s": summary.tokens_per_s,
        "batch_segments_mean": series["segments of a step"].mean,
        "queue_segments_max": series["queue"].highest,
        "server_cores": series["processor"].mean,
        "server_memory_mb_max": series["memory"].highest,
        "generator_cores": None if summary.generator_cpu_s is None else summary.generator_cpu_s / run.load.total_s,
        "generator_lag_p99_ms": summary.generator_lag.p99_ms,
    }
