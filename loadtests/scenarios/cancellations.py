"""Scenario `cancellations`: tens of thousands of calls whose callers cancel at any moment leave nothing behind."""

import argparse
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from loadtests.generator.flags import several, within
from loadtests.generator.metrics import footprint
from loadtests.scenarios.callers import Kind, Load
from loadtests.scenarios.stress_server import only_bundle, started, wait_until_idle
from loadtests.scenarios.soak.accounting import Entry, Notes, read_access_log
from loadtests.scenarios.soak.plan import EVERYTHING, Mix, Plan
from loadtests.report.checks import Summary, at_most, conclude, require
from loadtests.generator.server import ServerProcess
from loadtests.generator.texts import SENTENCES, Texts

SUMMARY: Final = "50,000 calls whose callers cancel at any moment: does anything of them stay?"

DESCRIPTION: Final = """\
Starts the server on free ports of this machine and makes calls whose callers cancel: before the request is admitted,
while it waits, while it is decoded, while the answer is written. One of twenty waits for the answer. The calls are of
Translate, TranslateDocument and TranslateStream.

What must hold: a caller that waits is answered, and rightly; a call that is cancelled ends with CANCELLED (or OK, if
the answer was faster); clients and server count the same calls; no request is in flight and no segment queued or
decoded afterwards; the server's memory after the first calls, which are not counted, and at the end is the same but for
a few megabytes; the server drains and ends with 0."""

_METHODS: Final = {method.value: method for method in EVERYTHING.methods}
_COUNTS: Final = {"short": (4_000, 1_000), "full": (50_000, 5_000)}  # calls, and calls before them that only warm up
MIX: Final = Mix(
    kinds={Kind.USUAL: 1, Kind.CANCELS: 19},
    methods={},
    texts={"nothing": 5, "word": 10, "chat": 42, "sentence": 43},
    documents={"blank": 5, "paragraph": 95},
    defaults_share=1.0,
)
_WINDOW: Final = 0.1  # share of the memory samples, at each end, whose medians are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was seen: memory from the end of the warm-up, at even distances; what is left of gauges and steps."""

    notes: Notes
    memory_mb: Sequence[float]
    left: Mapping[str, float]
    metrics: Mapping[str, float]
    elapsed_s: float

    @property
    def rss_growth_mb(self) -> float:
        """Memory towards the end less that after the warm-up."""
        size = max(1, round(_WINDOW * len(self.memory_mb)))
        return median(self.memory_mb[-size:]) - median(self.memory_mb[:size])


def cancel_calls(tested: ServerProcess, options: argparse.Namespace) -> Found:
    """Make all calls of a plan, after others that only warm up."""
    notes, memory_mb = Notes(), list[float]()
    num_calls, num_warm_up = _COUNTS[options.mode]
    models = ("", only_bundle(options.model_dir).parent.name)
    mix, texts = replace(MIX, methods=dict.fromkeys(options.methods, 1)), Texts(SENTENCES, origin="built-in sentences")
    warm_up = Plan(texts=texts, models=models, prefix="w", seed=options.seed + 1, mix=mix)
    plan = Plan(texts=texts, models=models, prefix="c", seed=options.seed, mix=mix)
    load = Load(target=tested.target, num_callers=options.callers, note=notes.note, look_each_s=0.25)
    load.run(itertools.islice(warm_up, options.warm_up or num_warm_up))
    began_s = time.monotonic()
    load.run(
        itertools.islice(plan, options.calls or num_calls), look=lambda: memory_mb.append(footprint(tested.pid).rss_mb)
    )
    elapsed_s, left = time.monotonic() - began_s, wait_until_idle(tested, timeout_s=30.0)
    memory_mb.append(footprint(tested.pid).rss_mb)
    return Found(notes=notes, memory_mb=memory_mb, left=left, metrics=tested.samples(), elapsed_s=elapsed_s)


def summarize(
    found: Found, logged: Sequence[Entry], complaints: Sequence[str], *, exit_code: int, max_rss_growth_mb: float
) -> Summary:
    """Return figures and promises."""
    notes = found.notes
    num_cancelled, num_answered = notes.num_ended("CANCELLED"), notes.num_ended("OK")
    figures = {
        "calls": notes.num_calls,
        "rss_growth_mb": f"{found.rss_growth_mb:.1f}",
        "unanswered": len(notes.unanswered) + len(notes.errors),
        "cancelled": num_cancelled,
        "answered": num_answered,
        "left": f"{sum(found.left.values()):g}",
        "rss_mb": f"{found.memory_mb[-1]:.0f}",
        "calls_per_s": f"{notes.num_calls / found.elapsed_s:.0f}",
    }
    promises = [
        *notes.promises(logged, found.metrics, errors=complaints, exit_code=exit_code),
        require("the server is idle afterwards", not found.left, f"work is left: {found.left}"),
        at_most("memory of the server grows", found.rss_growth_mb, max_rss_growth_mb, unit="MB"),
        require("both ends are met", bool(num_cancelled and num_answered), f"calls ended with {dict(notes.ends)}"),
    ]
    return Summary(scenario="cancellations", figures=figures, promises=promises)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this scenario."""
    add, count, names = parser.add_argument, within(1, 1_000_000, int), ",".join(_METHODS)
    add("--calls", type=count, metavar="N", help="in place of those of the mode (short 4000, full 50000)")
    add("--warm-up", type=count, metavar="N", help="calls before memory is first looked at (short 1000, full 5000)")
    add("--callers", type=within(1, 256, int), default=32, metavar="N", help="calls at a time (32)")
    add("--methods", type=several(_METHODS), default=names, metavar="NAME,...", help=f"some of {names} (all)")
    add("--max-rss-growth-mb", type=float, default=32.0, metavar="MB", help="memory promise (32)")


def run(options: argparse.Namespace) -> int:
    """Run the scenario; return the exit code."""
    with started(options.output, models=options.model_dir) as tested:
        found = cancel_calls(tested, options)
        exit_code = tested.stop()
    heard, max_growth_mb = read_access_log(options.output), options.max_rss_growth_mb
    summary = summarize(found, *heard, exit_code=exit_code, max_rss_growth_mb=max_growth_mb)
    details = {
        "ends": {f"{kind} {status}": count for (kind, status), count in sorted(found.notes.ends.items())},
        "left": dict(found.left),
        "elapsed_s": found.elapsed_s,
        "memory_mb": [round(size_mb, 1) for size_mb in found.memory_mb],
    }
    return conclude(summary, options.output, details=details)
