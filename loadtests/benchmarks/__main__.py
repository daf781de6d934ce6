"""`python -m loadtests benchmarks COMMAND`: speed on this machine, compared with other systems."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any, Final

import grpc

from dragoman.client.errors import DragomanError as CallError
from dragoman_export.errors import ExportError
from dragoman_service.cli.server_process import ServerProcessError
from dragoman_service.errors import DragomanError

_MODULES: Final = {  # with their commands
    "bench": ("bench",),
    "load": ("load", "prepare"),
    "serve": ("serve",),
}
_FAILURES: Final = (
    ServerProcessError,
    CallError,
    DragomanError,
    ExportError,
    grpc.RpcError,
    RuntimeError,
    ValueError,
    OSError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m loadtests benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    named = [module for module, names in _MODULES.items() if arguments and arguments[0] in names]

    def add_command(name: str, **texts: Any) -> Any:
        form = argparse.RawDescriptionHelpFormatter
        return commands.add_parser(name, formatter_class=form, **{"description": texts["help"], **texts})

    for module in named or _MODULES:  # imported here, because a server of another system needs few of them
        importlib.import_module(f"loadtests.benchmarks.{module}").add_commands(add_command)
    parsed = parser.parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except _FAILURES as error:
        print(f"loadtests benchmarks: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
