"""`dragoman translate`, with the client alone."""

import argparse
import sys
from collections.abc import Sequence

from dragoman.cli import translate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 done, 1 failed, 2 called wrongly."""
    parser = argparse.ArgumentParser(prog="dragoman")
    translate.add_parser(parser.add_subparsers(required=True, metavar="COMMAND"))
    parsed = parser.parse_args(arguments)
    exit_code: int = parsed.run(parsed)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
