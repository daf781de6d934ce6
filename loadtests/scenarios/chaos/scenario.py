"""Scenario `chaos`: one fault after the other; other callers must not notice, and the server must recover."""

import argparse
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
from matplotlib.figure import Figure

from loadtests.generator import calls
from loadtests.generator.flags import several
from loadtests.generator.metrics import footprint, work_left
from loadtests.scenarios.callers import Bystanders, Client, Question, learn_answers
from loadtests.scenarios.chaos import connections, machine
from loadtests.scenarios.chaos.fault import Fault, Result, Stage, requests
from loadtests.scenarios.chaos.server import chaos_server
from loadtests.scenarios.stress_server import poll
from loadtests.report.checks import Summary, conclude, print_broken, require
from loadtests.generator.server import ServerError

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

FAULTS: Final = tuple(one for room in (connections, machine) for one in vars(room).values() if isinstance(one, Fault))
"""In the order in which they are injected: what damages most comes last, those with servers of their own at the end."""

_SETTLE_S: Final = 10.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this scenario."""
    add, by_name = parser.add_argument, {fault.name: fault for fault in FAULTS}
    add("--only", type=several(by_name), default=FAULTS, metavar="NAME,...", help="some faults (all of them)")
    add("--list", action="store_true", help="show all faults and inject none")


def run(options: argparse.Namespace) -> int:
    """Inject the faults for which this machine has what they need; return the exit code."""
    lacking = [fault for fault in options.only if fault.needs and not shutil.which(fault.needs)]
    for fault in lacking:
        print(f"left out: {fault.name} needs {fault.needs}", file=sys.stderr)
    faults = [fault for fault in options.only if fault not in lacking]
    if options.list:
        print("\n".join(f"{fault.name:<20} {fault.summary}" for fault in faults))
        return 0
    results, exit_codes = run_faults(faults, options.mode, options.output, options.model_dir, options.seed)
    details = {
        "mode": options.mode,
        "summaries": {fault.name: fault.summary for fault in faults},
        "exit_codes": exit_codes,
        "faults": [result.as_json() for result in results],
    }
    return conclude(summarize(results, exit_codes), options.output, details=details, figure=_picture(results))


def run_faults(
    faults: Sequence[Fault], mode: str, output: Path, models: Path, seed: int
) -> tuple[list[Result], list[int | None]]:
    """Inject faults, on one server as long as it runs; return what came of them, and how their servers ended."""
    left, results, exit_codes = deque(faults), list[Result](), list[int | None]()
    while left:
        server_output = output / f"server-{len(exit_codes) + 1}"
        environment = left[0].environment(server_output) if left[0].environment else {}
        with chaos_server(server_output, models=models, environment=environment) as server:
            questions = _warmed_up(server.process.target, seed)
            while left and server.process.exit_code is None:
                fault = left.popleft()
                results.append(_run_fault(Stage(fault, server, questions, mode)))
                print(results[-1].summary.line, flush=True)
                print_broken(results[-1].summary)
                if fault.environment or (left and left[0].environment):
                    break
            with suppress(ServerError):  # it still runs, so it has no exit code
                server.process.stop()
            exit_codes.append(server.process.exit_code)
    return results, exit_codes


def _warmed_up(target: str, seed: int) -> list[Question]:
    """Return questions with their answers, after calls that fill the batches, so that memory is what it will be."""
    questions = learn_answers(target, wire.translate_requests(seed, count=8, texts=1))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda large: learn_answers(target, [large]), wire.translate_requests(seed, count=4, texts=48)))
    with Bystanders(target, questions) as bystanders:
        for _ in questions:
            bystanders.wait_for_answers()
    return questions


def _run_fault(stage: Stage) -> Result:
    """Inject a fault among bystanders and return what came of it; a server that ends of it is a result, too."""
    process, bystanders = stage.server.process, stage.bystanders
    before = footprint(process.pid)
    try:
        with bystanders:
            bystanders.wait_for_answers()
            with stage.connections:
                stage.fault.inject(stage)
            _recover(stage)
        settled = poll(process.samples, lambda now: now["mt_ready"] == 1 and not work_left(now), timeout_s=_SETTLE_S)
        stage.left = work_left(settled)
        stage.require(settled["mt_ready"] == 1, "the server is not ready")
        stage.look()
        if stage.fault.hits_batch:
            _require_all_told(stage)
        most_files = before.num_fds + stage.limits["files"]  # once the connections of former callers are closed
        after = poll(lambda: footprint(process.pid), lambda now: now.num_fds <= most_files, timeout_s=_SETTLE_S)
        stage.measured["rss_growth_mb"] = after.rss_mb - before.rss_mb
        stage.measured["threads"] = after.num_threads - before.num_threads
        stage.measured["files"] = after.num_fds - before.num_fds
    except (ServerError, OSError, psutil.Error) as error:  # OSError: its ports, or no port of this machine is free
        stage.broken.append(f"the fault could not be looked at to its end: {error}")
    if process.exit_code is not None:
        stage.broken.append(f"the server has ended with {process.exit_code}")
    stage.translations, stage.checks = bystanders.translations, bystanders.looks
    stage.elapsed_s = time.monotonic() - stage.began_s
    return stage


def _recover(stage: Stage) -> None:
    """Wait until a new connection gets right answers, and bystanders, too; give up if the server has ended."""
    began_s = time.monotonic()

    def is_well() -> bool:
        with Client(stage.target) as client:
            replies = (client.check(timeout_s=5.0), stage.questions[0].ask(client, timeout_s=5.0))
            return all(reply.status == "OK" for reply in replies)

    if poll(is_well, lambda well: well or stage.server.process.exit_code is not None, timeout_s=30.0):
        stage.measured["recovered_s"] = time.monotonic() - began_s
        stage.bystanders.wait_for_answers()


def _require_all_told(stage: Stage) -> None:
    """Note who was hit in the same batch; as many callers must have been told as requests have failed."""
    (status,) = stage.fault.told
    metric = requests("Translate", status)
    num_told = stage.hits[status] + sum(reply.status == status for reply in stage.bystanders.translations)
    num_failed = poll(lambda: stage.growth_of(metric), lambda count: count == num_told, timeout_s=_SETTLE_S)
    stage.require(num_failed == num_told, f"{num_failed} requests failed, but {num_told} callers were told {status}")
    stage.hits[status] = num_told


def summarize(results: Sequence[Result], exit_codes: Sequence[int | None]) -> Summary:
    """Return what all faults came to; every server must have ended well, too."""
    broken = [result.fault.name for result in results if result.summary.broken]
    return Summary(
        scenario="chaos",
        figures={"faults": len(results), "held": len(results) - len(broken)},
        promises=[
            require("every fault keeps its promises", not broken, ", ".join(broken)),
            require("faults were injected", bool(results), "none was"),
            require("servers end with 0", set(exit_codes) <= {0}, f"they ended with {list(exit_codes)}"),
        ],
    )


def _picture(results: Sequence[Result]) -> Figure:
    """Draw every translation that a bystander waited for; a fault's span is red if it broke a promise."""
    figure = Figure(figsize=(13, 5), layout="constrained")
    axes = figure.add_subplot(xlabel="began, s", ylabel="latency of a bystander's translation, s", yscale="log")
    for number, result in enumerate(results):
        begin_s = result.began_s - results[0].began_s
        end_s, color = begin_s + result.elapsed_s, "tab:red" if result.summary.broken else "tab:green"
        axes.axvspan(begin_s, end_s, color=color, alpha=0.12 if number % 2 else 0.22, linewidth=0)
        name = axes.text((begin_s + end_s) / 2, 0.98, result.fault.name, transform=axes.get_xaxis_transform())
        name.set(rotation=90, ha="center", va="top")
        begins = [reply.began_s - results[0].began_s for reply in result.translations]
        axes.plot(begins, [reply.latency_s for reply in result.translations], ".", color="tab:blue", markersize=2)
    axes.grid(visible=True, which="both", axis="y", alpha=0.3)
    return figure
