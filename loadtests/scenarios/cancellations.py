"""Scenario `cancellations`: tens of thousands of calls that their clients cancel at any moment; checks for leaks."""

import argparse
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from loadtests.generator.flags import several, within
from loadtests.generator.metrics import footprint
from loadtests.generator.server import ServerProcess
from loadtests.generator.texts import SENTENCES, Texts
from loadtests.generator.workload import Mix
from loadtests.report.report import Report, at_most, require
from loadtests.scenarios.soak.accounting import Accounting, Entry, read_access_log
from loadtests.scenarios.soak.calls import CallerPool, Kind
from loadtests.scenarios.soak.plan import EVERYTHING, Plan, Traffic
from loadtests.scenarios.stress_server import only_bundle, started, wait_until_idle

SUMMARY: Final = "50,000 calls that their clients cancel at any moment; checks for leaks"

DESCRIPTION: Final = """\
Starts the server on free local ports and makes calls that their clients cancel: before admission, in the queue, while
decoding, while the response is sent. One of twenty clients waits for the response. The calls are Translate,
TranslateDocument and TranslateStream.

Checks: a client that waits gets the right response; a cancelled call ends with CANCELLED, or OK if the response was
faster; clients and server count the same calls; afterwards no request is in flight and no segment queued or decoded;
the server's memory after the warm-up and at the end differs by a few megabytes at most; the server drains and exits
with 0."""

_METHODS: Final = {method.value: method for method in EVERYTHING.methods.weights}
_COUNTS: Final = {"short": (4_000, 1_000), "full": (50_000, 5_000)}  # measured calls, warm-up calls
TRAFFIC: Final = Traffic(
    kinds=Mix({Kind.USUAL: 1, Kind.CANCELS: 19}),
    methods=Mix(),
    texts=Mix({"empty": 5, "word": 10, "chat": 42, "sentence": 43}),
    documents=Mix({"blank": 5, "paragraph": 95}),
    defaults_share=1.0,
)
_WINDOW: Final = 0.1  # share of the memory samples at each end whose medians are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Calls; memory since the warm-up; remaining work and metrics at the end."""

    accounting: Accounting
    memory_mb: Sequence[float]
    left: Mapping[str, float]
    metrics: Mapping[str, float]
    elapsed_s: float

    @property
    def rss_growth_mb(self) -> float:
        """Memory at the end minus memory after the warm-up."""
        size = max(1, round(_WINDOW * len(self.memory_mb)))
        return median(self.memory_mb[-size:]) - median(self.memory_mb[:size])


def cancel_calls(tested: ServerProcess, options: argparse.Namespace) -> Observations:
    """Make the calls of the warm-up and of the measurement."""
    accounting, memory_mb = Accounting(), list[float]()
    num_calls, num_warm_up = _COUNTS[options.mode]
    models = ("", only_bundle(options.model_dir).parent.name)
    traffic = replace(TRAFFIC, methods=Mix(dict.fromkeys(options.methods, 1)))
    texts = Texts(SENTENCES, origin="built-in sentences")
    warm_up = Plan(texts=texts, models=models, prefix="w", seed=options.seed + 1, traffic=traffic)
    plan = Plan(texts=texts, models=models, prefix="c", seed=options.seed, traffic=traffic)
    pool = CallerPool(address=tested.target, num_callers=options.callers, record=accounting.record, look_each_s=0.25)
    pool.run(itertools.islice(warm_up, options.warm_up or num_warm_up))
    began_s = time.monotonic()
    pool.run(
        itertools.islice(plan, options.calls or num_calls), look=lambda: memory_mb.append(footprint(tested.pid).rss_mb)
    )
    elapsed_s, left = time.monotonic() - began_s, wait_until_idle(tested, timeout_s=30.0)
    memory_mb.append(footprint(tested.pid).rss_mb)
    return Observations(
        accounting=accounting, memory_mb=memory_mb, left=left, metrics=tested.samples(), elapsed_s=elapsed_s
    )


def report_of(
    found: Observations, logged: Sequence[Entry], log_errors: Sequence[str], *, exit_code: int, max_rss_growth_mb: float
) -> Report:
    """Return figures and checks."""
    accounting = found.accounting
    num_cancelled, num_answered = accounting.num_ended("CANCELLED"), accounting.num_ended("OK")
    return Report(
        name="cancellations",
        figures={
            "calls": accounting.num_calls,
            "rss_growth_mb": f"{found.rss_growth_mb:.1f}",
            "unanswered": len(accounting.unanswered) + len(accounting.errors),
            "cancelled": num_cancelled,
            "answered": num_answered,
            "left": f"{sum(found.left.values()):g}",
            "rss_mb": f"{found.memory_mb[-1]:.0f}",
            "calls_per_s": f"{accounting.num_calls / found.elapsed_s:.0f}",
        },
        checks=[
            *accounting.checks(logged, found.metrics, errors=log_errors, exit_code=exit_code),
            require("the server is idle afterwards", not found.left, f"work remains: {found.left}"),
            at_most("memory growth of the server", found.rss_growth_mb, max_rss_growth_mb, unit="MB"),
            require(
                "both ends occurred", bool(num_cancelled and num_answered), f"calls ended with {dict(accounting.ends)}"
            ),
        ],
        values={
            "ends": {f"{kind} {status}": count for (kind, status), count in sorted(accounting.ends.items())},
            "left": dict(found.left),
            "elapsed_s": found.elapsed_s,
            "memory_mb": [round(size_mb, 1) for size_mb in found.memory_mb],
        },
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this scenario."""
    add, count, names = parser.add_argument, within(1, 1_000_000, int), ",".join(_METHODS)
    add("--calls", type=count, metavar="N", help="number of calls (short 4000, full 50000)")
    add("--warm-up", type=count, metavar="N", help="calls before the first memory sample (short 1000, full 5000)")
    add("--callers", type=within(1, 256, int), default=32, metavar="N", help="concurrent calls (32)")
    add("--methods", type=several(_METHODS), default=names, metavar="NAME,...", help=f"some of {names} (all)")
    add("--max-rss-growth-mb", type=float, default=32.0, metavar="MB", help="memory limit (32)")


def run(options: argparse.Namespace) -> int:
    """Run the scenario; return the exit code."""
    with started(options.output, models=options.model_dir) as tested:
        found = cancel_calls(tested, options)
        exit_code = tested.stop()
    logged, max_growth_mb = read_access_log(options.output), options.max_rss_growth_mb
    return report_of(found, *logged, exit_code=exit_code, max_rss_growth_mb=max_growth_mb).conclude(options.output)
