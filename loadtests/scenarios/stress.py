"""`python -m loadtests stress SCENARIO ...`: stress scenarios."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc

from loadtests.generator.server import BUNDLED_MODELS, ServerError
from loadtests.scenarios.bad_inputs import scenario as bad_inputs
from loadtests.scenarios.chaos import scenario as chaos
from loadtests.scenarios.soak import scenario as soak
from loadtests.scenarios.stress_server import log_path

# Modules with `SUMMARY`, `DESCRIPTION`, `add_flags(parser)` and `run(options)`, which returns the exit code.
_SCENARIOS: Final = {"soak": soak, "chaos": chaos, "bad-inputs": bad_inputs}
_EXIT_CODES: Final = "exit codes: 0 all checks passed, 1 a check or the server failed, 2 invalid usage"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a scenario; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtests stress", description=__doc__)
    scenarios = parser.add_subparsers(dest="scenario", required=True, metavar="SCENARIO")
    for name, module in _SCENARIOS.items():
        scenario = scenarios.add_parser(
            name,
            help=module.SUMMARY,
            description=f"{module.DESCRIPTION}\n\n{_EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add = scenario.add_argument
        add("--mode", choices=("short", "full"), default="full", help="amount of load (full)")
        module.add_flags(scenario)
        add("--seed", type=int, default=1, metavar="N", help="seed of all random choices (1)")
        add("--model-dir", type=Path, default=BUNDLED_MODELS, metavar="DIR", help="one model (the bundled one)")
        add("--output", type=Path, metavar="DIR", help=f"directory of report and server log (build/{name})")
    options = parser.parse_args(arguments)
    options.output = options.output or Path("build") / options.scenario
    try:
        return int(_SCENARIOS[options.scenario].run(options))
    except argparse.ArgumentTypeError as error:  # incompatible flags
        parser.error(str(error))
    except (ServerError, grpc.RpcError, RuntimeError, OSError, ValueError) as error:
        print(f"{parser.prog} {options.scenario}: {error}; server log: {log_path(options.output)}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
