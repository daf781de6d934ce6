"""`python -m loadtests overload`: offer a server ten times its capacity and judge how it rejects."""

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from loadtests.arrivals import poisson
from loadtests.capacity.search import DEFAULT_SLO, PLANS, SearchPlan, find_capacity
from loadtests.flags import verb_parser, within, workload_of
from loadtests.generator import Generator, open_loop
from loadtests.machine import describe_machine
from loadtests.overload.verdict import Overload, as_json, broken_promises, line, picture
from loadtests.records import summarize
from loadtests.report import command_line, write_json, write_picture
from loadtests.sampler import RESIDENT_BYTES, Sampler, scrape, work_left
from loadtests.slo import GRAMMAR, parse_slo
from loadtests.target import ServerError, Target, add_server_flags, open_target
from loadtests.texts import Profile
from loadtests.wire import Method
from loadtests.workload import MAX_TEXTS, Workload

_DESCRIPTION: Final = """\
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

_PLANS: Final = {"full": SearchPlan(closed_loop_s=10.0, probe_s=5.0, resolution=0.1), "short": PLANS["short"]}
_DURATIONS_S: Final = {"full": 60.0, "short": 15.0}
_NUM_CALLS: Final = 256
"""Different calls, sent in turn."""
_MAX_CALLS_PER_S: Final = 400.0
"""What the generator sends without being late; more work makes the calls larger."""
_MEMORY_INTERVAL_S: Final = 0.5
_BYTES_PER_MB: Final = 1024 * 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the overload; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        workload, slo = workload_of(options), parse_slo(options.slo)
        workload.calls(options.seed)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    try:
        with open_target(options) as target:
            one_text = Generator(target=target, workload=replace(workload, texts_per_call=1))
            capacity_per_s = options.capacity
            if capacity_per_s is None:
                capacity_per_s = find_capacity(one_text, slo, _PLANS[options.mode], note=lambda _: None).per_s
            overload = _offer(target, workload, capacity_per_s, options)
            _require_recovery(one_text)
            exit_code = target.stop()
    except (ServerError, TimeoutError, RuntimeError, OSError) as error:
        print(f"loadtests overload: {error}", file=sys.stderr)
        return 1
    broken = broken_promises(overload, max_rss_growth_mb=options.max_rss_growth_mb)
    facts = {"machine": describe_machine(), "command": command_line("overload")}
    write_json(options.output / "overload.json", {**facts, **as_json(overload, broken)})
    write_picture(options.output / "overload.png", picture(overload))
    print(line(overload))
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if broken or exit_code else 0


def _offer(target: Target, workload: Workload, capacity_per_s: float, options: argparse.Namespace) -> Overload:
    """Offer so many times the capacity, in calls that are large enough for the generator."""
    size = texts_per_call(workload, options.factor * capacity_per_s)
    capacity_per_s /= size
    duration_s = options.duration or _DURATIONS_S[options.mode]
    arrivals = poisson(options.factor * capacity_per_s).times(duration_s, options.seed)
    workload = replace(workload, texts_per_call=size)
    generator = Generator(target=target, workload=workload)
    calls = list(itertools.islice(workload.calls(options.seed), _NUM_CALLS))
    watched = (None, [target.process.pid]) if target.process else (target.metrics_url, [])
    with generator.connect() as client, Sampler(*watched, interval_s=_MEMORY_INTERVAL_S) as sampler:
        began_s, records = open_loop(client, [calls[index % _NUM_CALLS] for index in range(len(arrivals))], arrivals)
    memory = [(sample.at_s - began_s, sample.total(RESIDENT_BYTES) / _BYTES_PER_MB) for sample in sampler.samples]
    return Overload(
        began_s=began_s,
        records=records,
        summary=summarize(records, duration_s=duration_s),
        capacity_per_s=capacity_per_s,
        memory_mb=[(at_s, size_mb) for at_s, size_mb in memory if math.isfinite(size_mb)],
        settings={
            "factor": options.factor,
            "deadline_s": workload.deadline_s,
            "seed": options.seed,
            "duration_s": duration_s,
            "texts_per_call": size,
        },
    )


def texts_per_call(workload: Workload, texts_per_s: float) -> int:
    """Return how many texts a call must have so that the generator need not send more calls than it can.

    Args:
        workload: whose calls would be sent; those that cannot take more texts than one keep that.
        texts_per_s: to be sent.
    """
    methods = set(workload.methods.values) or {Method.TRANSLATE}
    if workload.profile is Profile.DOCUMENT or methods - {Method.TRANSLATE, Method.TRANSLATE_STREAM}:
        return 1
    needed = math.ceil(texts_per_s / _MAX_CALLS_PER_S)
    return min(max(needed, workload.texts_per_call), MAX_TEXTS)


def _require_recovery(generator: Generator) -> None:
    """Ask once more, without other callers.

    Raises:
        RuntimeError: if that call fails.
        ServerError: if the server still counts work whose callers have gone.
    """
    generator.throughput_per_s(duration_s=0.1, num_callers=1, warm_up_s=0.0)
    left = work_left(scrape(generator.target.metrics_url)) if generator.target.metrics_url else {}
    if left:
        raise ServerError(f"work is left after the overload: {left}")


def _parser() -> argparse.ArgumentParser:
    usual = Workload(texts_per_call=16, deadline_s=2.0)
    parser = verb_parser("overload", _DESCRIPTION, output="build/overload", workload=usual)
    parser.add_argument("--short", action="store_const", const="short", dest="mode", help="as --mode short")
    add_server_flags(parser.add_argument_group("the server"))
    add = parser.add_argument_group("what is offered").add_argument
    add("--factor", type=within(0.001, 3600), default=10.0, metavar="N", help="times the capacity (10)")
    add("--capacity", type=within(0.001, 1e6), metavar="N", help="as `capacity` finds it, in place of a search")
    add("--slo", default=DEFAULT_SLO, metavar="BOUNDS", help=f"of the search; {GRAMMAR}".replace("%", "%%"))
    add("--duration", type=within(0.001, 3600), metavar="S", help="seconds of the overload (60; short: 15)")
    add("--max-rss-growth-mb", type=within(0.001, 3600), default=128.0, metavar="MB", help="memory promise (128)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
