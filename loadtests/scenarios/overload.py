"""`overload`: ten times the capacity; checks fast rejection with retry delays."""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Final

from dragoman_service.cli.server_process import ServerProcessError
from loadtests.generator.calls import Method, Outcome
from loadtests.generator.flags import parsed_by, within
from loadtests.generator.metrics import RESIDENT_BYTES, remaining_work, scrape
from loadtests.generator.records import MAX_GENERATOR_LAG_P99_MS, percentile
from loadtests.generator.runner import Generator, Load, Run, offer
from loadtests.generator.server import Target
from loadtests.generator.slo import GRAMMAR, parse_slo
from loadtests.generator.texts import Profile
from loadtests.generator.workload import MAX_TEXTS, Workload
from loadtests.report.report import Report, environment, rounded
from loadtests.scenarios.capacity import DEFAULT_SLO, PLANS, SearchPlan, find_capacity

NAME: Final = "overload"
DESCRIPTION: Final = """\
Finds the capacity of a server, as `python -m loadtests capacity` does but more coarsely, for calls of one text. Then
offers ten times as many texts for a minute, in calls that are large enough for the generator: Poisson arrivals, each
with a deadline. Without --target it starts a server on free local ports with the bundled models.

Checks: rejections are answered within 50 ms at p99 and contain a retry delay; accepted calls are answered before their
deadline; no other failures; bounded memory of the server; at least half of the capacity is used; afterwards the server
answers again at once.

Times count from the scheduled time of a call. The run is invalid if the generator itself was late.

OUTPUT contains overload.json.

exit codes: 0 all checks passed, 1 a check or the server failed, 2 invalid usage"""

WORKLOAD: Final = Workload(texts_per_call=16, deadline_s=2.0)

_PLANS: Final = {"full": SearchPlan(closed_loop_s=10.0, probe_s=5.0, resolution=0.1), "short": PLANS["short"]}
_DURATIONS_S: Final = {"full": 60.0, "short": 15.0}
_MAX_CALLS_PER_S: Final = 400.0  # that the generator sends without lag
_MAX_REJECTED_P99_MS: Final = 50.0
_MIN_GOODPUT: Final = 0.5  # of the capacity; generator and rejections share the cores


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `overload`."""
    add = parser.add_argument_group("load").add_argument
    add("--factor", type=within(0.001, 3600), default=10.0, metavar="N", help="multiple of the capacity (10)")
    add("--capacity", type=within(0.001, 1e6), metavar="N", help="result of `capacity`, to skip the search")
    slo = f"of the search; {GRAMMAR}".replace("%", "%%")
    add("--slo", type=parsed_by(parse_slo), default=DEFAULT_SLO, metavar="BOUNDS", help=slo)
    add("--duration", type=within(0.001, 3600), metavar="S", help="seconds of overload (60; short: 15)")
    add("--max-rss-growth-mb", type=within(0.001, 3600), default=128.0, metavar="MB", help="memory limit (128)")


def prepare(options: argparse.Namespace, workload: Workload) -> Callable[[Target], Report]:
    """Return the measurement; raises ValueError or OSError without texts."""
    workload.calls(options.seed)
    return partial(_measure, options, workload)


def _measure(options: argparse.Namespace, workload: Workload, target: Target) -> Report:
    one_text = Generator(target=target, workload=replace(workload, texts_per_call=1))
    texts_per_s = options.capacity or find_capacity(one_text, options.slo, _PLANS[options.mode]).per_s
    size = texts_per_call(workload, options.factor * texts_per_s)
    load = Load(
        workload=replace(workload, texts_per_call=size),
        rate_per_s=options.factor * texts_per_s / size,
        duration_s=options.duration or _DURATIONS_S[options.mode],
        seed=options.seed,
    )
    if target.process:  # sample the process, because the server is busy
        run = offer(replace(target, metrics_url=None), load, pids=[target.process.pid])
    else:
        run = offer(target, load)
    replace(one_text, warm_up_s=0.0).throughput_per_s(duration_s=0.1, num_users=1)  # raises unless it answers
    if work := remaining_work(scrape(target.metrics_url)) if target.metrics_url else {}:
        raise ServerProcessError(f"work remains after the overload: {work}")
    return report_of(run, options, capacity_per_s=texts_per_s / size, failures=target.stop())


def texts_per_call(workload: Workload, texts_per_s: float) -> int:
    """Return how many texts a call needs so that the generator is fast enough; 1 for methods that take one text."""
    methods = workload.methods.weights.keys() or {Method.TRANSLATE}
    if workload.profile is Profile.DOCUMENT or methods - {Method.TRANSLATE, Method.TRANSLATE_STREAM}:
        return 1
    needed = math.ceil(texts_per_s / _MAX_CALLS_PER_S)
    return min(max(needed, workload.texts_per_call), MAX_TEXTS)


def report_of(run: Run, options: argparse.Namespace, *, capacity_per_s: float, failures: Sequence[str] = ()) -> Report:
    """Check an overload of a server; the capacity is in calls of the size of this run."""
    summary, load, max_growth_mb = run.summary, run.load, options.max_rss_growth_mb
    rejected, accepted = summary.rejected_latency, summary.answered_latency
    goodput = summary.goodput_per_s / capacity_per_s
    sizes = [(sample.at_s - run.began_s, sample.total(RESIDENT_BYTES) / 2**20) for sample in run.samples]
    memory_mb = [(at_s, size_mb) for at_s, size_mb in sizes if at_s > -1 and math.isfinite(size_mb)]
    growth_mb = max(size_mb for _, size_mb in memory_mb) - memory_mb[0][1] if memory_mb else None
    waits_s = [one.ended_s - one.sent_s for one in run.records if one.outcome is Outcome.REJECTED]
    from_send_ms = 1000 * percentile(waits_s, 0.99) if waits_s else None
    conditions = {
        "no call was rejected: not an overload": rejected is not None,
        f"rejections took more than {_MAX_REJECTED_P99_MS:g} ms at p99": rejected is None
        or rejected.p99_ms < _MAX_REJECTED_P99_MS,
        f"{summary.late} accepted calls missed their deadline": not summary.late,
        f"{summary.errors} calls failed: {dict(summary.statuses)}": not summary.errors,
        f"memory of the server grew by more than {max_growth_mb:g} MB": (growth_mb or 0.0) <= max_growth_mb,
        f"less than {_MIN_GOODPUT:.0%} of the capacity was answered": goodput >= _MIN_GOODPUT,
        f"generator lag exceeded {MAX_GENERATOR_LAG_P99_MS:g} ms at p99": not summary.generator_lagged,
    }
    violations = [*failures, *(sentence for sentence, holds in conditions.items() if not holds)]
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
            **environment(NAME),
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
            "violations": violations,
            "memory_mb": [[round(at_s, 3), round(size_mb, 1)] for at_s, size_mb in memory_mb],
            "calls": [  # scheduled time, lag, latency, status
                [round(one.planned_s - run.began_s, 5), round(one.lag_s, 5), round(one.latency_s, 5), one.status]
                for one in run.records
            ],
        },
        violations=violations,
    )
