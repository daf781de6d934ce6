"""`python -m loadtests.cancellations`: callers leave at any moment; shows that nothing of them stays."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from loadtests.cancellations.plan import Method
from loadtests.cancellations.soak import SoakResult, soak
from loadtests.target import ServerError, ServerProcess

_DESCRIPTION: Final = """\
Starts the server on free ports of this machine with the model that ships and makes calls whose callers leave: before
the request is admitted, while it waits, while it is decoded, while the answer is written. One of twenty waits for the
answer. Unary calls, documents and streams take turns.

What must hold: whoever waits is answered, whoever leaves ends with CANCELLED (or OK, if the answer was faster); no
request is in flight and no segment queued afterwards; the server's memory after the first calls, which are not counted,
and that at the end are the same but for a few megabytes.

exit codes: 0 all of this held, 1 it did not or the server failed, 2 called wrongly"""

_MAX_CALLS: Final = 1_000_000
_START_TIMEOUT_S: Final = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; return the exit code."""
    options = _parser().parse_args(arguments)
    flags = [] if options.models is None else ["--models", str(options.models.resolve())]
    try:
        with ServerProcess(options.output / "server.log", *flags) as server:
            server.wait_until_ready(timeout_s=_START_TIMEOUT_S)
            result = soak(
                server,
                options.methods,
                num_calls=options.calls,
                num_warm_up=options.warm_up,
                num_callers=options.callers,
                seed=options.seed,
            )
            exit_code = server.stop()
    except ServerError as error:
        print(f"loadtests.cancellations: {error}", file=sys.stderr)
        return 1
    record = {**asdict(result), "rss_growth_mb": result.rss_growth_mb}
    (options.output / "cancellations.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(line(result))
    broken = broken_promises(result, max_rss_growth_mb=options.max_rss_growth_mb)
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if broken or exit_code else 0


def line(result: SoakResult) -> str:
    """Return `cancellations name=value ...`."""
    fields = {
        "calls": result.num_calls,
        "rss_growth_mb": f"{result.rss_growth_mb:.1f}",
        "unanswered": len(result.unanswered),
        "cancelled": result.ends.get("CANCELLED", 0),
        "answered": result.ends.get("OK", 0),
        "left": sum(result.left.values()),
        "rss_mb": f"{result.memory_mb[-1]:.0f}",
        "calls_per_s": f"{result.num_calls / result.elapsed_s:.0f}",
    }
    return " ".join(["cancellations", *(f"{name}={value}" for name, value in fields.items())])


def broken_promises(result: SoakResult, *, max_rss_growth_mb: float) -> list[str]:
    """Return a sentence for each promise that did not hold."""
    broken = []
    if result.unanswered:
        broken.append(
            f"{len(result.unanswered)} calls ended as they should not have, the first: {result.unanswered[0]}"
        )
    if result.left:
        broken.append(f"work is left: {result.left}")
    if result.rss_growth_mb > max_rss_growth_mb:
        broken.append(f"the server grew by {result.rss_growth_mb:.1f} MB, more than {max_rss_growth_mb:g}")
    if not result.ends.get("CANCELLED") or not result.ends.get("OK"):
        broken.append(f"not every kind of end was met: {result.ends}")
    return broken


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.cancellations",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--calls", type=_count, default=50_000, metavar="N", help="after the warm-up (50000)")
    add("--warm-up", type=_count, default=5_000, metavar="N", help="calls before memory is first looked at (5000)")
    add("--callers", type=_count, default=32, metavar="N", help="calls at a time (32)")
    add("--methods", type=_methods, default=list(Method), metavar="NAMES", help="of unary,document,stream (all)")
    add("--max-rss-growth-mb", type=float, default=32.0, metavar="MB", help="memory promise (32)")
    add("--seed", type=int, default=1, metavar="N", help="of texts and moments (1)")
    add("--models", type=Path, metavar="DIR", help="models from English to German; default: the one that ships")
    add("--output", type=Path, default=Path("build/cancellations"), metavar="DIR", help="(build/cancellations)")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= _MAX_CALLS:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 to {_MAX_CALLS}")
    return value


def _methods(text: str) -> list[Method]:
    try:
        return [Method(name) for name in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: expected some of unary,document,stream") from error


if __name__ == "__main__":
    sys.exit(main())
