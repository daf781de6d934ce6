"""Who the caller is and whom it trusts: API keys, TLS, and what may never cross a network in the clear."""

import ipaddress
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

Metadata = Iterable[tuple[str, str | bytes]]
"""Pairs of name and value; names are lower case, values printable ASCII, or bytes if the name ends in `-bin`."""

Pem = bytes | str | os.PathLike[str]
"""PEM text as bytes, or the path of a file that holds it."""

_NAME = re.compile(r"[0-9a-z_.-]+")
_KEY = re.compile(r"[!-~]+")
_VALUE = re.compile(r"[ -~]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """What a TLS connection needs. Files are read when a client is made; make a new one after they change."""

    ca: Pem | None = None
    """Whom to trust; None: the roots gRPC ships with."""

    certificate: Pem | None = None
    """With `private_key`: who we are, for a server that asks (mutual TLS). The chain, our own certificate first."""

    private_key: Pem | None = field(default=None, repr=False)
    """Belongs to `certificate`."""

    server_name: str | None = None
    """Name the server's certificate must hold; None: the host of the target. Needed for a target of addresses."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key go together, but only one of them is given")

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files and return what gRPC takes.

        Raises:
            OSError: if a file cannot be read.
            ValueError: if one of the three is not PEM.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=pem_content("ca", self.ca),
            private_key=pem_content("private_key", self.private_key),
            certificate_chain=pem_content("certificate", self.certificate),
        )


def api_key_metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata that carry an API key; none without one. White space around it is left out.

    A key that is read from a file ends with a newline, which no header can hold.

    Raises:
        ValueError: if the key cannot be sent; the message does not show it.
    """
    if api_key is None:
        return ()
    key = api_key.strip()
    if not _KEY.fullmatch(key):
        raise ValueError("api_key must be one or more printable ASCII characters without spaces")
    return (("authorization", f"Bearer {key}"),)


def checked_metadata(metadata: Metadata) -> tuple[tuple[str, str | bytes], ...]:
    """Return metadata that gRPC takes; its own error would show every value, keys included.

    Raises:
        ValueError: if a name or value cannot be sent; the message shows the name only.
    """
    pairs = tuple(metadata)
    for name, value in pairs:
        if not _NAME.fullmatch(name) or name.startswith("grpc-"):
            raise ValueError(f"metadata name {name!r} must be lower-case letters, digits, '_', '.', '-', not grpc-...")
        is_fit = isinstance(value, bytes) if name.endswith("-bin") else _is_printable(value)
        if not is_fit:
            raise ValueError(f"metadata {name!r} must be printable ASCII, or bytes if its name ends in -bin")
    return pairs


def check_secrecy(target: str, metadata: Metadata, *, is_encrypted: bool) -> None:
    """Refuse to send a credential where anyone on the way could read it.

    Raises:
        ValueError: if `metadata` hold one and the connection to `target` is neither encrypted nor on this machine.
    """
    is_secret = any(name in ("authorization", "proxy-authorization", "cookie") for name, _ in metadata)
    if is_secret and not is_encrypted and not is_local(target):
        raise ValueError(
            f"the connection to {target} is not encrypted, so a credential could be read on the way: "
            "give tls=TlsOptions(), or is_plaintext_trusted=True if something else encrypts it"
        )


def pem_content(name: str, pem: Pem | None) -> bytes | None:
    """Return PEM text; OSError if its file cannot be read, ValueError if it is none."""
    if pem is None:
        return None
    content = pem if isinstance(pem, bytes) else Path(pem).read_bytes()
    if b"-----BEGIN " not in content:
        raise ValueError(f"{name} holds no PEM block (-----BEGIN ...)")
    return content


def is_local(target: str) -> bool:
    """Whether a gRPC target is surely on this machine: loopback addresses, `localhost`, Unix sockets."""
    scheme, _, rest = target.partition(":")
    match scheme.lower():
        case "unix" | "unix-abstract":
            return True
        case "ipv4" | "ipv6":
            return all(_is_loopback(address) for address in rest.split(","))
        case "dns":
            # With an authority, `dns://8.8.8.8/localhost`, another server says what localhost is.
            return not re.match("//[^/]", rest) and _is_loopback(rest.removeprefix("///"))
        case _:
            return _is_loopback(target)


def _is_loopback(address: str) -> bool:
    host = _host(address).lower().removesuffix(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(address: str) -> str:
    """Return `address` without its port, if it has one, and without the brackets of IPv6."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def _is_printable(value: object) -> bool:
    return isinstance(value, str) and _VALUE.fullmatch(value) is not None
