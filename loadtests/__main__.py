"""`python -m loadtests VERB ...`: the load tests, each with `--help`."""

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from loadtests.generator.flags import add_workload_flags, workload_of
from loadtests.generator.server import ServerError, add_server_flags, open_target
from loadtests.generator.workload import Workload

_VERBS: Final = {
    "load": "offer calls at a given rate and judge them against an objective",
    "capacity": "find the highest rate at which an objective holds, and latency at every load",
    "overload": "offer ten times the capacity: are calls rejected early, with a time to retry after?",
    "transports": "compare HTTP with gRPC on kept connections: requests per second, latency",
    "stress": "soak, chaos, cancellations, bad inputs: does anything leak, is anything lost?",
    "peers": "the same work on other systems",
}
_PROGRAMS: Final = {"stress", "peers"}
"""Packages whose `__main__` has `main(arguments)`. The others are modules with `NAME`, `DESCRIPTION`, perhaps
`WORKLOAD`, `add_flags(parser)`, and `prepare(options, workload)`, which checks the flags and returns what measures a
`Target` and makes a `Report` of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; return its exit code."""
    verb, *rest = [*(sys.argv[1:] if arguments is None else arguments), ""]
    if verb not in _VERBS:
        lines = [f"  {name:<12}{what}" for name, what in _VERBS.items()]
        print("usage: python -m loadtests VERB ...\n", *lines, sep="\n")
        return 0 if verb in {"-h", "--help"} else 2
    sys.argv = [f"loadtests {verb}", *rest[:-1]]
    if verb not in _PROGRAMS:
        return _measure(verb, importlib.import_module(f"loadtests.{verb}"), rest[:-1])
    run: int = importlib.import_module(f"loadtests.{verb}.__main__").main(rest[:-1])
    return run


def _measure(verb: str, test: Any, arguments: Sequence[str]) -> int:
    """Measure one server; return the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m loadtests {verb}",
        description=test.DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    output = f"build/{test.NAME}"
    add = parser.add_argument
    add("--mode", choices=("full", "short"), default="full", help="short: a first impression (full)")
    add("--seed", type=int, default=1, metavar="N", help="of moments and texts (1)")
    add("--output", type=Path, default=Path(output), metavar="DIR", help=f"({output})")
    add_workload_flags(parser.add_argument_group("what calls ask for"), getattr(test, "WORKLOAD", Workload()))
    add_server_flags(parser.add_argument_group("the server"))
    test.add_flags(parser)
    options = parser.parse_args(arguments)
    try:
        measure = test.prepare(options, workload_of(options))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    try:
        with open_target(options) as target:
            report = measure(target)
    except (ServerError, RuntimeError, ValueError, OSError) as error:
        print(f"loadtests {verb}: {error}", file=sys.stderr)
        return 1
    exit_code: int = report.conclude(options.output)
    return exit_code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # or started servers would outlive it
    sys.exit(main())
