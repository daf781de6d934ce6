"""`dragoman export COMMAND`: train a model, plot its curves, make a bundle of it, verify and evaluate that."""

import argparse
import importlib
import keyword
import sys
from collections.abc import Sequence
from typing import Any

from dragoman_export.errors import ExportError
from dragoman_service.errors import DragomanError

_DESCRIPTION = "Trains a model, plots its curves, makes a bundle of it, verifies and evaluates that."

COMMANDS = {
    "train": "learn a model from parallel text",
    "distill": "translate the text of a run with a teacher, for a smaller model to learn from",
    "ablate": "train variants of a model and say in a table what each change costs or gains",
    "average": "average the weights of the last checkpoints of a run",
    "plot": "draw the curves and the schedule of a run, the attention and the positions of a model",
    "import": "read a model of another system, or a bundle, as what the other commands take",
    "bundle": "make a model bundle of a checkpoint",
    "upgrade": "give a bundle of an earlier version of the format what the present one has",
    "shortlist": "give a bundle a shortlist: which target tokens are likely for a source",
    "confidence": "let a bundle say how likely each sentence is translated well",
    "verify": "prove that a bundle computes what its checkpoint does",
    "evaluate": "score the translations of a bundle, a running server or a file, alone or against another system's",
    "spans": "plant placeholders and addresses in a test set and count those that come back",
}
"""Name of each sub-command, which is also its module in `dragoman_export.cli`, and what `--help` says of it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sub-command named first and return the exit status: 0 done, 1 an error told on stderr, 2 wrong usage.

    Without one the sub-commands are printed.
    """
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    args = _parser(arguments[:1]).parse_args(arguments)
    try:
        return int(_module(args.command).run(args))
    except (ExportError, DragomanError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser(wanted: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser; only the module of the wanted command is imported, as each may load much."""
    parser = argparse.ArgumentParser(prog="dragoman export", description=_DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name in wanted:
            _module(name).add_arguments(command)
    return parser


def _module(command: str) -> Any:
    return importlib.import_module(f"dragoman_export.cli.{command}{'_' if keyword.iskeyword(command) else ''}")


if __name__ == "__main__":
    sys.exit(main())
