"""Settings of the HTTP port."""

import re
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dragoman_service.security.settings import TlsSettings, is_loopback
from dragoman_service.toml import SettingsSection

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_EXTENSIONS = re.compile(r"([a-z]+-)+extension:")
_PUBLIC_URL = re.compile(r"https?://(\[[0-9a-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~-]+)*/?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def normalized_origin(origin: str) -> str | None:
    """Return a web origin as browsers send it: in lower case, without the default port of its scheme.

    None if the text is not `scheme://host` or `scheme://host:port`.
    """
    match = _ORIGIN.fullmatch(origin.lower())
    if not match or int(match[3] or 0) > 65535:
        return None
    scheme, host, port = match.groups()
    is_default = port is None or int(port) == _DEFAULT_PORTS.get(scheme)
    return f"{scheme}://{host}" if is_default else f"{scheme}://{host}:{int(port)}"


def _split(value: object) -> object:
    """Split a text with commas, as environment variables contain it."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _origins(entries: Iterable[str]) -> tuple[str, ...]:
    origins = []
    for entry in entries:
        origin = entry.lower() if _EXTENSIONS.fullmatch(entry.lower()) else normalized_origin(entry)
        if origin is None:
            raise ValueError(
                "entries of the form scheme://host[:port] without a path, such as https://shop.example, or the scheme "
                "of browser extensions, such as moz-extension: (`*` is not allowed, since any web page could then call "
                "the server)"
            )
        origins.append(origin)
    return tuple(origins)


def _public_url(value: str) -> str:
    if value and not _PUBLIC_URL.fullmatch(value):
        raise ValueError("http(s)://host[:port][/prefix], such as https://mt.example/translate")
    return value.rstrip("/")


class HttpSettings(SettingsSection):
    """Address of the HTTP server: metrics, probes and the API as JSON. The limits on calls are in `grpc`."""

    host: str = "127.0.0.1"
    """Address to listen on: `0.0.0.0` for all IPv4 interfaces, `::` for IPv4 and IPv6. Metrics and probes are
    unencrypted and open to every client that can connect. They accept no commands and contain load and model names,
    never texts, keys or callers."""

    port: int = Field(default=9464, ge=0, le=65535)
    """TCP port; 0 selects a free port."""

    api: bool | None = None
    """Serve the API (`/v1/translate` and others). Unset: only if `host` is loopback and `tls` is off. An address other
    than loopback has the same requirements as `grpc.host`, and the API is encrypted if gRPC is."""

    playground: bool = False
    """Serve a page for trying translations at `/playground`; requires the API. Every client that can connect can open
    the page; its requests need a key if the API does."""

    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    """Names that the header `Host` of requests may contain, in addition to addresses and `localhost`. Requests with
    other names are rejected with 421. Empty: no further names if `host` is loopback, else any name. This prevents DNS
    rebinding by web pages."""

    allowed_origins: Annotated[tuple[str, ...], BeforeValidator(_split), AfterValidator(_origins)] = ()
    """Origins of other web sites whose pages can call the server from a browser (CORS), each `scheme://host[:port]`,
    such as `https://shop.example`. `moz-extension:` or another scheme of extensions allows all extensions of a kind of
    browser, as Firefox gives each installation another origin. Pages of the server itself can always call it. Requests
    with another `Origin` are rejected with 403."""

    public_url: Annotated[str, AfterValidator(_public_url)] = ""
    """Address under which clients reach the HTTP port, such as `https://mt.example/translate`: scheme, host, and
    optionally port and path. Links in responses use it. Its host is an allowed host and its origin an allowed origin. A
    request may have its path or not, so a proxy need not strip it. Empty: derived from each request."""

    trusted_proxies: Annotated[tuple[IPv4Network | IPv6Network, ...], BeforeValidator(_split)] = ()
    """Networks of proxies whose headers (`proxy_headers`) replace the address of the client and, without `public_url`,
    scheme, host and prefix of links. Requests without a key from the same client then share limits, instead of all
    requests of the proxy. The proxy must remove these headers from the requests of its clients. Limits on connections
    and gRPC always use the address of the connection."""

    proxy_headers: Literal["x-forwarded", "forwarded"] = "x-forwarded"
    """Headers of trusted proxies: `x-forwarded` for `X-Forwarded-Proto`, `-Host`, `-Prefix` and `-For`; `forwarded` for
    `Forwarded` (RFC 7239) and `X-Forwarded-Prefix`. Others are ignored, because proxies pass them on from clients. A
    forwarded host must also be allowed by `allowed_hosts`."""

    metrics_host: str | None = None
    """Address of `metrics_port`; unset: `host`."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """TCP port of `/metrics`, `/healthz` and `/readyz`, which are then not on `port`; unset: `port`. This port has no
    TLS, so it is required with `tls` and `api`."""

    max_connections: int = Field(default=256, ge=1, le=1_000_000)
    """Maximum open connections. For a further connection, the server closes the oldest connection of the host that has
    most, preferably an idle one."""

    request_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """Longest time for a TLS handshake, for the head of a request, and for a client to read the rest of a response.
    Then the connection is closed."""

    keep_alive_s: float = Field(default=60.0, ge=0, le=86400)
    """Time without requests after which a connection is closed, but at least `request_timeout_s` after a response."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.metrics_host is not None and self.metrics_port is None:
            raise ValueError("metrics_host only with metrics_port")
        return self

    def serves_api(self, tls: TlsSettings) -> bool:
        """Return True if the API is served, and so `port` is encrypted if `tls` is on."""
        return is_loopback(self.host) and not tls.is_on if self.api is None else self.api

    def of_monitoring(self) -> "HttpSettings":
        """Return the settings of the port that serves metrics and probes."""
        if self.metrics_port is None:
            return self
        return self.model_copy(update={"host": self.metrics_host or self.host, "port": self.metrics_port})
