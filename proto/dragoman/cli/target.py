"""Connection flags of all commands that call a server, and the call itself."""

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dragoman.client.credentials import TlsOptions
from dragoman.client.errors import DragomanError

DEFAULT_TARGET = "localhost:50051"

Client = TypeVar("Client")


def add_target_flags(parser: argparse.ArgumentParser, *, overrides_parent: bool = False) -> None:
    """Add the flags for target, deadline, credentials and TLS.

    With `overrides_parent`, the parser is that of a subcommand whose parent has the same flags: if given, its flags
    take precedence.
    """

    def add(group: Any, *names: str, default: object = None, **options: Any) -> None:
        group.add_argument(*names, default=argparse.SUPPRESS if overrides_parent else default, **options)

    add(parser, "--target", default=DEFAULT_TARGET, metavar="HOST:PORT", help=f"server (default {DEFAULT_TARGET})")
    add(
        parser,
        "--timeout",
        type=float,
        metavar="S",
        help="deadline in seconds (default 30; 300 to change models; 600 for a document)",
    )
    access = parser.add_argument_group("servers with TLS or API keys", "All files except that of the key are PEM.")
    add(access, "--api-key-file", type=Path, metavar="FILE", help="file with the API key")
    add_tls_flags(partial(add, access))


def add_tls_flags(add: Callable[..., object]) -> None:
    """Add the TLS flags with a function such as `parser.add_argument`."""
    add("--tls", default=False, action="store_true", help="encrypt; implied by the flags below")
    add("--ca-file", type=Path, metavar="FILE", help="trusted certificate authorities (default: the public ones)")
    add("--certificate-file", type=Path, metavar="FILE", help="client certificate, for mutual TLS")
    add("--private-key-file", type=Path, metavar="FILE", help="private key of --certificate-file")


def tls_options(arguments: argparse.Namespace, *, server_name: str | None = None) -> TlsOptions | None:
    """Return the TLS options; None for plain text."""
    files = (arguments.ca_file, arguments.certificate_file, arguments.private_key_file)
    if not (arguments.tls or any(files) or server_name):
        return None
    ca, certificate, private_key = files
    return TlsOptions(ca=ca, certificate=certificate, private_key=private_key, server_name=server_name)


def call(
    arguments: argparse.Namespace,
    connect: Callable[..., AbstractContextManager[Client]],
    action: Callable[[Client], int | None],
) -> int:
    """Connect, run `action` and return its exit code; print an error as one line and return 1."""
    try:
        key = None if arguments.api_key_file is None else arguments.api_key_file.read_text("utf-8-sig").strip()
        tls = tls_options(arguments)
        with connect(arguments.target, timeout_s=arguments.timeout, api_key=key, tls=tls) as client:
            return action(client) or 0
    except (DragomanError, ValueError, OSError) as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 1
