"""`python -m loadtests.stress SCENARIO`: what a server must survive."""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from loadtests.cancellations import __main__ as cancellations
from loadtests.chaos import __main__ as chaos
from loadtests.soak import __main__ as soak
from loadtests.stress.bad_inputs import scenario as bad_inputs

_SCENARIOS: Final[dict[str, Callable[[Sequence[str] | None], int]]] = {
    "soak": soak.main,
    "cancellations": cancellations.main,
    "chaos": chaos.main,
    "bad-inputs": bad_inputs.main,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a scenario; return the exit code."""
    scenario, *flags = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if scenario not in _SCENARIOS:
        print(f"usage: python -m loadtests.stress {{{','.join(_SCENARIOS)}}} [--help] ...", file=sys.stderr)
        return 2
    return _SCENARIOS[scenario](flags)


if __name__ == "__main__":
    sys.exit(main())
