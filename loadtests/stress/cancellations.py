"""Scenario `cancellations`: tens of thousands of calls whose callers cancel at any moment leave nothing behind."""

import argparse
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from loadtests import wire
from loadtests.flags import within
from loadtests.stress import report, server
from loadtests.stress.calls import Ended, Ending, Load, Moment, PlannedCall, UsualTimes, draw_moment
from loadtests.stress.verdict import Promise, Summary, at_most, require
from loadtests.target import ServerProcess, wait_until_idle
from loadtests.wire import Method

SUMMARY: Final = "50,000 calls whose callers cancel at any moment: does anything of them stay?"

DESCRIPTION: Final = """\
Starts the server on free ports of this machine and makes calls whose callers cancel: before the request is admitted,
while it waits, while it is decoded, while the answer is written. One of twenty waits for the answer. Translate,
TranslateDocument and TranslateStream follow each other.

What must hold: a caller that waits is answered; a call that is cancelled ends with CANCELLED (or OK, if the answer was
faster); no request is in flight and no segment queued or decoded afterwards; the server's memory after the first calls,
which are not counted, and at the end is the same but for a few megabytes; the server drains and ends with 0."""

METHODS: Final = (Method.TRANSLATE, Method.TRANSLATE_DOCUMENT, Method.TRANSLATE_STREAM)

_COUNTS: Final = {"short": (4_000, 1_000), "full": (50_000, 5_000)}
"""Calls, and calls before them that only warm up."""
_MAX_CALLS: Final = 1_000_000
_SETTLE_TIMEOUT_S: Final = 30.0
_LOOK_EACH_S: Final = 0.25
_WINDOW: Final = 0.1
"""Share of the memory samples, at each end, whose medians are compared."""


@dataclass(slots=True, kw_only=True)
class Found:
    """What was seen; callers of any thread note their calls."""

    num_calls: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """Names of statuses."""

    unexpected: list[str] = field(default_factory=list)
    """A sentence for each call that ended as it should not have."""

    memory_mb: list[float] = field(default_factory=list)
    """Of the server, from the end of the warm-up, at even distances."""

    left: dict[str, float] = field(default_factory=dict)
    """What is not at rest: gauges of work that are not back at 0, steps still run."""

    elapsed_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def rss_growth_mb(self) -> float:
        """Memory towards the end less that after the warm-up."""
        size = max(1, round(_WINDOW * len(self.memory_mb)))
        return median(self.memory_mb[-size:]) - median(self.memory_mb[:size])

    def note(self, planned: PlannedCall, ended: Ended) -> None:
        """Add a call."""
        expected = {"OK"} if planned.ending is Ending.WAITS else {"OK", "CANCELLED"}
        with self._lock:
            self.num_calls += 1
            self.ends[ended.status] += 1
            if ended.status not in expected:
                when = planned.moment.value
                self.unexpected.append(f"{planned.method.value}, cancelled {when}: {ended.status} {ended.details}")


def planned_calls(methods: Sequence[Method], count: int, seed: int) -> Iterator[PlannedCall]:
    """Yield so many calls, one method after the other."""
    generator, requests = random.Random(seed), wire.Requests(seed)
    for index in range(count):
        method = methods[index % len(methods)]
        moment, share = draw_moment(generator)
        yield PlannedCall(
            request_id=f"{seed}-{index}",
            method=method,
            path=method.path,
            raw=_messages(requests, method, index),
            ending=Ending.WAITS if moment is Moment.NEVER else Ending.CANCELS,
            moment=moment,
            share=share,
            half_closes=moment is Moment.NEVER or generator.random() < 0.5,
        )


def cancel_calls(
    tested: ServerProcess, methods: Sequence[Method], *, num_calls: int, num_warm_up: int, num_callers: int, seed: int
) -> Found:
    """Make all calls of a plan, after others that only warm up."""
    found = Found()
    load: Load[PlannedCall] = Load(
        target=tested.target,
        num_callers=num_callers,
        note=found.note,
        usual=UsualTimes(),
        look_each_s=_LOOK_EACH_S,
    )
    load.run(planned_calls(methods, num_warm_up, seed + 1))
    began_s = time.monotonic()
    load.run(planned_calls(methods, num_calls, seed), look=lambda: found.memory_mb.append(tested.rss_mb()))
    found.elapsed_s = time.monotonic() - began_s
    found.left = wait_until_idle(tested, timeout_s=_SETTLE_TIMEOUT_S)
    found.memory_mb.append(tested.rss_mb())
    return found


def summarize(found: Found, *, exit_code: int, max_rss_growth_mb: float) -> Summary:
    """Return figures and promises."""
    figures = {
        "calls": found.num_calls,
        "rss_growth_mb": f"{found.rss_growth_mb:.1f}",
        "unanswered": len(found.unexpected),
        "cancelled": found.ends["CANCELLED"],
        "answered": found.ends["OK"],
        "left": f"{sum(found.left.values()):g}",
        "rss_mb": f"{found.memory_mb[-1]:.0f}",
        "calls_per_s": f"{found.num_calls / found.elapsed_s:.0f}",
    }
    return Summary(
        scenario="cancellations",
        figures=figures,
        promises=[
            Promise(name="each call is answered or cancelled", broken=found.unexpected),
            require("the server is at rest afterwards", not found.left, f"work is left: {found.left}"),
            at_most("memory of the server grows", found.rss_growth_mb, max_rss_growth_mb, unit="MB"),
            require(
                "both ends are met",
                bool(found.ends["CANCELLED"] and found.ends["OK"]),
                f"calls ended with {dict(found.ends)} only",
            ),
            require("the server drains", exit_code == 0, f"it ended with exit code {exit_code}"),
        ],
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this scenario."""
    add = parser.add_argument
    count = within(1, _MAX_CALLS, int)
    add("--calls", type=count, metavar="N", help="in place of those of the mode (short 4000, full 50000)")
    add("--warm-up", type=count, metavar="N", help="calls before memory is first looked at (short 1000, full 5000)")
    add("--callers", type=within(1, 256, int), default=32, metavar="N", help="calls at a time (32)")
    add("--methods", type=_methods, default=list(METHODS), metavar="NAMES", help="separated by commas (all three)")
    add("--max-rss-growth-mb", type=float, default=32.0, metavar="MB", help="memory promise (32)")


def run(options: argparse.Namespace) -> int:
    """Run the scenario; return the exit code."""
    num_calls, num_warm_up = _COUNTS[options.mode]
    with server.started(options.output, models=options.model_dir) as tested:
        found = cancel_calls(
            tested,
            options.methods,
            num_calls=options.calls or num_calls,
            num_warm_up=options.warm_up or num_warm_up,
            num_callers=options.callers,
            seed=options.seed,
        )
        exit_code = tested.stop()
    summary = summarize(found, exit_code=exit_code, max_rss_growth_mb=options.max_rss_growth_mb)
    details: dict[str, Any] = {
        "ends": dict(found.ends),
        "left": found.left,
        "elapsed_s": found.elapsed_s,
        "memory_mb": [round(size_mb, 1) for size_mb in found.memory_mb],
    }
    return report.conclude(summary, options.output, details=details)


def _messages(requests: wire.Requests, method: Method, number: int) -> tuple[bytes, ...]:
    match method:
        case Method.TRANSLATE_DOCUMENT:
            return (requests.document(number),)
        case Method.TRANSLATE_STREAM:
            return tuple(requests.stream(number))
        case _:
            return (requests.unary(number),)


def _methods(text: str) -> list[Method]:
    names = {method.value: method for method in METHODS}
    if unknown := [name for name in text.split(",") if name not in names]:
        raise argparse.ArgumentTypeError(f"{unknown[0]}: expected some of {','.join(names)}")
    return [names[name] for name in text.split(",")]
