"""The flags that every command on the caller's side shares, and the call itself."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dragoman.admin import ModelAdminClient
from dragoman.client import TranslationClient
from dragoman.credentials import TlsOptions
from dragoman.errors import DragomanError

DEFAULT_TARGET = "localhost:50051"

Client = TypeVar("Client", TranslationClient, ModelAdminClient)
"""Who calls."""


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    """Declare where the server is, how long to wait, and who asks."""
    parser.add_argument("--target", default=DEFAULT_TARGET, metavar="HOST:PORT", help="the server (%(default)s)")
    parser.add_argument("--timeout", type=float, metavar="S", help="deadline in seconds (30; 300 to change models)")
    access = parser.add_argument_group("for a server that asks who calls; all files but that of the key are PEM")
    access.add_argument("--api-key-file", type=Path, metavar="FILE", help="holds the API key")
    access.add_argument("--tls", action="store_true", help="encrypt; implied by the flags below")
    access.add_argument("--ca-file", type=Path, metavar="FILE", help="whom to trust; default: the public authorities")
    access.add_argument("--certificate-file", type=Path, metavar="FILE", help="who we are, for mutual TLS")
    access.add_argument("--private-key-file", type=Path, metavar="FILE", help="belongs to --certificate-file")


def call(arguments: argparse.Namespace, use: Callable[[TranslationClient], None]) -> int:
    """Connect and let `use` call; a call that fails is one line on standard error and exit code 1."""
    return _exit_code(lambda: TranslationClient(arguments.target, **_options(arguments)), use)


def call_admin(arguments: argparse.Namespace, use: Callable[[ModelAdminClient], None]) -> int:
    """As `call`, to change what the server translates with."""
    return _exit_code(lambda: ModelAdminClient(arguments.target, **_options(arguments)), use)


def _exit_code(connect: Callable[[], Client], use: Callable[[Client], None]) -> int:
    try:
        with connect() as client:
            use(client)
    except (DragomanError, ValueError, OSError) as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 1
    return 0


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"timeout_s": arguments.timeout, "api_key": _api_key(arguments), "tls": _tls(arguments)}


def _api_key(arguments: argparse.Namespace) -> str | None:
    return None if arguments.api_key_file is None else str(arguments.api_key_file.read_text()).strip()


def _tls(arguments: argparse.Namespace) -> TlsOptions | None:
    files = (arguments.ca_file, arguments.certificate_file, arguments.private_key_file)
    if not arguments.tls and not any(files):
        return None
    ca, certificate, private_key = files
    return TlsOptions(ca=ca, certificate=certificate, private_key=private_key)
