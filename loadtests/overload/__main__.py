"""`python -m loadtests.overload`: offer the server ten times its capacity and judge how it says no."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from loadtests import wire
from loadtests.arrivals import Poisson
from loadtests.overload import report
from loadtests.overload.calls import Caller
from loadtests.overload.phases import closed_loop, open_loop
from loadtests.overload.sizes import texts_per_call
from loadtests.overload.verdict import Promises, broken_promises, summarize
from loadtests.sampler import work_left
from loadtests.target import ServerError, ServerProcess

_DESCRIPTION: Final = """\
Starts the server on free ports of this machine with the model that ships, finds out how many calls a second it answers
(callers who wait for each answer), then offers ten times that for a minute: calls arrive at random moments (Poisson),
whatever became of those before, each with a deadline.

What must hold: rejected calls are answered within 50 ms at p99 and say when to come back; accepted ones are answered
before their deadline; nothing fails otherwise; the server's memory stays bounded; at least half of the capacity is
still used; afterwards the server answers again at once.

All times count from the moment at which a call should have been sent, so that a generator that is late hides nothing.
Its own lag is printed; the run does not count if it was late itself.

The line, the JSON and the picture (DIR/overload.json, DIR/overload.png) hold the same run.

exit codes: 0 every promise held, 1 one was broken or the server failed, 2 called wrongly"""

_SHORT_S: Final = 15.0
_NUM_REQUESTS: Final = 64
"""Different requests, sent in turn."""
_MAX_CALLS_PER_S: Final = 400.0
"""What the generator sends without being late; more work makes the calls larger."""
_MAX_TEXTS: Final = 128
_START_TIMEOUT_S: Final = 120.0
_MEMORY_EACH_S: Final = 0.5
_MAX_FLAG: Final = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the storm; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        with ServerProcess(options.output / "server.log", *_flags(options)) as server:
            server.wait_until_ready(timeout_s=_START_TIMEOUT_S)
            storm = _storm(server, options)
            _require_recovery(server, options)
            exit_code = server.stop()
    except (ServerError, TimeoutError, RuntimeError) as error:
        print(f"loadtests.overload: {error}", file=sys.stderr)
        return 1
    report.write(options.output, storm)
    print(report.line(storm.summary))
    for sentence in storm.broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if storm.broken or exit_code else 0


def _storm(server: ServerProcess, options: argparse.Namespace) -> report.Storm:
    texts_per_s = _capacity(server, options)
    offered_per_s = options.factor * texts_per_s
    size = texts_per_call(offered_per_s, at_least=options.texts, at_most=_MAX_TEXTS, max_calls_per_s=_MAX_CALLS_PER_S)
    duration_s = _SHORT_S if options.short else options.duration
    arrivals = Poisson(offered_per_s / size).times(duration_s, options.seed)
    memory: list[tuple[float, float]] = []
    before_mb = server.rss_mb()
    with Caller(server.target, wire.translate_requests(options.seed, count=_NUM_REQUESTS, texts=size)) as caller:
        began_s, records = open_loop(
            caller,
            arrivals,
            timeout_s=options.deadline,
            each_s=_MEMORY_EACH_S,
            tick=lambda at_s: memory.append((at_s, server.rss_mb())),
        )
    summary = summarize(
        records,
        capacity_per_s=texts_per_s / size,
        duration_s=duration_s,
        rss_growth_mb=max(size_mb for _, size_mb in memory) - before_mb,
    )
    return report.Storm(
        began_s=began_s,
        summary=summary,
        records=records,
        memory_mb=memory,
        settings=_settings(options, duration_s=duration_s, texts_per_call=size),
        broken=broken_promises(summary, Promises(max_rss_growth_mb=options.max_rss_growth_mb)),
    )


def _capacity(server: ServerProcess, options: argparse.Namespace) -> float:
    """Return the texts that the server translates in a second for callers who wait."""
    requests = wire.translate_requests(options.seed + 1, count=_NUM_REQUESTS, texts=options.texts)
    warm_up_s, duration_s = (2.0, 5.0) if options.short else (5.0, 15.0)
    with Caller(server.target, requests) as caller:
        calls_per_s = closed_loop(caller, num_open=options.callers, warm_up_s=warm_up_s, duration_s=duration_s)
    return calls_per_s * float(options.texts)


def _require_recovery(server: ServerProcess, options: argparse.Namespace) -> None:
    """Ask once more, now that nobody else does.

    Raises:
        ServerError: if that call fails, or the server still counts work that nobody waits for.
    """
    with Caller(server.target, wire.translate_requests(options.seed, count=1, texts=1)) as caller:
        closed_loop(caller, num_open=1, warm_up_s=0.0, duration_s=0.1)
    left = work_left(server.samples())
    if left:
        raise ServerError(f"work is left after the storm: {left}")


def _flags(options: argparse.Namespace) -> list[str]:
    """Return what the server is started with."""
    given = {"--config": options.config, "--models": options.models}
    return [part for flag, path in given.items() if path is not None for part in (flag, str(path.resolve()))]


def _settings(options: argparse.Namespace, **found: Any) -> dict[str, Any]:
    return {"factor": options.factor, "deadline_s": options.deadline, "seed": options.seed, **found}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.overload",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--short", action="store_true", help=f"a storm of {_SHORT_S:g} s, and a shorter look at the capacity")
    add("--duration", type=_above_zero, default=60.0, metavar="S", help="seconds of the storm (60)")
    add("--factor", type=_above_zero, default=10.0, metavar="N", help="times the capacity (10)")
    add("--deadline", type=_above_zero, default=2.0, metavar="S", help="seconds that each call may take (2)")
    add(
        "--texts",
        type=_count,
        default=16,
        metavar="N",
        help="sentences of a call, at least (16); more if the "
        f"generator would have to send over {_MAX_CALLS_PER_S:g} calls a second",
    )
    add("--callers", type=_count, default=16, metavar="N", help="calls at a time while the capacity is measured (16)")
    add("--max-rss-growth-mb", type=_above_zero, default=128.0, metavar="MB", help="memory promise (128)")
    add("--seed", type=int, default=1, metavar="N", help="of texts and arrivals (1)")
    add("--config", type=Path, metavar="FILE", help="settings of the server; default: its defaults")
    add("--models", type=Path, metavar="DIR", help="models from English to German; default: the one that ships")
    add("--output", type=Path, default=Path("build/overload"), metavar="DIR", help="(build/overload)")
    return parser


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value <= _MAX_FLAG:
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0, at most {_MAX_FLAG:g}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= _MAX_TEXTS:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 to {_MAX_TEXTS}")
    return value


if __name__ == "__main__":
    sys.exit(main())
