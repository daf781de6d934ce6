"""The commands of the server. `python -m dragoman_service COMMAND` is the same as `dragoman COMMAND`."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = ("serve", "translate", "translate-dataset", "models", "demo", "keys", "doctor")
"""Each is a module of `dragoman_service.cli`, with `_` for `-`, except `translate`, which is part of the client."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 success, 1 failure, 2 wrong usage or configuration."""
    words = sys.argv[1:] if arguments is None else arguments
    _exit_on_signals(words)
    parser = argparse.ArgumentParser(prog="dragoman", description="Dragoman: neural machine translation.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    is_known = bool(words) and words[0] in COMMANDS  # the others are not imported, as that takes long
    for name in words[:1] if is_known else COMMANDS:
        package = "dragoman" if name == "translate" else "dragoman_service"
        import_module(f"{package}.cli.{name.replace('-', '_')}").add_parser(commands)
    parsed = parser.parse_args(words)
    exit_status: int = parsed.run(parsed)
    return exit_status


def _exit_on_signals(words: Sequence[str]) -> None:
    """Let SIGTERM and SIGINT end a server that imports its modules; in a container, they have no effect by default."""
    if words and words[0] == "serve":
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(0))


if __name__ == "__main__":
    _exit_on_signals(sys.argv[1:])
    from dragoman import __main__ as command

    sys.exit(command.main())
