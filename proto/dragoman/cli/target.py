"""The flags that every command on the caller's side shares, and the call itself."""

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


def add_target_flags(parser: argparse.ArgumentParser, *, are_again: bool = False) -> None:
    """Declare where the server is, how long to wait, and who asks; and the flags of TLS.

    With `are_again` the command around this one takes them, too; then only those given here count instead.
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
    add_tls_flags(partial(add, access))


def add_tls_flags(add: Callable[..., object]) -> None:
    """Declare how to encrypt, by the function that declares a flag."""
    add("--tls", default=False, action="store_true", help="encrypt; implied by the flags below")
    add("--ca-file", type=Path, metavar="FILE", help="certificate authorities to trust; default: the public ones")
    add("--certificate-file", type=Path, metavar="FILE", help="certificate of this client, for mutual TLS")
    add("--private-key-file", type=Path, metavar="FILE", help="private key of --certificate-file")


def tls_options(arguments: argparse.Namespace, *, server_name: str | None = None) -> TlsOptions | None:
    """Return how to encrypt; None for plain text."""
    files = (arguments.ca_file, arguments.certificate_file, arguments.private_key_file)
    if not (arguments.tls or any(files) or server_name):
        return None
    ca, certificate, private_key = files
    return TlsOptions(ca=ca, certificate=certificate, private_key=private_key, server_name=server_name)


def call(
    arguments: argparse.Namespace,
    connect: Callable[..., AbstractContextManager[Client]],
    use: Callable[[Client], int | None],
) -> int:
    """Connect and let `use` call, which returns the exit code; a call that fails is one line and exit code 1."""
    try:
        key = None if arguments.api_key_file is None else arguments.api_key_file.read_text().strip()
        tls = tls_options(arguments)
        with connect(arguments.target, timeout_s=arguments.timeout, api_key=key, tls=tls) as client:
            return use(client) or 0
    except (DragomanError, ValueError, OSError) as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 1
