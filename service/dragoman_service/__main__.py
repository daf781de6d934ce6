"""The commands of the server. `python -m dragoman_service COMMAND` is the same as `dragoman COMMAND`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from dragoman_service.signals import exit_on_signals

COMMANDS = ("serve", "translate", "translate-dataset", "models", "demo", "keys", "doctor")
"""Each is a module of `dragoman_service.cli`, with `_` for `-`, except `translate`, which is part of the client."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 success, 1 failure, 2 wrong usage or configuration."""
    words = sys.argv[1:] if arguments is None else arguments
    if words and words[0] == "serve":
        exit_on_signals()
    parser = argparse.ArgumentParser(prog="dragoman", description="Dragoman: neural machine translation.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    is_known = bool(words) and words[0] in COMMANDS  # the others are not imported, as that takes long
    for name in words[:1] if is_known else COMMANDS:
        package = "dragoman" if name == "translate" else "dragoman_service"
        import_module(f"{package}.cli.{name.replace('-', '_')}").add_parser(commands)
    parsed = parser.parse_args(words)
    exit_status: int = parsed.run(parsed)
    return exit_status


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        exit_on_signals()
    from dragoman import __main__ as command

    sys.exit(command.main())
