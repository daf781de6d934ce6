"""`prepare`: a model and what to ask it, laid out for the other load tests."""

import argparse
import shlex
from pathlib import Path
from typing import Any, Final

from loadtests.flags import flags_of
from loadtests.peers.sentences import DATA_VARIABLE
from loadtests.peers.under_load.workloads import real_sentences, workload
from loadtests.peers.workspace import MODELS, prepare_model, served_models

_DEADLINE_S: Final = 10.0
_DESCRIPTION: Final = """\
Writes a model as `load` compares it, and sentences for it, and prints the flags by which `python -m loadtests capacity`
and `python -m loadtests load` serve the one and send the other:

    eval "python -m loadtests capacity $(python -m loadtests peers prepare --model base)\""""


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "prepare",
        help="lay out a model for other load tests",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--model",
        choices=MODELS,
        default="base",
        help="Transformer-base with random weights, or the shipped one (base)",
    )
    add("--data", type=Path, metavar="DIR", help=f"test sets ({DATA_VARIABLE}; without: the repository's documents)")
    add("--output", type=Path, default=Path("build/prepared"), metavar="DIR", help="(build/prepared)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prepare; return the exit code."""
    files = prepare_model(arguments.output / "models" / arguments.model, arguments.model, ends=True)
    calls = workload(
        arguments.model,
        real_sentences(arguments.data),
        directory=arguments.output / "texts",
        deadline_s=_DEADLINE_S,
    )
    flags = [f"--model-dir={served_models(files)}", *flags_of(calls)]
    print(shlex.join(flags))
    return 0
