"""`load`: the same calls to this server and to others, at the same moments; which answers sooner, which bears more?"""

import argparse
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc

from loadtests.machine import describe_machine, num_cores
from loadtests.peers.cases import Mode
from loadtests.peers.record import write_record
from loadtests.peers.sentences import DATA_VARIABLE
from loadtests.peers.serve import settings_of
from loadtests.peers.serving.settings import PRECISIONS, BatchingSettings
from loadtests.peers.systems import Peer
from loadtests.peers.under_load.comparison import DisagreementError, NoCapacityError, Task, compare
from loadtests.peers.under_load.lines import rivalry_lines
from loadtests.peers.under_load.plots import PICTURE_NAME, write_picture
from loadtests.peers.under_load.record import RESULTS_NAME, record_of
from loadtests.peers.under_load.results import Rivalry
from loadtests.peers.under_load.rounds import Plan
from loadtests.peers.under_load.workloads import real_sentences, workload
from loadtests.peers.workspace import MODELS, prepare_model
from loadtests.slo import GRAMMAR, Slo, parse_slo
from loadtests.target import ServerError

_DESCRIPTION: Final = f"""\
Starts our server with its defaults, and over the same weights a server of another system with the usual dynamic
batching, set up as it does best (what was tried is in load.json). Both get the same sentences at the same random
moments (Poisson), one call each, in turn; who has no turn stands still.

First both answer the same texts: their speed is compared only if they do the same work. Then the capacity of both is
searched, the highest rate at which --slo holds, and at shares of the rival's capacity latencies are compared. Times
count from the moment at which a call should have been sent.

Prints a line for each load, with the targets: p50 and p95 at most 0.6 of the rival's, capacity at least 1.5 times.
A missed target is reported, and no error. Leaves {RESULTS_NAME} and {PICTURE_NAME} in --output.

exit codes: 0 all was measured, 1 a server failed or both do not do the same work, 2 called wrongly"""

_SLOS: Final = {"shipped": "p95<1s,goodput>99%", "base": "p95<3s,goodput>99%"}
"""By model: what holds at the capacity."""

_USUAL: Final[dict[Peer, BatchingSettings]] = {
    "ctranslate2": BatchingSettings(num_streams=num_cores(), num_threads=1, max_batch_size=16, max_wait_s=0.0),
    "transformers": BatchingSettings(num_streams=1, num_threads=num_cores(), max_batch_size=16, max_wait_s=0.0),
}
"""Of the short form, which has no time for trials: what won those of CTranslate2 with the model that ships on two
cores. Transformers has one stream; no wait and small batches are taken over."""

_PLANS: Final[dict[Mode, Plan]] = {
    "short": Plan(run_s=6.0, probe_s=5.0, trial_s=4.0, num_repetitions=2, loads=(0.6,), resolution=0.1),
    "full": Plan(run_s=20.0, probe_s=15.0, trial_s=8.0, num_repetitions=3, loads=(0.3, 0.6, 0.9), tries=2),
}
_STRETCHED: Final = {"shipped": 1.0, "base": 2.0}
"""How much longer runs are, by model: the larger one answers a few calls a second, of which a p95 must come."""

_DEADLINE_S: Final = 10.0
"""Of each call: far beyond the objective, as the rival does not look at it."""
_GRPC_ERRORS: Final = (grpc.RpcError, grpc.FutureTimeoutError)
_MAX_LOAD: Final = 2.0
_MAX_REPETITIONS: Final = 100
_NUM_AGREEING: Final[dict[Mode, int]] = {"short": 100, "full": 400}
"""Texts that both translate to see whether they do the same work."""


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "load",
        help="compare with servers of other systems under load",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--mode", choices=("short", "full"), default="full", help="short: 3 minutes, a first impression (full)")
    add("--model", choices=(*MODELS, "both"), help="whose weights (both; short: shipped)")
    add("--against", type=_peers, metavar="P,P", help="ctranslate2, transformers (both; short: ctranslate2)")
    add("--loads", type=_loads, metavar="N,N", help="of the rival's capacity, in percent (30,60,90; short: 60)")
    add("--repetitions", type=_count, metavar="N", help="of each run at a load (3; short: 2)")
    usual = ", ".join(f"{model}: {slo}" for model, slo in _SLOS.items())
    add("--slo", type=_slo, metavar="SLO", help=f"{GRAMMAR} ({usual})".replace("%", "%%"))
    add(
        "--settings",
        type=settings_of,
        metavar="STREAMSxTHREADS,bN,wMS",
        help="of the rival, as `serve` takes them (the best of some trials; short: those that won before)",
    )
    add("--seed", type=int, default=1, metavar="N", help="of texts and arrivals (1)")
    add("--data", type=Path, metavar="DIR", help=f"test sets ({DATA_VARIABLE}; without: the repository's documents)")
    add("--output", type=Path, default=Path("build/peers-load"), metavar="DIR", help="(build/peers-load)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare; return the exit code."""
    signal.signal(signal.SIGTERM, _leave)  # or the servers would outlive it, standing still
    machine, rivalries = describe_machine(), list[Rivalry]()
    command = shlex.join(["python", "-m", "loadtests.peers", *sys.argv[1:]])
    try:
        for task in _tasks(arguments):
            rivalries.append(compare(task))
            for line in rivalry_lines(rivalries[-1]):
                print(line, flush=True)
            write_record(arguments.output / RESULTS_NAME, record_of(rivalries, machine, command))
            write_picture(arguments.output / PICTURE_NAME, rivalries)
    except (ServerError, DisagreementError, NoCapacityError, TimeoutError, RuntimeError, *_GRPC_ERRORS) as error:
        print(f"loadtests.peers load: {error}", file=sys.stderr)
        return 1
    print(f"results and picture are in {arguments.output}")
    return 0


def _tasks(arguments: argparse.Namespace) -> Iterator[Task]:
    """Yield what is asked for, each prepared when its turn comes."""
    is_short = arguments.mode == "short"
    asked = arguments.model or ("shipped" if is_short else "both")
    peers = arguments.against or (("ctranslate2",) if is_short else tuple(PRECISIONS))
    sentences = real_sentences(arguments.data)
    for model in MODELS if asked == "both" else (asked,):
        files = prepare_model(arguments.output / "models" / model, model, ends=True)
        calls = workload(model, sentences, directory=arguments.output / "texts", deadline_s=_DEADLINE_S)
        for peer in peers:
            yield Task(
                model=model,
                peer=peer,
                plan=_plan(arguments).stretched(_STRETCHED[model]),
                slo=arguments.slo or parse_slo(_SLOS[model]),
                files=files,
                workload=calls,
                directory=arguments.output / f"{model}-{peer}",
                num_agreeing=_NUM_AGREEING[arguments.mode],
                has_meaning=model == "shipped",
                settings=arguments.settings or (_USUAL[peer] if is_short else None),
            )


def _plan(arguments: argparse.Namespace) -> Plan:
    plan = _PLANS[arguments.mode]
    return replace(
        plan,
        loads=arguments.loads or plan.loads,
        num_repetitions=arguments.repetitions or plan.num_repetitions,
        seed=arguments.seed,
    )


def _peers(text: str) -> tuple[Peer, ...]:
    known = {str(peer): peer for peer in PRECISIONS}
    unknown = set(text.split(",")) - set(known)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: expected {', '.join(known)}")
    return tuple(known[name] for name in text.split(","))


def _loads(text: str) -> tuple[float, ...]:
    loads = tuple(float(part) / 100 for part in text.split(","))
    if not all(0 < load <= _MAX_LOAD for load in loads):
        raise argparse.ArgumentTypeError(f"{text}: expected percents above 0, at most {_MAX_LOAD:.0%}")
    return loads


def _slo(text: str) -> Slo:
    try:
        return parse_slo(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= _MAX_REPETITIONS:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 to {_MAX_REPETITIONS}")
    return value


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)
