"""The address under which clients reach the HTTP port: `http.public_url`, or the headers of trusted proxies."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman_service.http_api.settings import HttpSettings

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*+/?")
_PAIR = re.compile(r"([A-Za-z]+)=(?:\"([^\"]*)\"|([^\s;,\"]+))")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forwarded:
    """Values from the headers of a proxy; empty if absent."""

    scheme: str = ""
    host: str = ""
    prefix: str = ""
    clients: tuple[str, ...] = ()  # the nearest last


class PublicAddress:
    """Adds `public_url` to the state of each request, and removes the prefix of the public address from its path.

    The state of a request from a trusted proxy also gets `forwarded_host`, and the client of the proxy as its `peer`.
    """

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        """Pass requests on to `app`."""
        self._app = app
        self._public_url = settings.public_url
        self._networks = settings.trusted_proxies
        self._read = _forwarded if settings.proxy_headers == "forwarded" else _x_forwarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers, state = Headers(scope=scope), dict(scope.get("state", {}))
        forwarded = _Forwarded()
        if self._networks and self._is_trusted(_address_of_peer(state.get("peer", ""))):
            forwarded = self._read(headers)
            state["forwarded_host"] = forwarded.host
            if client := self._client(forwarded.clients):
                state["peer"] = f"ipv6:[{client}]:0" if client.version == 6 else f"ipv4:{client}:0"
        scheme, host = forwarded.scheme or scope["scheme"], forwarded.host or headers.get("host", "")
        state["public_url"] = self._public_url or f"{scheme}://{host}{forwarded.prefix}"
        prefix = state["public_url"].partition("://")[2].partition("/")[2]
        path = scope["path"]
        if prefix and path.startswith(f"/{prefix}/"):
            path = path[len(prefix) + 1 :]
        await self._app({**scope, "path": path, "state": state}, receive, send)

    def _client(self, chain: tuple[str, ...]) -> IPv4Address | IPv6Address | None:
        # The nearest client that is not a trusted proxy: addresses before it may be invented.
        client = None
        for text in reversed(chain):
            address = _address(text)
            if address is None:
                break
            client = address
            if not self._is_trusted(address):
                break
        return client

    def _is_trusted(self, address: IPv4Address | IPv6Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _x_forwarded(headers: Headers) -> _Forwarded:
    def last(name: str) -> str:
        return next(reversed(list(_values(headers, name))), "")

    return _checked(
        scheme=last("x-forwarded-proto"),
        host=last("x-forwarded-host"),
        prefix=last("x-forwarded-prefix"),
        clients=tuple(_values(headers, "x-forwarded-for")),
    )


def _forwarded(headers: Headers) -> _Forwarded:
    # RFC 7239; a comma or semicolon in a quoted string is not supported, as hosts and addresses have none.
    elements = [
        {match[1].lower(): match[2] or match[3] or "" for match in _PAIR.finditer(element)}
        for element in _values(headers, "forwarded")
    ]
    nearest = elements[-1] if elements else {}
    return _checked(
        scheme=nearest.get("proto", ""),
        host=nearest.get("host", ""),
        prefix=next(reversed(list(_values(headers, "x-forwarded-prefix"))), ""),  # RFC 7239 has no prefix
        clients=tuple(element.get("for", "") for element in elements),
    )


def _checked(*, scheme: str, host: str, prefix: str, clients: tuple[str, ...]) -> _Forwarded:
    # Values in another form are ignored.
    return _Forwarded(
        scheme=scheme.lower() if scheme.lower() in ("http", "https") else "",
        host=host.lower() if _HOST.fullmatch(host) else "",
        prefix=prefix.rstrip("/") if _PREFIX.fullmatch(prefix) else "",
        clients=clients,
    )


def _values(headers: Headers, name: str) -> Iterator[str]:
    return (part.strip() for value in headers.getlist(name) for part in value.split(",") if part.strip())


def _address_of_peer(peer: str) -> IPv4Address | IPv6Address | None:
    return _address(peer.partition(":")[2])


def _address(text: str) -> IPv4Address | IPv6Address | None:
    # Of an address with or without a port: `10.0.0.7`, `10.0.0.7:80`, `2001:db8::1`, `[2001:db8::1]:80`.
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
