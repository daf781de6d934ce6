"""API keys, TLS, and the rule that credentials are never sent unencrypted over a network."""

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
    """Options of a TLS connection. Files are read when a client is created; create a new one after they change."""

    ca: Pem | None = None
    """Trusted certificate authorities; None: the roots bundled with gRPC."""

    certificate: Pem | None = None
    """Certificate chain of the client for mutual TLS, its own certificate first; requires `private_key`."""

    private_key: Pem | None = field(default=None, repr=False)
    """Private key of `certificate`."""

    server_name: str | None = None
    """Name in the certificate of the server; None: the host of the target. Required for targets with IP addresses."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key must be given together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files and return the credentials for gRPC.

        Raises:
            OSError: if a file cannot be read.
            ValueError: if a file is not PEM.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=pem_content("ca", self.ca),
            private_key=pem_content("private_key", self.private_key),
            certificate_chain=pem_content("certificate", self.certificate),
        )


def api_key_metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata of an API key; empty for None. Surrounding white space is removed.

    A key that is read from a file ends with a newline, which is not valid in a header.

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
    """Return the metadata if gRPC accepts it. The error of gRPC would show all values, including keys.

    Raises:
        ValueError: if a name or value cannot be sent; the message shows only the name.
    """
    pairs = tuple(metadata)
    for name, value in pairs:
        if not _NAME.fullmatch(name) or name.startswith("grpc-"):
            raise ValueError(f"metadata name {name!r} must be lower-case letters, digits, '_', '.', '-', not grpc-...")
        is_text = isinstance(value, str) and _VALUE.fullmatch(value) is not None
        if not (isinstance(value, bytes) if name.endswith("-bin") else is_text):
            raise ValueError(f"metadata {name!r} must be printable ASCII, or bytes if its name ends in -bin")
    return pairs


def check_secrecy(target: str, metadata: Metadata, *, is_encrypted: bool) -> None:
    """Reject credentials that would be sent unencrypted over a network.

    Raises:
        ValueError: if `metadata` contains a credential and the connection is neither encrypted nor local.
    """
    is_secret = any(name in ("authorization", "proxy-authorization", "cookie") for name, _ in metadata)
    if is_secret and not is_encrypted and not is_local(target):
        raise ValueError(
            f"the connection to {target} is not encrypted and would expose the credential: "
            "set tls=TlsOptions(), or is_plaintext_trusted=True if something else encrypts the connection"
        )


def pem_content(name: str, pem: Pem | None) -> bytes | None:
    """Return PEM text; OSError if its file cannot be read, ValueError if it is not PEM."""
    if pem is None:
        return None
    content = pem if isinstance(pem, bytes) else Path(pem).read_bytes()
    if b"-----BEGIN " not in content:
        raise ValueError(f"{name} has no PEM block (-----BEGIN ...)")
    return content


def is_local(target: str) -> bool:
    """Return whether a gRPC target is certainly on this machine: loopback addresses, `localhost`, Unix sockets."""
    scheme, _, rest = target.partition(":")
    match scheme.lower():
        case "unix" | "unix-abstract":
            return True
        case "ipv4" | "ipv6":
            return all(_is_loopback(address) for address in rest.split(","))
        case "dns":
            # In `dns://8.8.8.8/localhost`, another DNS server resolves localhost.
            return not re.match("//[^/]", rest) and _is_loopback(rest.removeprefix("///"))
        case _:
            return _is_loopback(target)


def _is_loopback(address: str) -> bool:
    host = address
    if address.startswith("["):  # IPv6
        host = address[1:].partition("]")[0]
    elif address.count(":") == 1:
        host = address.partition(":")[0]
    host = host.lower().removesuffix(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
