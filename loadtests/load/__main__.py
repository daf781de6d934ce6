"""`python -m loadtests load`: offer a load, judge it, and leave a page, JSON and every call behind."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from loadtests.arrivals import parse_arrivals
from loadtests.flags import parsed_by, verb_parser, workload_of
from loadtests.load import baseline, page
from loadtests.load.baseline import BaselineError, parse_share
from loadtests.load.offer import CLOSED, Load, LoadError, LoadResult, offer
from loadtests.load.run import Run, as_json, broken_promises, line, series_of, settings_of
from loadtests.machine import describe_machine
from loadtests.records import MAX_GENERATOR_LAG_P99_MS
from loadtests.report import command_line, write_json
from loadtests.sampler import server_facts
from loadtests.slo import GRAMMAR, parse_slo
from loadtests.target import ServerError, add_server_flags, open_target

_DESCRIPTION: Final = """\
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
_SHORT_MAX_LAG_MS: Final = 100.0
"""So few calls have hardly a p99, and the short form is for machines that do something else besides."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the test; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        load = _load(options)
        slo = parse_slo(options.slo) if options.slo else None
        kept = baseline.read_baseline(options.baseline) if options.baseline else None
        if kept is not None:
            baseline.require_same(kept, settings_of(load))
    except (ValueError, OSError, BaselineError) as error:
        parser.error(str(error))
    try:
        with open_target(options) as target:
            result = offer(target, load, directory=options.output)
            exit_code = target.stop()
        run = _run(load, result, options.slo or "")
    except (ServerError, LoadError, ValueError, OSError) as error:
        print(f"loadtests load: {error}", file=sys.stderr)
        return 1
    changes = [] if kept is None else baseline.changes(kept, run.figures)
    if kept is not None and (sentence := baseline.differing_machine(kept, run.machine)):
        print(f"loadtests load: {sentence}", file=sys.stderr)
    usual_lag_ms = _SHORT_MAX_LAG_MS if options.mode == "short" else MAX_GENERATOR_LAG_P99_MS
    max_lag_ms = usual_lag_ms if options.max_lag is None else options.max_lag
    regressions = [change.regression(options.max_regression) for change in changes]
    broken = [
        *([f"the server ended with {exit_code}"] if exit_code else []),
        *broken_promises(run.summary, slo=slo, max_lag_ms=max_lag_ms),
        *(regression for regression in regressions if regression is not None),
    ]
    run = replace(run, broken=broken)
    write_json(options.output / "loadtest.json", as_json(run))
    (options.output / "loadtest.html").write_text(page.render(run, changes), encoding="utf-8")
    if changes:
        print(baseline.table(changes))
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    print(line(run))
    return 1 if broken else 0


def _run(load: Load, result: LoadResult, slo: str) -> Run:
    """Return everything about a run but its verdict."""
    return Run(
        load=load,
        result=result,
        summary=result.summary(),
        series=series_of(result),
        machine=describe_machine(),
        command=command_line("load"),
        server=server_facts(result.samples[-1].values if result.samples else {}),
        slo=slo,
        broken=(),
    )


def _load(options: argparse.Namespace) -> Load:
    """Return what is offered.

    Raises:
        ValueError: naming what must be changed.
    """
    duration_s, warm_up_s = _DURATIONS[options.mode]
    is_closed = options.arrivals == CLOSED
    return Load(
        workload=workload_of(options),
        arrivals=None if is_closed else parse_arrivals(options.arrivals, rate_per_s=options.rate),
        num_users=options.users,
        duration_s=duration_s if options.duration is None else options.duration,
        warm_up_s=warm_up_s if options.warm_up is None else options.warm_up,
        seed=options.seed,
        num_processes=options.processes,
    )


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser("load", _DESCRIPTION, output="build/loadtest")
    add_server_flags(parser.add_argument_group("the server"))

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
        type=parsed_by(parse_share),
        default=0.1,
        metavar="SHARE",
        help="by which p50, p95, goodput and tokens_per_s may be worse than the baseline's (10%%)",
    )
    lags = f"{MAX_GENERATOR_LAG_P99_MS:g}; short: {_SHORT_MAX_LAG_MS:g}"
    add("--max-lag", type=float, metavar="MS", help=f"of the generator, p99 ({lags})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
