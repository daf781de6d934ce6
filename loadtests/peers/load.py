"""`load`: the same calls to this server and to others, at the same moments; which answers sooner, which can do more?

`prepare`: a model and what to ask it, laid out for the other load tests.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc

from loadtests.capacity import DEFAULT_SLO, PLANS, SearchPlan
from loadtests.flags import flags_of, parsed_by, within
from loadtests.machine import describe_machine, num_cores
from loadtests.peers.batching import PRECISIONS, BatchingSettings
from loadtests.peers.cases import Mode
from loadtests.peers.load_comparison import DisagreementError, LoadTask, Plan, compare
from loadtests.peers.load_report import PICTURE_NAME, RESULTS_NAME, Comparison, picture, record_of
from loadtests.peers.models import MODELS, prepare_model, served_models
from loadtests.peers.sentences import real_sentences, workload
from loadtests.peers.systems import Peer
from loadtests.report import command_line, write_json, write_picture
from loadtests.slo import GRAMMAR, parse_slo
from loadtests.target import ServerError
from loadtests.texts import DATA_VARIABLE

_DESCRIPTION: Final = f"""\
Starts our server with its defaults, and over the same weights a server of another system with the usual dynamic
batching, set up as it does best (what was tried is in load.json). Both get the same sentences at the same random
moments (Poisson), one call each, in turn; the other one is stopped meanwhile.

First both answer the same texts: their speed is compared only if they do the same work. Then the capacity of both is
searched, the highest rate at which --slo holds, and at shares of the other's capacity latencies are compared. Times
count from the moment at which a call should have been sent.

Prints a line for each load, with the targets: p50 and p95 at most 0.6 of the other's, capacity at least 1.5 times.
A missed target is reported, and no error. Leaves {RESULTS_NAME} and {PICTURE_NAME} in --output.

exit codes: 0 all was measured, 1 a server failed or both do not do the same work, 2 called wrongly"""
_PREPARE_DESCRIPTION: Final = """\
Writes a model as `load` compares it, and sentences for it, and prints the flags by which `python -m loadtests capacity`
and `python -m loadtests load` serve the one and send the other:

    eval "python -m loadtests capacity $(python -m loadtests peers prepare --model base)\""""

_SLOS: Final = {"shipped": DEFAULT_SLO, "base": "p95<3s,goodput>99%"}
"""By model: what holds at the capacity."""

_USUAL: Final[dict[Peer, BatchingSettings]] = {
    "ctranslate2": BatchingSettings(num_streams=num_cores(), num_threads=1, max_batch_size=16, max_wait_s=0.0),
    "transformers": BatchingSettings(num_streams=1, num_threads=num_cores(), max_batch_size=16, max_wait_s=0.0),
}
"""Of the short form, which has no time for trials: what won those of CTranslate2 with the model that ships on two
cores. Transformers has one stream; no wait and small batches are taken over."""

_PLANS: Final[dict[Mode, Plan]] = {
    "short": Plan(
        run_s=6.0,
        trial_s=4.0,
        num_repetitions=2,
        loads=(0.6,),
        search=SearchPlan(closed_loop_s=4.0, probe_s=5.0, resolution=0.1),
    ),
    "full": Plan(run_s=20.0, trial_s=8.0, num_repetitions=3, loads=(0.3, 0.6, 0.9), search=PLANS["full"]),
}
_STRETCHED: Final = {"shipped": 1.0, "base": 2.0}
"""How much longer runs are, by model: the larger one answers a few calls a second, of which a p95 must come."""
_MAX_LOAD: Final = 2.0
_NUM_AGREEING: Final[dict[Mode, int]] = {"short": 100, "full": 400}
"""Texts that both translate to see whether they do the same work."""


def add_parser(commands: Any) -> None:
    """Declare both commands and their flags."""
    parser = _described(commands, "load", _DESCRIPTION, help="compare with servers of other systems under load")
    add = parser.add_argument
    add("--mode", choices=("short", "full"), default="full", help="short: 3 minutes, a first impression (full)")
    add("--model", choices=(*MODELS, "both"), help="whose weights (both; short: shipped)")
    add("--against", type=parsed_by(_peers), metavar="P,P", help="ctranslate2, transformers (both; short: ctranslate2)")
    add(
        "--loads",
        type=parsed_by(_loads),
        metavar="N,N",
        help="of the other's capacity, in percent (30,60,90; short: 60)",
    )
    add("--repetitions", type=within(1, 100, int), metavar="N", help="of each run at a load (3; short: 2)")
    usual = ", ".join(f"{model}: {slo}" for model, slo in _SLOS.items())
    add("--slo", type=parsed_by(parse_slo), metavar="SLO", help=f"{GRAMMAR} ({usual})".replace("%", "%%"))
    add(
        "--settings",
        type=parsed_by(BatchingSettings.parse),
        metavar="STREAMSxTHREADS,bN,wMS",
        help="of the other server, as `serve` takes them (the best of some trials; short: those that won before)",
    )
    add("--seed", type=int, default=1, metavar="N", help="of texts and arrivals (1)")
    _add_files(parser, "build/peers-load")
    parser.set_defaults(run=_run)
    parser = _described(commands, "prepare", _PREPARE_DESCRIPTION, help="lay out a model for other load tests")
    parser.add_argument("--model", choices=MODELS, default="base", help="random weights, or the shipped one (base)")
    _add_files(parser, "build/prepared")
    parser.set_defaults(run=_prepare)


def _described(commands: Any, name: str, description: str, *, help: str) -> argparse.ArgumentParser:  # noqa: A002
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return parser


def _add_files(parser: argparse.ArgumentParser, output: str) -> None:
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"test sets ({DATA_VARIABLE}; built-in sentences)")
    parser.add_argument("--output", type=Path, default=Path(output), metavar="DIR", help=f"({output})")


def _run(arguments: argparse.Namespace) -> int:
    """Compare; return the exit code."""
    machine, found = describe_machine(), list[Comparison]()
    try:
        for task in _tasks(arguments):
            found.append(compare(task))
            print(*found[-1].lines(), sep="\n", flush=True)
            write_json(arguments.output / RESULTS_NAME, record_of(found, machine, command_line("peers")))
            write_picture(arguments.output / PICTURE_NAME, picture(found))
    except (ServerError, DisagreementError, OSError, RuntimeError, grpc.RpcError) as error:
        print(f"loadtests peers load: {error}", file=sys.stderr)
        return 1
    print(f"results and picture are in {arguments.output}")
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    """Prepare; return the exit code."""
    files = prepare_model(arguments.output / "models" / arguments.model, arguments.model, ends=True)
    calls = workload(arguments.model, real_sentences(arguments.data), directory=arguments.output / "texts")
    print(shlex.join([f"--model-dir={served_models(files)}", *flags_of(calls)]))
    return 0


def _tasks(arguments: argparse.Namespace) -> Iterator[LoadTask]:
    """Yield what is asked for, each prepared when it begins."""
    is_short = arguments.mode == "short"
    asked = arguments.model or ("shipped" if is_short else "both")
    usual = _PLANS[arguments.mode]
    plan = replace(
        usual,
        loads=arguments.loads or usual.loads,
        num_repetitions=arguments.repetitions or usual.num_repetitions,
        search=replace(usual.search, seed=arguments.seed),
        seed=arguments.seed,
    )
    sentences = real_sentences(arguments.data)
    for model in MODELS if asked == "both" else (asked,):
        files = prepare_model(arguments.output / "models" / model, model, ends=True)
        calls = workload(model, sentences, directory=arguments.output / "texts")
        for peer in arguments.against or (("ctranslate2",) if is_short else tuple(PRECISIONS)):
            yield LoadTask(
                model=model,
                peer=peer,
                plan=plan.stretched(_STRETCHED[model]),
                slo=arguments.slo or parse_slo(_SLOS[model]),
                files=files,
                workload=calls,
                directory=arguments.output / f"{model}-{peer}",
                num_agreeing=_NUM_AGREEING[arguments.mode],
                settings=arguments.settings or (_USUAL[peer] if is_short else None),
            )


def _peers(text: str) -> tuple[Peer, ...]:
    known = {str(peer): peer for peer in PRECISIONS}
    unknown = set(text.split(",")) - set(known)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: expected {', '.join(known)}")
    return tuple(known[name] for name in text.split(","))


def _loads(text: str) -> tuple[float, ...]:
    loads = tuple(float(part) / 100 for part in text.split(","))
    if not all(0 < load <= _MAX_LOAD for load in loads):
        raise ValueError(f"{text}: expected percents above 0, at most {_MAX_LOAD:.0%}")
    return loads
