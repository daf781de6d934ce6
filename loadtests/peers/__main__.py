"""`python -m loadtests peers COMMAND`: speed on this machine, beside other systems."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from dragoman.errors import DragomanError as CallError

from export.errors import ExportError
from loadtests.peers.workers import WorkerError
from loadtests.target import ServerError
from service.errors import DragomanError

_COMMANDS = {
    **dict.fromkeys(("bench", "table"), "bench"),
    **dict.fromkeys(("overhead", "server"), "shares"),
    **dict.fromkeys(("load", "prepare"), "load"),
    "serve": "serve",
}
"""By name: which module of this package has it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m loadtests peers", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    named = [_COMMANDS[name] for name in arguments[:1] if name in _COMMANDS]
    for name in named or dict.fromkeys(
        _COMMANDS.values()
    ):  # imported now: a server of another system needs little of them
        importlib.import_module(f"loadtests.peers.{name}").add_parser(commands)
    parsed = parser.parse_args(arguments)
    try:
        exit_code: int = parsed.run(parsed)
    except (WorkerError, ServerError, CallError, DragomanError, ExportError) as error:
        print(f"loadtests peers: {error}", file=sys.stderr)
        return 1
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
