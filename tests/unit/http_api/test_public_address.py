from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dragoman_service.config import load_settings
from dragoman_service.errors import ConfigError
from dragoman_service.http_api.application import protected_app
from dragoman_service.http_api.settings import HttpSettings

EVERYWHERE = "0.0.0.0"  # noqa: S104 - of an application that no socket serves
PROXY = "10.1.0.1"
TRUSTED = {"trusted_proxies": "10.1.0.0/16, fd00::/8"}
PUBLIC = {"public_url": "https://mt.example.org/mt"}


async def _answer(request: Request) -> JSONResponse:
    return JSONResponse({"url": request.state.public_url, "peer": request.state.peer})


async def ask(
    headers: Mapping[str, str], *, path: str = "/v1/models", peer: str = PROXY, **settings: Any
) -> httpx.Response:
    routes = [Route("/v1/models", _answer, methods=["GET", "POST"])]
    app = protected_app(routes, HttpSettings.model_validate(settings))
    shown = f"ipv6:[{peer}]:7" if ":" in peer else f"ipv4:{peer}:7"

    async def with_peer(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {"peer": shown}}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(with_peer), base_url="http://localhost:9464") as client:
        return await client.get(path, headers=headers)


FORWARDED = {
    "x-forwarded-proto": "https",
    "x-forwarded-host": "localhost:8443",
    "x-forwarded-prefix": "/mt/",
    "x-forwarded-for": "192.0.2.9",
}
RFC7239 = {"forwarded": 'for="[2001:db8::17]:4711";proto=https;host=localhost'}


@pytest.mark.parametrize(
    ("headers", "settings", "answer"),
    [
        ({}, {}, ("http://localhost:9464", f"ipv4:{PROXY}:7")),
        (FORWARDED, {}, ("http://localhost:9464", f"ipv4:{PROXY}:7")),
        (FORWARDED, {"trusted_proxies": ["10.2.0.0/16"]}, ("http://localhost:9464", f"ipv4:{PROXY}:7")),
        (FORWARDED, TRUSTED, ("https://localhost:8443/mt", "ipv4:192.0.2.9:0")),
        (FORWARDED, {**TRUSTED, **PUBLIC}, ("https://mt.example.org/mt", "ipv4:192.0.2.9:0")),
        (RFC7239, TRUSTED, ("http://localhost:9464", f"ipv4:{PROXY}:7")),
        (RFC7239, {**TRUSTED, "proxy_headers": "forwarded"}, ("https://localhost", "ipv6:[2001:db8::17]:0")),
        ({**FORWARDED, "x-forwarded-for": "1.1.1.1, 192.0.2.9, 10.1.2.3"}, TRUSTED, (None, "ipv4:192.0.2.9:0")),
        ({**FORWARDED, "x-forwarded-for": "1.1.1.1, unknown, 10.1.2.3"}, TRUSTED, (None, "ipv4:10.1.2.3:0")),
        ({"x-forwarded-proto": "ftp", "x-forwarded-prefix": "//evil"}, TRUSTED, ("http://localhost:9464", None)),
    ],
)
async def test_public_address_and_client(headers: Any, settings: Any, answer: tuple[str | None, str | None]) -> None:
    response = (await ask(headers, **settings)).json()

    assert all(wanted in (None, given) for wanted, given in zip(answer, response.values(), strict=True)), response


async def test_ipv6_proxy_is_trusted() -> None:
    assert (await ask(FORWARDED, peer="fd00::1", **TRUSTED)).json()["url"] == "https://localhost:8443/mt"


@pytest.mark.parametrize(
    ("path", "settings", "headers", "status"),
    [
        ("/mt/v1/models", PUBLIC, {}, 200),
        ("/v1/models", PUBLIC, {}, 200),
        ("/mtv1/models", PUBLIC, {}, 404),
        ("/mt/v1/models", {}, {}, 404),
        ("/mt/v1/models", TRUSTED, {"x-forwarded-prefix": "/mt"}, 200),
        ("/v1/models", PUBLIC, {"host": "mt.example.org"}, 200),
        ("/v1/models", PUBLIC, {"origin": "https://mt.example.org"}, 200),
        ("/v1/models", PUBLIC, {"origin": "https://evil.example"}, 403),
        ("/v1/models", TRUSTED, {"x-forwarded-host": "evil.example"}, 421),
        ("/v1/models", {**TRUSTED, "allowed_hosts": "mt.example"}, {"x-forwarded-host": "mt.example"}, 200),
        ("/v1/models", {**TRUSTED, "allowed_hosts": "mt.example"}, {"host": "evil.example"}, 421),
        ("/v1/models", {}, {"x-forwarded-host": "evil.example"}, 200),
    ],
)
async def test_prefix_and_hosts(path: str, settings: Any, headers: Any, status: int) -> None:
    assert (await ask(headers, path=path, **settings)).status_code == status


@pytest.mark.parametrize(
    ("settings", "host", "is_accepted"),
    [
        ({}, "evil.example", False),
        ({}, "evil.example:9464", False),
        ({}, "localhost.evil.example", False),
        ({}, "localhost:80:evil", False),
        ({}, "[localhost]evil", False),
        ({}, "[::1]evil", False),
        ({}, "localhost:9464", True),
        ({}, "LocalHost.", True),
        ({}, "a.localhost", True),
        ({}, "127.0.0.1", True),
        ({}, "10.0.0.1:80", True),
        ({}, "[::1]:9464", True),
        ({"allowed_hosts": ["translate.example"]}, "Translate.example:80", True),
        ({"allowed_hosts": "a.example, translate.example"}, "evil.example", False),
        ({"host": EVERYWHERE}, "any.example", True),
        ({"host": EVERYWHERE, "allowed_hosts": ["translate.example"]}, "any.example", False),
    ],
)
async def test_dns_rebinding_is_rejected(settings: dict[str, Any], host: str, is_accepted: bool) -> None:
    response = await ask({"host": host}, **settings)

    assert response.status_code == (200 if is_accepted else 421)
    assert is_accepted or response.json()["detail"] == f"Host '{host}' is not in http.allowed_hosts"


@pytest.mark.parametrize("url", ["mt.example", "ftp://mt.example", "https://mt.example?x", "https://user@mt.example"])
def test_invalid_public_url_is_rejected_at_startup(url: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.public_url"):
        load_settings(flags={"http.public_url": url})


def test_invalid_network_is_rejected_at_startup() -> None:
    with pytest.raises(ConfigError, match=r"http\.trusted_proxies"):
        load_settings(flags={"http.trusted_proxies": "envoy"})
