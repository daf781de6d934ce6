"""`python -m loadtests VERB ...`: the load tests; each verb has `--help`."""

import argparse
import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from dragoman_service.cli.server_process import ServerProcessError
from loadtests.generator.flags import add_workload_flags, workload_of
from loadtests.generator.server import BUNDLED_MODELS, CHECKOUT, add_server_flags, open_target
from loadtests.generator.workload import Workload

# modules of `scenarios` with `NAME`, `DESCRIPTION`, optionally `WORKLOAD`, `add_flags(parser)`, and
# `prepare(options, workload)`, which returns a function from a Target to a Report
_MEASUREMENTS: Final = {
    "capacity": "find the highest rate at which an objective holds, and latency by load",
    "overload": "offer ten times the capacity; check fast rejection with retry delays",
    "many-models": "measure several models on one server: overload, backlog, memory, CPU time",
}
# packages of `scenarios` whose module `scenario` has `SUMMARY`, `DESCRIPTION`, `add_flags(parser)` and `run(options)`,
# which returns the exit code
_STRESS: Final = ("soak", "chaos", "bad-inputs")
_VERBS: Final = {
    "load": "run Locust: its web page, or --headless",
    **_MEASUREMENTS,
    "stress": "soak, chaos, bad inputs: check for leaks, losses and stalls",
    "benchmarks": "compare with other translation systems",
}
_LOCUST_FLAGS: Final = (  # the flags of the caller follow and take precedence
    f"--locustfile={CHECKOUT / 'loadtests' / 'locustfile.py'}",
    *("--web-host=127.0.0.1", "--master-bind-host=127.0.0.1"),
    *("--html=build/loadtest/report.html", "--csv=build/loadtest/stats", "--csv-full-history"),
)
_FAILURES: Final = (ServerProcessError, grpc.RpcError, RuntimeError, ValueError, OSError)
_EXIT_CODES: Final = "exit codes: 0 all checks passed, 1 a check or the server failed, 2 invalid usage"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code."""
    verb, *rest = list(sys.argv[1:] if arguments is None else arguments) or [""]
    if verb not in _VERBS:
        lines = [f"  {name:<12}{text}" for name, text in _VERBS.items()]
        print("usage: python -m loadtests VERB ...\n", *lines, sep="\n")
        return 0 if verb in {"-h", "--help"} else 2
    sys.argv = [f"loadtests {verb}", *rest]  # reports contain the command line
    if verb == "load":
        command = [sys.executable, "-m", "locust", *_LOCUST_FLAGS, *rest]
        os.execv(sys.executable, command)  # noqa: S606 - our own interpreter
    if verb == "stress":
        return _stress(rest)
    if verb == "benchmarks":
        return int(importlib.import_module("loadtests.benchmarks.__main__").main(rest))
    return _measure(verb, importlib.import_module(f"loadtests.scenarios.{verb.replace('-', '_')}"), rest)


def _stress(arguments: Sequence[str]) -> int:
    """Run a stress scenario; return the exit code."""
    prog = "python -m loadtests stress"
    parser = argparse.ArgumentParser(prog=prog, description="Stress scenarios: each starts its own server.")
    scenarios = parser.add_subparsers(dest="scenario", required=True, metavar="SCENARIO")
    modules = {
        name: importlib.import_module(f"loadtests.scenarios.{name.replace('-', '_')}.scenario") for name in _STRESS
    }
    for name, module in modules.items():
        scenario = scenarios.add_parser(
            name,
            help=module.SUMMARY,
            description=f"{module.DESCRIPTION}\n\n{_EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_usual_flags(scenario, f"build/{name}")
        scenario.add_argument(
            "--model-dir", type=Path, metavar="DIR", help="one model (the bundled one from English to German)"
        )
        module.add_flags(scenario)
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="dragoman-models-") as directory:
            if options.model_dir is None:
                options.model_dir = Path(directory)
                shutil.copytree(BUNDLED_MODELS / "en-de", options.model_dir / "en-de")
            return int(modules[options.scenario].run(options))
    except argparse.ArgumentTypeError as error:  # incompatible flags
        parser.error(str(error))
    except _FAILURES as error:
        print(f"{prog} {options.scenario}: {error}; server log: {options.output / 'server.log'}", file=sys.stderr)
        return 1


def _add_usual_flags(parser: argparse.ArgumentParser, output: str) -> None:
    add = parser.add_argument
    add("--mode", choices=("full", "short"), default="full", help="short: a quick check (full)")
    add("--seed", type=int, default=1, metavar="N", help="seed of all random choices (1)")
    add("--output", type=Path, default=Path(output), metavar="DIR", help=f"report and server log ({output})")


def _measure(verb: str, test: Any, arguments: Sequence[str]) -> int:
    """Measure one server; return the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m loadtests {verb}",
        description=test.DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_usual_flags(parser, f"build/{test.NAME}")
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
    except _FAILURES as error:
        print(f"loadtests {verb}: {error}", file=sys.stderr)
        return 1
    exit_code: int = report.conclude(options.output)
    return exit_code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # also ends started servers
    sys.exit(main())
