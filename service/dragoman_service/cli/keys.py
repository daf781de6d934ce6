"""`keys`: create API keys, check a callers file."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dragoman_service.security.api_keys import Permission, StoredKey, new_key, parse_callers

_DESCRIPTION = """\
Creates API keys, and checks the callers file (setting access.callers_file).

`new` prints a key on standard output, once: the server stores only its hash. The entry for the callers file goes to
standard error, so `dragoman keys new shop > shop.key` separates the two. To replace the key of a caller, add the new
hash to its `keys`, and remove the old one when it is no longer used."""


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "keys",
        help="create an API key, check a callers file",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="create a key and the entry of its caller")
    new.add_argument("name", help="name of the caller in logs and limits: letters, digits, '.', '_', '-', '@'")
    permissions = ", ".join(Permission)
    new.add_argument(
        "--permissions",
        default=Permission.TRANSLATE.value,
        metavar="P,...",
        help=f"comma-separated, from {permissions} (%(default)s)",
    )
    new.add_argument("--requests-per-s", type=float, metavar="N", help="rate limit of requests (default: none)")
    new.add_argument("--tokens-per-min", type=float, metavar="N", help="rate limit of source tokens (default: none)")
    new.add_argument("--decode-cost-per-min", type=float, metavar="N", help="rate limit of decode cost (default: none)")
    new.set_defaults(run=_new)
    check = actions.add_parser("check", help="check a callers file")
    check.add_argument("file", type=Path)
    check.set_defaults(run=_check)


def caller_entry(name: str, permissions: str, *, key: str, **limits: float | None) -> str:
    """Return the entry of a caller with one key; ValueError if it is invalid."""
    lines = [
        "[[caller]]",
        f"name = {json.dumps(name)}",  # a JSON string is a TOML string
        f'keys = ["{StoredKey.of(key)}"]',
        f"permissions = {json.dumps([permission.strip() for permission in permissions.split(',')])}",
        *(f"{limit} = {value!r}" for limit, value in limits.items() if value is not None),
    ]
    text = "".join(f"{line}\n" for line in lines)
    parse_callers(text.encode("utf-8", "replace"))
    return text


def _new(arguments: argparse.Namespace) -> int:
    key = new_key()
    limits = {limit: getattr(arguments, limit) for limit in ("requests_per_s", "tokens_per_min", "decode_cost_per_min")}
    try:
        text = caller_entry(arguments.name, arguments.permissions, key=key, **limits)
    except ValueError as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 2
    print("Key for the caller, shown only once:", file=sys.stderr, flush=True)
    print(key, flush=True)
    print(f"\nEntry for access.callers_file of the server:\n\n{text}", end="", file=sys.stderr)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    try:
        parse_callers(arguments.file.read_bytes())
    except OSError as error:
        print(f"dragoman: {arguments.file}: {error.strerror}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"dragoman: {arguments.file}: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.file}: valid")
    return 0
