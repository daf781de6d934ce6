"""Offers one load, judges it, and leaves a page, JSON and every call behind."""

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
from loadtests.generator.runner import Load, Run, offer
from loadtests.report.page import Series, render, series_of
from loadtests.generator.records import MAX_GENERATOR_LAG_P99_MS, write_records
from loadtests.report.report import Report, circumstances, markdown, rounded, unclean_end
from loadtests.generator.metrics import server_facts
from loadtests.generator.slo import GRAMMAR, parse_slo
from loadtests.generator.server import Target
from loadtests.generator.workload import Workload

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

_CLOSED: Final = "closed"  # in place of arrivals: users who wait for their answers
_DURATIONS: Final = {"full": (60.0, 10.0), "short": (10.0, 3.0)}  # seconds by mode: measured, to warm up
_MAX_LAG_MS: Final = {"full": MAX_GENERATOR_LAG_P99_MS, "short": 100.0}
"""By mode: so few calls have hardly a p99, and the short form is for machines that do something else besides."""
_FORMAT: Final = 1  # of `loadtest.json`; a baseline of another one is refused

_JUDGED: Final[Mapping[str, int]] = {"p50_ms": 1, "p95_ms": 1, "goodput_per_s": -1, "tokens_per_s": -1}
"""Figures that may not become worse, and in which direction worse is. What is refused, late or an error lowers the
goodput."""

_Figures = Mapping[str, float | None]
_Kept = Mapping[str, Any] | None
_LATENCIES: Final = ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare what is asked of a load alone."""
    add = parser.add_argument_group("when calls come").add_argument
    add("--arrivals", default="poisson", metavar="KIND", help="as above, or closed (poisson)")
    add("--rate", type=float, default=10.0, metavar="N", help="calls a second, by all processes (10)")
    add("--users", type=within(1, 10_000, int), default=8, metavar="N", help="of the closed loop (8)")
    add("--duration", type=within(0.001, 86_400), metavar="S", help="seconds that are measured (60; short: 10)")
    add("--warm-up", type=within(0, 86_400), metavar="S", help="seconds before them (10; short: 3)")
    processes = "that send; each can send some 500 a second (1)"
    add("--processes", type=within(1, 64, int), default=1, metavar="N", help=processes)

    add = parser.add_argument_group("what must hold").add_argument
    add("--slo", type=parsed_by(parse_slo), metavar="BOUNDS", help=GRAMMAR.replace("%", "%%"))
    add("--baseline", type=Path, metavar="JSON", help="loadtest.json of a run of the same load")
    worse = "by which p50, p95, goodput and tokens_per_s may be worse than the baseline's (10%%)"
    add("--max-regression", type=parsed_by(parse_share), default=0.1, metavar="SHARE", help=worse)
    lags = "{full:g}; short: {short:g}".format(**_MAX_LAG_MS)
    add("--max-lag", type=float, metavar="MS", help=f"of the generator, p99 ({lags})")


def prepare(options: argparse.Namespace, workload: Workload) -> Callable[[Target], Report]:
    """Return what offers a server the load; ValueError or OSError if that is not possible as the flags say."""
    duration_s, warm_up_s = _DURATIONS[options.mode]
    is_closed = options.arrivals == _CLOSED
    if is_closed and options.users < options.processes:
        raise ValueError(f"{options.users} users: expected at least one for each process")
    load = Load(
        workload=workload,
        arrivals=None if is_closed else parse_arrivals(options.arrivals, rate_per_s=options.rate),
        num_users=options.users,
        duration_s=duration_s if options.duration is None else options.duration,
        warm_up_s=warm_up_s if options.warm_up is None else options.warm_up,
        seed=options.seed,
        num_processes=options.processes,
    )
    kept = read_baseline(options.baseline, settings_of(load)) if options.baseline else None
    return partial(_measure, options, load, kept)


def _measure(options: argparse.Namespace, load: Load, kept: _Kept, target: Target) -> Report:
    run = offer(target, load)
    write_records(options.output / "calls.jsonl", [*run.warm_up_records, *run.records])
    return report_of(run, options, circumstances("load"), kept=kept, broken=unclean_end(target))


def report_of(
    run: Run, options: argparse.Namespace, where: Mapping[str, Any], *, kept: _Kept = None, broken: Sequence[str] = ()
) -> Report:
    """Judge a run by its objective, by the lag of its generator, and by the baseline that was kept, if there is one."""
    load, series, slo = run.load, series_of(run), options.slo
    figures = figures_of(run, series)
    lag_ms = run.summary.generator_lag.p99_ms
    max_lag_ms = _MAX_LAG_MS[options.mode] if options.max_lag is None else options.max_lag
    late = f"generator_lag_p99_ms is {lag_ms:.1f}, the limit is {max_lag_ms:g}: the run does not count"
    not_held = [*broken, *([late] if lag_ms > max_lag_ms else []), *(slo.broken(run.summary) if slo else [])]
    changes: list[list[str]] = []
    if kept is not None:
        changes, worse = compare(kept["figures"], figures, options.max_regression)
        not_held += worse
        before, now = (f"{one['cpu']} with {one['cores']} cores" for one in (kept["machine"], where["machine"]))
        if before != now:
            print(f"loadtests load: the baseline is of {before}, this run of {now}", file=sys.stderr)
    values = {
        "format": _FORMAT,
        **where,
        "server": server_facts(run.samples[-1].values if run.samples else {}),
        "settings": settings_of(load),
        **{name: getattr(load, name) for name in ("duration_s", "warm_up_s", "seed")},
        "processes": load.num_processes,
        "slo": str(slo or ""),
        "broken": not_held,
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
        broken=not_held,
        table=markdown(("figure", "baseline", "now", "change"), changes) if changes else "",
        page=partial(render, run, series, values, changes),
    )


def settings_of(load: Load) -> dict[str, Any]:
    """Return what makes two runs comparable: with other settings they are different tests."""
    return {
        "profile": load.workload.profile.value,
        "arrivals": _CLOSED if load.arrivals is None else load.arrivals.text,
        "rate_per_s": None if load.arrivals is None else load.arrivals.rate_per_s,
        "users": load.num_users if load.arrivals is None else None,
        "workload": flags_of(load.workload),
    }


def figures_of(run: Run, series: Mapping[str, Series]) -> _Figures:
    """Return figures by name with its unit, shares from 0 to 1; None: not known."""
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
    """Return a run that was kept as `loadtest.json`; ValueError if the file is none, or of other settings."""
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found, before = kept["format"], kept["settings"]
        kept["machine"]["cpu"], kept["machine"]["cores"], kept["figures"].items(), before.items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no run of a load test ({type(error).__name__}: {error})") from error
    if found != _FORMAT:
        raise ValueError(f"{path}: is of format {found}, expected {_FORMAT}: keep a new baseline")
    if changed := [name for name in settings if before.get(name) != settings[name]]:
        pairs = "; ".join(f"{name} {before.get(name)}, now {settings[name]}" for name in changed)
        raise ValueError(f"the baseline is of another load: {pairs}; offer the same, or keep a new baseline")
    return kept


def compare(before: _Figures, now: _Figures, most: float) -> tuple[list[list[str]], list[str]]:
    """Return name, baseline, now and change of every figure, as they are shown, those that are judged with a star.

    Beside these rows, a sentence for each judged figure that is worse by more than the given share.
    """
    rows, sentences = [], []
    for name, value in now.items():
        was = before.get(name)
        then, here = ("none" if one is None else f"{one:.4g}" for one in (was, value))
        change = value / was - 1 if was and value is not None else None
        rows.append([f"{name} *" if name in _JUDGED else name, then, here, "" if change is None else f"{change:+.1%}"])
        worse = _JUDGED.get(name, 0) * (change or 0.0)
        if name in _JUDGED and was is not None and value is None:
            sentences.append(f"{name} was {then} in the baseline and is not known now")
        elif worse > most:
            limit = f"worse by {worse:.1%}, the limit is {most:.1%}"
            sentences.append(f"{name} is {here}, the baseline has {then}: {limit}")
    return rows, sentences


def parse_share(text: str) -> float:
    """Return the share that a text such as `10%` or `0.1` names; ValueError if it names none, or a negative one."""
    number = text.strip()
    share = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    if not 0 <= share < math.inf:
        raise ValueError(f"{text}: expected a share such as 10%")
    return share
