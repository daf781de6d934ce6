"""The command `dragoman translate`, which only needs the client."""

import argparse
import sys
from collections.abc import Sequence

from dragoman.cli import translate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code: 0 success, 1 failure, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="dragoman")
    translate.add_parser(parser.add_subparsers(required=True, metavar="COMMAND"))
    parsed = parser.parse_args(arguments)
    exit_code: int = parsed.run(parsed)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
