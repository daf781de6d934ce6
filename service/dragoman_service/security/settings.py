"""The settings of the gRPC and HTTP servers."""

import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dragoman_service.errors import ConfigError


def _separated(value: object) -> object:
    """Let a list be text with commas, as in the environment."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def normalized_origin(origin: str) -> str | None:
    """Return the origin of a web page as browsers send it: in lower case, without the default port of its scheme.

    None if the text is not `scheme://host` or `scheme://host:port`.
    """
    match = _ORIGIN.fullmatch(origin.lower())
    if not match or int(match[3] or 0) > 65535:
        return None
    scheme, host, port = match.groups()
    is_default = port is None or int(port) == _DEFAULT_PORTS.get(scheme)
    return f"{scheme}://{host}" if is_default else f"{scheme}://{host}:{int(port)}"


def _origins(given: Iterable[str]) -> tuple[str, ...]:
    origins = []
    for entry in given:
        origin = normalized_origin(entry)
        if origin is None:
            raise ValueError(
                "entries of the form scheme://host[:port] without a path, such as https://shop.example (`*` is not "
                "allowed, since any web page could then call the server)"
            )
        origins.append(origin)
    return tuple(origins)


class GrpcSettings(BaseModel):
    """Where the server listens and what it takes from one call."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` for all IPv4 interfaces, `::` for IPv6 too, `unix:/PATH` for a socket. Beyond
    loopback only with `access.callers_file` or `tls.client_ca_file`, or what `access` allows without."""

    port: int = Field(default=50051, ge=0, le=65535)
    """TCP port; 0 takes a free one."""

    google_translation: bool = False
    """Whether the server also answers clients of Google Cloud Translation: version 3 over gRPC and, where the API over
    HTTP is on, versions 3 and 2 over HTTP. Needs the extra `google`."""

    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=2**31 - 1)
    """Largest request; a larger one is rejected with RESOURCE_EXHAUSTED before it is parsed."""

    max_control_message_bytes: int = Field(default=64 * 1024, ge=1024, le=2**31 - 1)
    """Largest message to all services but TranslationService; a larger one is rejected with INVALID_ARGUMENT."""

    max_received_bytes: int = Field(default=256 * 1024 * 1024, ge=4096)
    """Messages in the server at a time, over all connections: half of it for those being received, each counted with
    `max_message_bytes`, further ones wait; half for those being answered, beyond it RESOURCE_EXHAUSTED."""

    message_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Time for the message of a call after its headers; then the call ends with DEADLINE_EXCEEDED."""

    max_metadata_bytes: int = Field(default=16 * 1024, ge=1024, le=1024 * 1024)
    """Largest metadata of a call, 32 bytes added to each entry; more is rejected with RESOURCE_EXHAUSTED."""

    max_connections: int = Field(default=1024, ge=1, le=1_000_000)
    """Connections at a time; one more is closed at once."""

    max_connection_streams: int = Field(default=100, ge=1, le=1_000_000)
    """Calls at a time on one connection; in gRPC clients further ones wait until there is room."""

    max_pending_calls: int = Field(default=16_384, ge=1, le=1_000_000)
    """Calls that gRPC keeps until the server looks at them, those that their callers have reset included; beyond it
    gRPC cancels calls of anybody. At least `max_connection_streams` for each connection of a hostile caller."""

    max_connection_idle_s: float = Field(default=1800.0, ge=0, le=2_000_000)
    """A connection without calls for this long is closed; 0: never."""

    handshake_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Time allowed to a new connection until it is ready for calls, TLS included."""

    min_ping_interval_s: float = Field(default=10.0, ge=0, le=86400)
    """A client that pings more often than this, with or without calls under way, is disconnected."""

    keepalive_interval_s: float = Field(default=120.0, ge=0.1, le=86400)
    """A connection with calls that has been silent for this long is pinged."""

    keepalive_timeout_s: float = Field(default=20.0, ge=0.1, le=3600)
    """Wait for the answer to such a ping; without one the connection is closed and its calls are cancelled."""

    max_concurrent_requests: int = Field(default=1024, ge=1, le=1_000_000)
    """Translations answered at a time, open streams and each of their requests counted; one more is rejected with
    RESOURCE_EXHAUSTED instead of waiting."""

    max_streams: int = Field(default=256, ge=1, le=1_000_000)
    """Documents, streams of requests and reflection calls at a time; one more is rejected with RESOURCE_EXHAUSTED. A
    message of `max_message_bytes` may be arriving on each stream of requests, beside `max_received_bytes`."""

    max_caller_share: float = Field(default=0.5, gt=0, le=1)
    """Share of `max_streams`, of `max_received_bytes` and of the calls whose message is awaited
    (`max_concurrent_requests`) that one caller (API key, or host) may take; 1: all."""

    stream_idle_timeout_s: float = Field(default=300.0, gt=0, le=86400)
    """A stream that sends no request while none is unanswered, or that takes no answer, for this long ends with
    DEADLINE_EXCEEDED."""

    max_watchers: int = Field(default=256, ge=1, le=1_000_000)
    """Calls of Health/Watch at a time; one more is rejected with RESOURCE_EXHAUSTED."""

    max_peer_watchers: int = Field(default=32, ge=1, le=1_000_000)
    """Calls of Health/Watch at a time from one host."""

    max_watch_s: float = Field(default=3600.0, gt=0, le=86400)
    """A call of Health/Watch ends after this time; its client begins another."""

    default_timeout_s: float = Field(default=30.0, gt=0, le=86400)
    """Time allowed to a call that comes without a deadline."""

    max_timeout_s: float = Field(default=300.0, gt=0, le=86400)
    """Longest time allowed to a call, whatever its deadline."""

    default_stream_timeout_s: float = Field(default=600.0, gt=0, le=86400)
    """Time allowed to a document or a stream of requests that comes without a deadline."""

    max_stream_timeout_s: float = Field(default=7200.0, gt=0, le=86400)
    """Longest time allowed to a document or a stream of requests, whatever its deadline."""

    max_stream_requests: int = Field(default=32, ge=1, le=1024)
    """Requests of one TranslateStream that are answered at a time; while there are so many the server reads no more."""

    max_connection_age_s: float = Field(default=0.0, ge=0, le=2_000_000)
    """A connection older than this is closed after its calls, so that clients spread over new replicas; 0: never."""

    drain_timeout_s: float = Field(default=30.0, ge=0, le=86400)
    """After SIGTERM, longest wait for the answers to admitted requests."""

    def allowed_s(self, remaining_s: float | None) -> float:
        """Return how long a call may take: what its caller left it, or the default, within the maximum."""
        return min(self.default_timeout_s if remaining_s is None else remaining_s, self.max_timeout_s)

    def allowed_stream_s(self, remaining_s: float | None) -> float:
        """Return how long a document or a stream of requests may take, likewise."""
        return min(self.default_stream_timeout_s if remaining_s is None else remaining_s, self.max_stream_timeout_s)

    @model_validator(mode="after")
    def _default_within_maximum(self) -> Self:
        if self.default_timeout_s > self.max_timeout_s:
            raise ValueError(f"default_timeout_s at most max_timeout_s ({self.max_timeout_s:g})")
        if self.default_stream_timeout_s > self.max_stream_timeout_s:
            raise ValueError(f"default_stream_timeout_s at most max_stream_timeout_s ({self.max_stream_timeout_s:g})")
        if self.max_received_bytes * self.max_caller_share < 2 * self.max_message_bytes:
            raise ValueError(f"max_received_bytes times max_caller_share at least twice {self.max_message_bytes} bytes")
        return self


class HttpSettings(BaseModel):
    """Where metrics and probes are served, and the API as JSON; calls have the limits of `grpc`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` for all IPv4 interfaces, `::` for IPv6. Metrics and probes are open to every
    client that can connect, in plain text: they accept no commands, and show load and models, never texts, keys or
    callers."""

    port: int = Field(default=9464, ge=0, le=65535)
    """TCP port; 0 takes a free one."""

    api: bool | None = None
    """Whether `/v1/translate` and the like are answered; unset: only where `host` is loopback and `tls` is off. Beyond
    loopback only under the conditions of `grpc.host`, and encrypted like gRPC."""

    playground: bool = False
    """Whether `/playground` is a page to try translations on; only where the API is answered. The page is open to every
    client that can connect; what it asks for needs a key if the API does."""

    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(_separated)] = ()
    """Names that the header `Host` of requests may have, beside addresses and `localhost`; others are refused with 421.
    Empty: where `host` is loopback no further ones, else any. Keeps web pages from reaching the server under a name of
    their own (DNS rebinding)."""

    allowed_origins: Annotated[tuple[str, ...], BeforeValidator(_separated), AfterValidator(_origins)] = ()
    """Origins of other web sites whose pages may call the server from a browser (CORS), each `scheme://host[:port]`,
    such as `https://shop.example`. Pages of the server itself may always call it. Requests with any other `Origin` are
    rejected with 403."""

    metrics_host: str | None = None
    """Address of `metrics_port`; unset: `host`."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """TCP port of `/metrics`, `/healthz` and `/readyz`, which are then not on `port`; unset: `port`. It has no TLS:
    with `tls` and `api`, it must be set."""

    max_connections: int = Field(default=256, ge=1, le=1_000_000)
    """Connections at a time; for one more, the oldest of the host that has most is closed, an idle one first."""

    request_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Time for a handshake of TLS, for the head of a request, and to read what is left of an answer; then the
    connection is closed."""

    keep_alive_s: float = Field(default=60.0, ge=0, le=86400)
    """A connection without requests for this long is closed, but not before `request_timeout_s` after an answer."""

    @model_validator(mode="after")
    def _host_has_a_port(self) -> Self:
        if self.metrics_host is not None and self.metrics_port is None:
            raise ValueError("metrics_host only with metrics_port")
        return self

    def serves_api(self, tls: "TlsSettings") -> bool:
        """Return whether the API is answered, and so `port` encrypted if `tls` is on."""
        return is_loopback(self.host) and not tls.is_on if self.api is None else self.api

    def of_monitoring(self) -> "HttpSettings":
        """Return the settings of the port that has metrics and probes."""
        if self.metrics_port is None:
            return self
        return self.model_copy(update={"host": self.metrics_host or self.host, "port": self.metrics_port})


class TlsSettings(BaseModel):
    """Encryption, and certificates of clients. All files are PEM and are read again when they change."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    certificate_file: Path | None = None
    """The server's certificate, then those that sign it; with it, plain text is rejected."""

    private_key_file: Path | None = None
    """Key of `certificate_file`, without a password."""

    client_ca_file: Path | None = None
    """With it, clients need a certificate that one of these has signed (mutual TLS)."""

    reload_interval_s: float = Field(default=10.0, ge=0.01, le=3600)
    """Interval at which the files are checked for changes. New connections get the new ones."""

    @property
    def is_on(self) -> bool:
        """Whether connections are encrypted."""
        return self.certificate_file is not None

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if (self.certificate_file is None) != (self.private_key_file is None):
            raise ValueError("certificate_file and private_key_file together")
        if self.client_ca_file is not None and not self.is_on:
            raise ValueError("client_ca_file only with certificate_file and private_key_file")
        return self


class AccessSettings(BaseModel):
    """Who may call."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    callers_file: Path | None = None
    """Who may call, by hashed API key or certificate, and how much (`dragoman keys`); unset:
    every client. It is read again when it changes."""

    reload_interval_s: float = Field(default=10.0, ge=0.01, le=3600)
    """Interval at which `callers_file` and `quota_store_url_file` are checked for changes."""

    quota_store_url_file: Path | None = None
    """File with the URL of a Redis or Valkey in which all replicas count what callers use: `redis://`, with TLS
    `rediss://`, or `unix://`; unset: each replica counts for itself. It is read again when it changes."""

    quota_store_timeout_s: float = Field(default=0.05, gt=0, le=10)
    """Longest wait for an answer of that store. Without one the limits of `callers_file` hold for this replica alone,
    and the store is tried again each second."""

    jwks: str | None = None
    """Path or `https://` URL of the JWK Set of an identity provider (OpenID Connect). If it is set, callers can send a
    signed token instead of an API key. A URL must answer within 10 s with at most 1 MiB. RSA keys must have at least
    2048 bits."""

    jwks_reload_interval_s: float = Field(default=300.0, ge=0.01, le=86400)
    """Interval at which `jwks` is read again."""

    jwt_issuer: str | None = None
    """What the claim `iss` of a token must be."""

    jwt_audience: str | None = None
    """What the claim `aud` of a token must contain."""

    jwt_translate_scope: str = "translate"
    """Scope of a token whose bearer may translate."""

    jwt_admin_scope: str = "admin"
    """Scope of a token whose bearer may load and unload models."""

    allow_unauthenticated: bool = False
    """Whether `grpc.host`, and `http.host` with the API, may be another than loopback while callers need no
    credentials. They may translate; models cannot be managed over gRPC then."""

    allow_plaintext_keys: bool = False
    """Whether `grpc.host`, and `http.host` with the API, may be another than loopback with API keys or tokens but
    without TLS, as behind a proxy that encrypts."""

    @property
    def takes_secrets(self) -> bool:
        """Whether callers send API keys or tokens."""
        return self.callers_file is not None or self.jwks is not None

    @model_validator(mode="after")
    def _store_has_limits_to_keep(self) -> Self:
        if self.quota_store_url_file is not None and self.callers_file is None:
            raise ValueError("quota_store_url_file only with callers_file, which has the limits")
        return self

    @model_validator(mode="after")
    def _token_is_checked_whole(self) -> Self:
        if self.jwks is not None and not (self.jwt_issuer and self.jwt_audience):
            raise ValueError("jwks only with jwt_issuer and jwt_audience")
        if self.jwks is not None and "://" in self.jwks and not _is_secret_url(self.jwks):
            raise ValueError("jwks a path, or a URL that begins with https:// (http:// only to this machine)")
        return self


def _is_secret_url(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


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


def check_bind_policy(grpc: GrpcSettings, http: HttpSettings, tls: TlsSettings, access: AccessSettings) -> None:
    """Reject settings that serve unknown callers, or take keys in plain text, beyond this machine without saying so.

    Raises:
        ConfigError: names the setting and what would allow it.
    """
    asks_who_calls = access.takes_secrets or tls.client_ca_file is not None
    if access.allow_unauthenticated and asks_who_calls:
        raise ConfigError(
            "access.allow_unauthenticated",
            True,
            "false where access.callers_file, access.jwks or tls.client_ca_file is set",
        )
    _check_host("grpc.host", grpc.host, tls, access)
    if not http.serves_api(tls):
        return
    _check_host("http.host", http.host, tls, access)
    if tls.is_on and http.metrics_port is None:
        raise ConfigError(
            "http.metrics_port", None, "a port for metrics and probes, which have no TLS, beside the API, which has"
        )


def _check_host(setting: str, host: str, tls: TlsSettings, access: AccessSettings) -> None:
    if is_loopback(host):
        return
    if not (access.takes_secrets or tls.client_ca_file is not None or access.allow_unauthenticated):
        raise ConfigError(
            setting,
            host,
            "a loopback address while callers need no credentials: set access.callers_file (API keys), access.jwks "
            "(tokens) or tls.client_ca_file (client certificates), or access.allow_unauthenticated = true to serve "
            "every caller",
        )
    if access.takes_secrets and tls.certificate_file is None and not access.allow_plaintext_keys:
        raise ConfigError(
            setting,
            host,
            "a loopback address while API keys or tokens would be sent in plain text: set tls.certificate_file and "
            "tls.private_key_file, or access.allow_plaintext_keys = true if something in front of the server encrypts",
        )
