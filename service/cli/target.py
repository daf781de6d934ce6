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


def add_target_flags(parser: argparse.ArgumentParser, *, are_again: bool = False) -> None:
    """Declare where the server is, how long to wait, and who asks.

    Args:
        parser: of the command.
        are_again: the command around this one takes them, too; then only those given here count instead.
    """

    def add(group: Any, *names: str, default: object = None, **options: Any) -> None:
        group.add_argument(*names, default=argparse.SUPPRESS if are_again else default, **options)

    add(parser, "--target", default=DEFAULT_TARGET, metavar="HOST:PORT", help=f"the server ({DEFAULT_TARGET})")
    add(
        parser,
        "--timeout",
        type=float,
        metavar="S",
        help="deadline in seconds (30; 300 to change models; 600 for a document)",
    )
    access = parser.add_argument_group("for a server with TLS or API keys; all files but that of the key are PEM")
    add(access, "--api-key-file", type=Path, metavar="FILE", help="holds the API key")
    add(access, "--tls", default=False, action="store_true", help="encrypt; implied by the flags below")
    add(
        access,
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="certificate authorities to trust; default: the public ones",
    )
    add(access, "--certificate-file", type=Path, metavar="FILE", help="certificate of this client, for mutual TLS")
    add(access, "--private-key-file", type=Path, metavar="FILE", help="private key of --certificate-file")


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
