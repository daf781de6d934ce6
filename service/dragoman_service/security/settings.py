"""Settings of TLS and of access control."""

import ipaddress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from dragoman_service.toml import SettingsSection

UNIX_SCHEME = "unix:"
"""Prefix of a `grpc.host` that is the path of a socket."""


def is_loopback(host: str) -> bool:
    """Return True if only this machine can connect to a host: 127.0.0.0/8, ::1, `localhost`, a Unix socket.

    Other names count as reachable from outside, even if they resolve to a loopback address.
    """
    if host.startswith(UNIX_SCHEME) or host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def address_of(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


class TlsSettings(SettingsSection):
    """Encryption and client certificates. All files are PEM and are reloaded when they change."""

    certificate_file: Path | None = None
    """Certificate of the server, followed by its intermediate certificates. If it is set, plain text is rejected."""

    private_key_file: Path | None = None
    """Private key of `certificate_file`, without a password."""

    client_ca_file: Path | None = None
    """Certificate authorities of clients. If it is set, clients need a certificate of one of them (mutual TLS)."""

    reload_interval_s: float = Field(default=10.0, ge=0.01, le=3600)
    """Interval at which the files are checked for changes. New connections use the new files."""

    @property
    def is_on(self) -> bool:
        """True if connections are encrypted."""
        return self.certificate_file is not None

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if (self.certificate_file is None) != (self.private_key_file is None):
            raise ValueError("certificate_file and private_key_file together")
        if self.client_ca_file is not None and not self.is_on:
            raise ValueError("client_ca_file only with certificate_file and private_key_file")
        return self


class AccessSettings(SettingsSection):
    """Authentication of callers, and their quotas."""

    callers_file: Path | None = None
    """Callers with their hashed API keys or certificates, permissions and quotas (`dragoman keys`). Unset: every client
    is accepted. The file is reloaded when it changes."""

    reload_interval_s: float = Field(default=10.0, ge=0.01, le=3600)
    """Interval at which `callers_file` and `quota_store_url_file` are checked for changes."""

    quota_store_url_file: Path | None = None
    """File with the URL of a Redis or Valkey server that holds the quotas of all replicas: `redis://`, `rediss://` for
    TLS, or `unix://`. Unset: each replica enforces its own quotas. The file is reloaded when it changes."""

    quota_store_timeout_s: float = Field(default=0.05, gt=0, le=10)
    """Longest wait for a response of the quota store. Without a response, this replica enforces the quotas of
    `callers_file` alone and tries the store again each second."""

    jwks: str | None = None
    """Path or `https://` URL of the JWK Set of an identity provider (OpenID Connect). If it is set, callers can send a
    signed token instead of an API key. A URL must respond within 10 s with at most 1 MiB. RSA keys must have at least
    2048 bits."""

    jwks_reload_interval_s: float = Field(default=300.0, ge=0.01, le=86400)
    """Interval at which `jwks` is reloaded."""

    jwt_issuer: str | None = None
    """Required value of the claim `iss` of a token."""

    jwt_audience: str | None = None
    """Value that the claim `aud` of a token must contain."""

    jwt_translate_scope: str = "translate"
    """Scope of tokens that permits translation."""

    jwt_admin_scope: str = "admin"
    """Scope of tokens that permits loading and unloading of models."""

    allow_unauthenticated: bool = False
    """Allow a `grpc.host`, and an `http.host` with the API, other than loopback without credentials of callers. All
    clients can then translate; models cannot be managed over gRPC."""

    allow_plaintext_keys: bool = False
    """Allow a `grpc.host`, and an `http.host` with the API, other than loopback with API keys or tokens but without
    TLS, for instance behind a proxy that terminates TLS."""

    @property
    def takes_secrets(self) -> bool:
        """True if callers send API keys or tokens."""
        return self.callers_file is not None or self.jwks is not None

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.quota_store_url_file is not None and self.callers_file is None:
            raise ValueError("quota_store_url_file only with callers_file, which contains the quotas")
        if self.jwks is not None and not (self.jwt_issuer and self.jwt_audience):
            raise ValueError("jwks only with jwt_issuer and jwt_audience")
        if self.jwks is not None and "://" in self.jwks:
            url = urlsplit(self.jwks)
            if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname or "")):
                raise ValueError("jwks a path, or a URL that begins with https:// (http:// only to this machine)")
        return self
