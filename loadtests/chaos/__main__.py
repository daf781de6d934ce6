"""`python -m loadtests.chaos`: one fault after the other; shows that nobody else notices and the server recovers."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from loadtests.chaos import picture
from loadtests.chaos.fault import Fault
from loadtests.chaos.faults.clock import find_compiler
from loadtests.chaos.plan import all_faults, chosen
from loadtests.chaos.run import Run, run_faults
from loadtests.chaos.scale import SCALES
from loadtests.chaos.venue import SHIPPED_MODELS
from loadtests.chaos.verdict import TrialResult, broken_promises, last_line, line, record
from loadtests.machine import describe_machine
from loadtests.target import ServerError

_DESCRIPTION: Final = """\
Starts the server as an operator does, on free ports of this machine and with a copy of the model that ships, and does
one fault after the other to it, while bystanders translate and ask for its health all along.

What must hold of each fault: who is hit is told so by the right status; nobody else fails, waits longer than the fault
explains, or gets another translation than before, bit for bit; a new connection is answered within seconds; no request
is in flight and no segment queued or decoded afterwards; memory, threads and open files are what they were, but for a
little; metrics show the fault, unless gRPC refuses it before it calls anybody. At the end the server drains.

Faults within the process (a run that raises, ONNX Runtime that fails, a step that hangs, a log that goes nowhere) are
made by a `sitecustomize` module that Python finds on the server's PYTHONPATH; the server has no hook for them. The wall
clock jumps by a library that is compiled (cc) and preloaded; without a C compiler that fault is left out.

DIR has chaos.json, chaos.png and the log of each server.

exit codes: 0 every promise held, 1 one was broken or a server failed, 2 called wrongly"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the faults; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    scale = SCALES[options.mode]
    compiler = find_compiler()
    faults = all_faults(scale, output=options.output, compiler=compiler)
    if compiler is None:
        print("left out: clock-jump needs a C compiler (cc)", file=sys.stderr)
    if options.list:
        print("\n".join(f"{fault.name:<20} {fault.summary}" for fault in faults))
        return 0
    try:
        wanted = chosen(faults, options.only)
    except ValueError as error:
        parser.error(f"argument --only: {error}")
    try:
        run = run_faults(wanted, scale, output=options.output, models=options.models, report=_report)
    except ServerError as error:
        print(f"loadtests.chaos: {error}", file=sys.stderr)
        return 1
    return _conclude(run, wanted, mode=options.mode, output=options.output)


def _report(result: TrialResult) -> None:
    print(line(result), flush=True)
    for sentence in broken_promises(result):
        print(f"broken: {result.fault}: {sentence}", file=sys.stderr, flush=True)


def _conclude(run: Run, faults: Sequence[Fault], *, mode: str, output: Path) -> int:
    ended_badly = [code for code in run.exit_codes if code]
    if ended_badly:
        print(f"broken: servers ended with {ended_badly}, not 0", file=sys.stderr)
    document: dict[str, Any] = {
        "mode": mode,
        "machine": describe_machine(),
        "summaries": {fault.name: fault.summary for fault in faults},
        "exit_codes": list(run.exit_codes),
        "faults": [record(result) for result in run.results],
    }
    (output / "chaos.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    picture.draw(output / "chaos.png", run.results)
    print(last_line(run.results, exit_codes=run.exit_codes))
    has_broken = any(broken_promises(result) for result in run.results)
    return 1 if has_broken or ended_badly else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.chaos", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--mode", choices=SCALES, default="full", help="short: a little of every fault, in about a minute (full)")
    add("--only", type=_names, default=[], metavar="NAME,...", help="some faults; default: all of them")
    add("--list", action="store_true", help="show all faults and do none")
    add("--models", type=Path, default=SHIPPED_MODELS, metavar="DIR", help="one bundle; default: the one that ships")
    add("--output", type=Path, default=Path("build/chaos"), metavar="DIR", help="(build/chaos)")
    return parser


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
