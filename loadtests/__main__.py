"""`python -m loadtests VERB ...`: the load tests, each with `--help`."""

import importlib
import signal
import sys
from collections.abc import Sequence
from typing import Final

_VERBS: Final = {
    "load": "offer calls at a given rate and judge them against an objective",
    "capacity": "find the highest rate at which an objective holds, and latency at every load",
    "overload": "offer ten times the capacity: are calls rejected early, with a time to retry after?",
    "stress": "soak, chaos, cancellations, bad inputs: does anything leak, is anything lost?",
    "peers": "the same work on other systems",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; return its exit code."""
    verb, *rest = [*(sys.argv[1:] if arguments is None else arguments), ""]
    if verb not in _VERBS:
        lines = [f"  {name:<10}{what}" for name, what in _VERBS.items()]
        print("usage: python -m loadtests VERB ...\n", *lines, sep="\n")
        return 0 if verb in {"-h", "--help"} else 2
    sys.argv = [f"loadtests {verb}", *rest[:-1]]
    run: int = importlib.import_module(f"loadtests.{verb}.__main__").main(rest[:-1])
    return run


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # or started servers would outlive it
    sys.exit(main())
