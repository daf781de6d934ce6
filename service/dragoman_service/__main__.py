"""`dragoman serve | translate | models | demo | keys | probe | reference`, as `dragoman serve | ...` does."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

_COMMANDS = ("serve", "translate", "models", "demo", "keys", "probe")
"""Each is a module of `dragoman_service.cli`, but for the one that needs the client only."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 done, 1 failed, 2 called or configured wrongly."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="dragoman", description="Dragoman: neural machine translation.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    is_known = bool(words) and words[0] in _COMMANDS  # only it is imported: most others take ten times as long to load
    for name in words[:1] if is_known else _COMMANDS:
        package = "dragoman" if name == "translate" else "dragoman_service"
        import_module(f"{package}.cli.{name}").add_parser(commands)
    parsed = parser.parse_args(words)
    exit_code: int = parsed.run(parsed)
    return exit_code


if __name__ == "__main__":
    try:
        from dragoman import __main__ as command  # tells in one line what is missing, and ends well on Ctrl-C
    except ModuleNotFoundError:
        print(
            "dragoman: the package is not installed for this interpreter; in the checkout this installs it:\n"
            f"  {sys.executable} -m pip install --editable '.[serve]'",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.exit(command.main())
