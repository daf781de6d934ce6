"""Scenario `chaos`: one fault after the other; other callers must not notice, and the server must recover."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure

from loadtests.stress.chaos import connections, decoding, machine
from loadtests.stress.chaos.fault import Fault, Result
from loadtests.stress.chaos.run import run_faults
from loadtests.stress.verdict import Summary, conclude, print_broken, require

SUMMARY: Final = "one fault after the other is injected: do other callers notice, does the server recover?"

DESCRIPTION: Final = """\
Starts the server as an operator does, on free ports of this machine and with a copy of the model that ships, and
injects one fault after the other, while bystanders translate and ask for its health all the time.

What must hold of each fault: callers who are hit are told so by the right status; no other caller fails, waits longer
than the fault explains, or gets another translation than before, bit for bit; a new connection is answered within
seconds; no request is in flight and no segment queued or decoded afterwards; memory, threads and open files are what
they were, but for a little; metrics show the fault, unless gRPC rejects it before it calls anything. At the end the
server drains.

Faults inside the process (a run that raises, ONNX Runtime that fails, a step that hangs, a log that goes nowhere) are
made by a `sitecustomize` module that Python finds on the server's PYTHONPATH; the server has no hook for them. The wall
clock jumps by a library that is compiled (cc) and preloaded; without a C compiler that fault is left out.

--mode short injects a little of every fault, in about a minute. DIR has chaos.json, chaos.png and the log of each
server."""

_INCHES: Final = (13, 5)


def all_faults(*, has_compiler: bool) -> list[Fault]:
    """Return every fault in the order in which they are injected; without a C compiler none that needs it.

    Those that damage most come last, and the one with a server of its own at the very end.
    """
    faults = (*decoding.FAULTS, *connections.FAULTS, *machine.FAULTS)
    return [fault for fault in faults if has_compiler or fault is not machine.clock_jump]


def chosen(faults: Sequence[Fault], names: Sequence[str]) -> list[Fault]:
    """Return the faults of these names, in the order given by `faults`; all of them if there are no names.

    Raises:
        ValueError: names the first one that is unknown, and one that is like it.
    """
    known = {fault.name for fault in faults}
    for name in names:
        if name not in known:
            similar = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {similar[0]}?" if similar else ""
            raise ValueError(f"there is no fault {name!r}{hint} --list shows all of them")
    return [fault for fault in faults if not names or fault.name in names]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this scenario."""
    add = parser.add_argument
    add("--only", type=lambda text: text.split(","), default=[], metavar="NAME,...", help="some faults (all of them)")
    add("--list", action="store_true", help="show all faults and inject none")


def run(options: argparse.Namespace) -> int:
    """Inject the faults; return the exit code.

    Raises:
        argparse.ArgumentTypeError: if a fault of `--only` is unknown.
        ServerError: if a server does not start.
    """
    has_compiler = machine.find_compiler() is not None
    faults = all_faults(has_compiler=has_compiler)
    if not has_compiler:
        print("left out: clock-jump needs a C compiler (cc)", file=sys.stderr)
    if options.list:
        print("\n".join(f"{fault.name:<20} {fault.summary}" for fault in faults))
        return 0
    try:
        wanted = chosen(faults, options.only)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"argument --only: {error}") from error
    results, exit_codes = run_faults(
        wanted, options.mode, output=options.output, models=options.model_dir, seed=options.seed, report=_report
    )
    details = {
        "mode": options.mode,
        "summaries": {fault.name: fault.summary for fault in wanted},
        "exit_codes": exit_codes,
        "faults": [result.as_json() for result in results],
    }
    return conclude(summarize(results, exit_codes), options.output, details=details, figure=_picture(results))


def summarize(results: Sequence[Result], exit_codes: Sequence[int]) -> Summary:
    """Return what all faults came to; every server must have ended well, too."""
    broken = [result.fault.name for result in results if result.summary.broken]
    return Summary(
        scenario="chaos",
        figures={"faults": len(results), "held": len(results) - len(broken)},
        promises=[
            require("every fault keeps its promises", not broken, ", ".join(broken)),
            require("faults were injected", bool(results), "none was"),
            require("servers end with 0", not any(exit_codes), f"they ended with {list(exit_codes)}"),
        ],
    )


def _report(result: Result) -> None:
    summary = result.summary
    print(summary.line, flush=True)
    print_broken(summary)


def _picture(results: Sequence[Result]) -> Figure:
    """Draw every translation that a bystander waited for; a fault's span is red if it broke a promise."""
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.add_subplot()
    origin_s = results[0].began_s
    for number, result in enumerate(results):
        begin_s = result.began_s - origin_s
        color = "tab:red" if result.summary.broken else "tab:green"
        axes.axvspan(begin_s, begin_s + result.elapsed_s, color=color, alpha=0.12 if number % 2 else 0.22, linewidth=0)
        axes.text(
            begin_s + result.elapsed_s / 2,
            0.98,
            result.fault.name,
            rotation=90,
            ha="center",
            va="top",
            transform=axes.get_xaxis_transform(),
        )
        begins = [reply.began_s - origin_s for reply in result.translations]
        axes.plot(begins, [reply.latency_s for reply in result.translations], ".", color="tab:blue", markersize=2)
    axes.set(xlabel="began, s", ylabel="latency of a bystander's translation, s", yscale="log")
    axes.grid(visible=True, which="both", axis="y", alpha=0.3)
    return figure
