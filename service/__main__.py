"""`python -m service serve | translate | models | demo | keys | reference`."""

import argparse
import sys
from collections.abc import Sequence

from service.cli import demo, keys, models, reference, serve, translate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 done, 1 failed, 2 called or configured wrongly."""
    parser = argparse.ArgumentParser(prog="python -m service", description="Dragoman: neural machine translation.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (serve, translate, models, demo, keys, reference):
        command.add_parser(commands)
    parsed = parser.parse_args(arguments)
    exit_code: int = parsed.run(parsed)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
