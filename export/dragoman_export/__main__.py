"""`dragoman export COMMAND`: train a model, export and verify a bundle, evaluate translations."""

import argparse
import importlib
import keyword
import sys
from collections.abc import Sequence
from typing import Any

from dragoman_export.errors import ExportError
from dragoman_service.errors import DragomanError

_DESCRIPTION = "Trains models, exports and verifies bundles, and evaluates translations."

# modules of `dragoman_export.cli`, with their help
COMMANDS = {
    "clean": "drop pairs of parallel text that a model should not learn from",
    "train": "train a model on parallel text",
    "distill": "translate training text with a teacher model (sequence-level distillation)",
    "backtranslate": "make training pairs from text of the target language (back-translation)",
    "average": "average the weights of the last checkpoints of a run",
    "import": "import a model of another system, or a bundle, for the other commands",
    "bundle": "export a checkpoint as a model bundle",
    "convert": "add a precision to a bundle, such as fp16 for GPUs",
    "upgrade": "upgrade a bundle to the current version of the format",
    "shortlist": "add a shortlist of likely target tokens to a bundle",
    "confidence": "add a confidence model to a bundle",
    "verify": "verify a bundle against its checkpoint",
    "evaluate": "score translations of a bundle, a server or a file, optionally compared with another system",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command and return the exit status: 0 done, 1 error, 2 invalid usage.

    Without a sub-command the help is printed.
    """
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    args = _parser(arguments[0]).parse_args(arguments)
    try:
        return int(_module(args.command).run(args))
    except (ExportError, DragomanError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser(requested: str) -> argparse.ArgumentParser:
    # Imports only the module of the requested command, because some imports are slow.
    parser = argparse.ArgumentParser(prog="dragoman export", description=_DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == requested:
            _module(name).add_arguments(command)
    return parser


def _module(command: str) -> Any:
    return importlib.import_module(f"dragoman_export.cli.{command}{'_' if keyword.iskeyword(command) else ''}")


if __name__ == "__main__":
    sys.exit(main())
