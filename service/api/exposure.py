"""Whether the server may listen where its settings say: beyond this machine only for callers that it knows."""

import ipaddress

from service.api.settings import AccessSettings, GrpcSettings, TlsSettings
from service.errors import ConfigError

UNIX_SCHEME = "unix:"
"""Begins a `grpc.host` that is the path of a socket."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a host: 127.0.0.0/8, ::1, `localhost`, a Unix socket.

    Any other name counts as reachable from outside, wherever it may resolve to.
    """
    if host.startswith(UNIX_SCHEME) or host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def check_exposure(grpc: GrpcSettings, tls: TlsSettings, access: AccessSettings) -> None:
    """Refuse to serve strangers, or to take keys that others can read, unless the settings say so in so many words.

    Raises:
        ConfigError: names the setting and what would allow it.
    """
    asks_who_calls = access.callers_file is not None or tls.client_ca_file is not None
    if access.allow_unauthenticated and asks_who_calls:
        raise ConfigError(
            "access.allow_unauthenticated", True, "false where access.callers_file or tls.client_ca_file is set"
        )
    if is_loopback(grpc.host):
        return
    if not asks_who_calls and not access.allow_unauthenticated:
        raise ConfigError(
            "grpc.host",
            grpc.host,
            "a loopback address while nobody has to say who they are: set access.callers_file (API keys) or "
            "tls.client_ca_file (client certificates), or access.allow_unauthenticated = true to serve anybody",
        )
    if access.callers_file is not None and tls.certificate_file is None and not access.allow_plaintext_keys:
        raise ConfigError(
            "grpc.host",
            grpc.host,
            "a loopback address while API keys would be sent in plain text: set tls.certificate_file and "
            "tls.private_key_file, or access.allow_plaintext_keys = true if something in front of the server encrypts",
        )
