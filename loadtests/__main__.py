"""`python -m loadtests VERB ...`: the load tests; each verb has `--help`."""

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
    "load": "offer calls at a given rate and check an objective",
    "capacity": "find the highest rate at which an objective holds, and latency by load",
    "overload": "offer ten times the capacity; check fast rejection with retry delays",
    "transports": "compare HTTP with gRPC on persistent connections",
    "stress": "soak, chaos, bad inputs: check for leaks, losses and stalls",
    "benchmarks": "compare with other translation systems",
}
# Programs have `main(arguments)`. The other verbs are modules of `scenarios` with `NAME`, `DESCRIPTION`, optionally
# `WORKLOAD`, `add_flags(parser)`, and `prepare(options, workload)`, which returns a function from a Target to a Report.
_PROGRAMS: Final = {"stress": "loadtests.scenarios.stress", "benchmarks": "loadtests.benchmarks.__main__"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code."""
    verb, *rest = [*(sys.argv[1:] if arguments is None else arguments), ""]
    if verb not in _VERBS:
        lines = [f"  {name:<12}{text}" for name, text in _VERBS.items()]
        print("usage: python -m loadtests VERB ...\n", *lines, sep="\n")
        return 0 if verb in {"-h", "--help"} else 2
    sys.argv = [f"loadtests {verb}", *rest[:-1]]
    if verb not in _PROGRAMS:
        return _measure(verb, importlib.import_module(f"loadtests.scenarios.{verb}"), rest[:-1])
    run: int = importlib.import_module(_PROGRAMS[verb]).main(rest[:-1])
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
    add("--mode", choices=("full", "short"), default="full", help="short: a quick check (full)")
    add("--seed", type=int, default=1, metavar="N", help="seed of arrivals and texts (1)")
    add("--output", type=Path, default=Path(output), metavar="DIR", help=f"({output})")
    add_workload_flags(parser.add_argument_group("workload"), getattr(test, "WORKLOAD", Workload()))
    add_server_flags(parser.add_argument_group("server"))
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
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # also ends started servers
    sys.exit(main())
