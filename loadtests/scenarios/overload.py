"""Ten times what the server can do, offered for a while: does it say no early and usefully?"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Final

from matplotlib.figure import Figure

from loadtests.generator.arrivals import poisson
from loadtests.scenarios.capacity import DEFAULT_SLO, PLANS, SearchPlan, find_capacity
from loadtests.generator.flags import parsed_by, within
from loadtests.generator.runner import Generator, Load, Run, offer
from loadtests.generator.records import MAX_GENERATOR_LAG_P99_MS, percentile
from loadtests.report.report import Report, circumstances, draw, figure, rounded, unclean_end
from loadtests.generator.metrics import RESIDENT_BYTES, scrape, work_left
from loadtests.generator.slo import GRAMMAR, parse_slo
from loadtests.generator.server import ServerError, Target
from loadtests.generator.texts import Profile
from loadtests.generator.calls import Method, Outcome
from loadtests.generator.workload import MAX_TEXTS, Workload

NAME: Final = "overload"
DESCRIPTION: Final = """\
Finds the capacity of a server, as `python -m loadtests capacity` does but more coarsely: calls of one text each by the
second. Then offers ten times as many texts for a minute, in larger calls that the generator can send: they arrive at
random moments (Poisson), whatever became of those before, each with a deadline. Without --target it starts a server on
free ports of this machine, with the model that ships.

What must hold: rejected calls are answered within 50 ms at p99 and say when to retry; accepted ones are answered
before their deadline; nothing fails otherwise; the server's memory stays bounded; at least half of the capacity is
still used; afterwards the server answers again at once.

All times count from the moment at which a call should have been sent, so that a generator that is late hides nothing.
Its own lag is printed; the run does not count if it was late itself.

The line, the JSON and the picture (DIR/overload.json, DIR/overload.png) hold the same run.

exit codes: 0 every promise held, 1 one was broken or the server failed, 2 called wrongly"""

WORKLOAD: Final = Workload(texts_per_call=16, deadline_s=2.0)

_PLANS: Final = {"full": SearchPlan(closed_loop_s=10.0, probe_s=5.0, resolution=0.1), "short": PLANS["short"]}
_DURATIONS_S: Final = {"full": 60.0, "short": 15.0}
_MAX_CALLS_PER_S: Final = 400.0  # what the generator sends without being late; more work makes the calls larger
_MAX_REJECTED_P99_MS: Final = 50.0
_MIN_GOODPUT: Final = 0.5  # of the capacity: the generator and the rejections take their share of the cores


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare what is asked of an overload alone."""
    parser.add_argument("--short", action="store_const", const="short", dest="mode", help="as --mode short")
    add = parser.add_argument_group("what is offered").add_argument
    add("--factor", type=within(0.001, 3600), default=10.0, metavar="N", help="times the capacity (10)")
    add("--capacity", type=within(0.001, 1e6), metavar="N", help="as `capacity` finds it, in place of a search")
    slo = f"of the search; {GRAMMAR}".replace("%", "%%")
    add("--slo", type=parsed_by(parse_slo), default=DEFAULT_SLO, metavar="BOUNDS", help=slo)
    add("--duration", type=within(0.001, 3600), metavar="S", help="seconds of the overload (60; short: 15)")
    add("--max-rss-growth-mb", type=within(0.001, 3600), default=128.0, metavar="MB", help="memory promise (128)")


def prepare(options: argparse.Namespace, workload: Workload) -> Callable[[Target], Report]:
    """Return what overloads a server; ValueError or OSError if there are no texts for it."""
    workload.calls(options.seed)
    return partial(_measure, options, workload)


def _measure(options: argparse.Namespace, workload: Workload, target: Target) -> Report:
    """Offer so many times the capacity, in calls that are large enough for the generator."""
    one_text = Generator(target=target, workload=replace(workload, texts_per_call=1))
    texts_per_s = options.capacity or find_capacity(one_text, options.slo, _PLANS[options.mode]).per_s
    size = texts_per_call(workload, options.factor * texts_per_s)
    load = Load(
        workload=replace(workload, texts_per_call=size),
        arrivals=poisson(options.factor * texts_per_s / size),
        duration_s=options.duration or _DURATIONS_S[options.mode],
        seed=options.seed,
    )
    if target.process:  # its memory is read without asking it, as it has enough to do
        run = offer(replace(target, metrics_url=None), load, pids=[target.process.pid])
    else:
        run = offer(target, load)
    replace(one_text, warm_up_s=0.0).throughput_per_s(duration_s=0.1, num_callers=1)  # it must answer again at once
    if left := work_left(scrape(target.metrics_url)) if target.metrics_url else {}:
        raise ServerError(f"work is left after the overload: {left}")
    return report_of(run, options, capacity_per_s=texts_per_s / size, broken=unclean_end(target))


def texts_per_call(workload: Workload, texts_per_s: float) -> int:
    """Return how many texts a call must have so that the generator need not send more calls than it can.

    Calls that cannot take more texts than one keep that.
    """
    methods = {method for method, _ in workload.methods.shares} or {Method.TRANSLATE}
    if workload.profile is Profile.DOCUMENT or methods - {Method.TRANSLATE, Method.TRANSLATE_STREAM}:
        return 1
    needed = math.ceil(texts_per_s / _MAX_CALLS_PER_S)
    return min(max(needed, workload.texts_per_call), MAX_TEXTS)


def report_of(run: Run, options: argparse.Namespace, *, capacity_per_s: float, broken: Sequence[str] = ()) -> Report:
    """Judge an overload of a server that can answer so many calls of this size by the second."""
    summary, load, max_growth_mb = run.summary, run.load, options.max_rss_growth_mb
    rejected, accepted = summary.rejected_latency, summary.stages["client"]
    goodput = summary.goodput_per_s / capacity_per_s
    sizes = [(sample.at_s - run.began_s, sample.total(RESIDENT_BYTES) / 2**20) for sample in run.samples]
    memory_mb = [(at_s, size_mb) for at_s, size_mb in sizes if at_s > -1 and math.isfinite(size_mb)]
    growth_mb = max(size_mb for _, size_mb in memory_mb) - memory_mb[0][1] if memory_mb else None
    waits_s = [one.ended_s - one.sent_s for one in run.records if one.outcome is Outcome.REJECTED]
    from_send_ms = 1000 * percentile(waits_s, 0.99) if waits_s else None
    promises = {
        "nothing was rejected: this was no overload": rejected is not None,
        f"rejected calls waited more than {_MAX_REJECTED_P99_MS:g} ms at p99": rejected is None
        or rejected.p99_ms < _MAX_REJECTED_P99_MS,
        f"{summary.late} accepted calls were not answered before their deadline": not summary.late,
        f"{summary.errors} calls failed otherwise: {dict(summary.statuses)}": not summary.errors,
        f"the server grew by more than {max_growth_mb:g} MB": (growth_mb or 0.0) <= max_growth_mb,
        f"less than {_MIN_GOODPUT:.0%} of the capacity was answered": goodput >= _MIN_GOODPUT,
        f"the generator itself was more than {MAX_GENERATOR_LAG_P99_MS:g} ms late at p99": not summary.generator_lagged,
    }
    not_held = [*broken, *(sentence for sentence, held in promises.items() if not held)]
    return Report(
        name=NAME,
        figures={
            "rejected_p99_ms": rounded(rejected.p99_ms if rejected else None),
            "accepted_late": summary.late,
            "errors_other": summary.errors,
            "rss_growth_mb": rounded(growth_mb),
            "offered": summary.offered,
            "accepted": summary.answered + summary.late,
            "rejected": summary.rejected,
            "capacity_per_s": rounded(capacity_per_s),
            "offered_per_s": rounded(summary.offered_per_s),
            "goodput": rounded(goodput, 2),
            "rejected_p50_ms": rounded(rejected.p50_ms if rejected else None),
            "rejected_p99_from_send_ms": rounded(from_send_ms),
            "accepted_p99_ms": rounded(accepted.p99_ms if accepted else None),
            "generator_lag_p99_ms": rounded(summary.generator_lag.p99_ms),
        },
        values={
            **circumstances(NAME),
            "settings": {
                "factor": options.factor,
                "deadline_s": load.workload.deadline_s,
                "seed": load.seed,
                "duration_s": load.duration_s,
                "texts_per_call": load.workload.texts_per_call,
            },
            "capacity_per_s": capacity_per_s,
            "goodput": goodput,
            "rss_growth_mb": growth_mb,
            "rejected_p99_from_send_ms": from_send_ms,
            "summary": asdict(summary),
            "broken_promises": not_held,
            "memory_mb": [[round(at_s, 3), round(size_mb, 1)] for at_s, size_mb in memory_mb],
            "calls": [  # planned, lag, latency, status
                [round(one.planned_s - run.began_s, 5), round(one.lag_s, 5), round(one.latency_s, 5), one.status]
                for one in run.records
            ],
        },
        broken=not_held,
        picture=_picture(run, capacity_per_s, memory_mb),
    )


def _picture(run: Run, capacity_per_s: float, memory_mb: Sequence[tuple[float, float]]) -> Figure:
    """Draw calls by the second in which they came or ended, the time until the end of each, and the memory."""
    counts = {"offered": Counter(int(one.planned_s - run.began_s) for one in run.records)}
    for one in run.records:
        counts.setdefault(one.outcome.value, Counter())[int(one.ended_s - run.began_s)] += 1
    seconds = range(max(counts["offered"]) + 1)
    by_second = {name: [(second, counted[second]) for second in seconds] for name, counted in counts.items()}
    drawn, (rates, latencies, memory) = figure(3, size=(9, 8), sharex=True)
    draw(rates, by_second, limits={"capacity": capacity_per_s}, ylabel="calls a second")
    deadline = {"deadline": 1000 * run.load.workload.deadline_s}
    draw(latencies, {}, dots=run.latencies_ms(), limits=deadline, yscale="log", ylabel="milliseconds to the end")
    draw(memory, {"memory": memory_mb}, xlabel="seconds", ylabel="server memory, MiB")
    return drawn
