"""`python -m loadtests stress SCENARIO ...`: what a server must survive."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc

from loadtests.scenarios import cancellations
from loadtests.scenarios.bad_inputs import scenario as bad_inputs
from loadtests.scenarios.chaos import scenario as chaos
from loadtests.scenarios.stress_server import SHIPPED_MODELS, log_path
from loadtests.scenarios.soak import scenario as soak
from loadtests.generator.server import ServerError

_SCENARIOS: Final = {"soak": soak, "cancellations": cancellations, "chaos": chaos, "bad-inputs": bad_inputs}
"""Modules, each with `SUMMARY`, `DESCRIPTION`, `add_flags(parser)` and `run(options)`, which returns the exit code."""

_EXIT_CODES: Final = "exit codes: 0 every promise held, 1 one was broken or the server failed, 2 wrong flags"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a scenario; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    options.output = options.output or Path("build") / options.scenario
    try:
        return int(_SCENARIOS[options.scenario].run(options))
    except argparse.ArgumentTypeError as error:  # of flags that do not go together
        parser.error(str(error))
    except (ServerError, grpc.RpcError, RuntimeError, OSError, ValueError) as error:
        print(f"{parser.prog} {options.scenario}: {error}; server log: {log_path(options.output)}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
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
        add("--mode", choices=("short", "full"), default="full", help="how much (full)")
        module.add_flags(scenario)
        add("--seed", type=int, default=1, metavar="N", help="of everything that is drawn (1)")
        add("--model-dir", type=Path, default=SHIPPED_MODELS, metavar="DIR", help="one model (the one that ships)")
        add("--output", type=Path, metavar="DIR", help=f"of report and server log (build/{name})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
