"""The flags that every command on the caller's side shares, and the call itself."""

import argparse
import sys
from collections.abc import Callable

from dragoman.client import TranslationClient
from dragoman.errors import DragomanError

DEFAULT_TARGET = "localhost:50051"


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    """Declare where the server is and how long to wait."""
    parser.add_argument("--target", default=DEFAULT_TARGET, metavar="HOST:PORT", help="the server (%(default)s)")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="deadline in seconds (%(default)s)")


def call(arguments: argparse.Namespace, use: Callable[[TranslationClient], None]) -> int:
    """Connect and let `use` call; a call that fails is one line on standard error and exit code 1."""
    try:
        with TranslationClient(arguments.target, timeout_s=arguments.timeout) as client:
            use(client)
    except (DragomanError, ValueError) as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 1
    return 0
