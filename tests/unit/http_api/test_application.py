from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.config import load_settings
from dragoman_service.errors import ConfigError
from dragoman_service.http_api.application import protected_app
from dragoman_service.http_api.context import Endpoint, HttpContext
from dragoman_service.http_api.monitoring import monitoring_routes
from dragoman_service.http_api.problem_details import Problem
from dragoman_service.http_api.settings import HttpSettings

SHOP = "https://shop.example"
LISTED = {"allowed_origins": [SHOP]}
OPEN = ("GET", "/healthz")
CALL = ("POST", "/v1/translate")
LIST = ("GET", "/v1/models")


async def _translate(context: HttpContext) -> None:
    await context.respond(PlainTextResponse("Hallo", headers={"x-request-id": "r1"}))


async def ask(
    request: tuple[str, str], headers: Mapping[str, str] | list[tuple[str, str]], **settings: Any
) -> httpx.Response:
    """Send a request to an application with a route of the API and those of monitoring."""
    endpoint = Endpoint(_translate, GrpcSettings())
    routes = [
        Route(CALL[1], endpoint, methods=["POST"]),
        Route(LIST[1], endpoint, methods=["GET"]),
        *monitoring_routes(CollectorRegistry(), lambda: True),
    ]
    app = protected_app(routes, HttpSettings.model_validate(settings))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:9464") as client:
        return await client.request(*request, headers=headers)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:9464", "http://localhost:9464"),
        ("LocalHost:9464", "http://localhost:9464"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost", "https://localhost"),  # a proxy terminates TLS
        ("localhost:443", "https://localhost"),
        ("[::1]:9464", "http://[::1]:9464"),
        ("127.0.0.1:9464", "http://127.0.0.1:9464"),
    ],
)
async def test_own_origin_is_accepted(host: str, origin: str) -> None:
    response = await ask(CALL, {"host": host, "origin": origin, "sec-fetch-site": "same-origin"})

    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


EVIL = {"origin": "https://evil.example"}


@pytest.mark.parametrize(
    ("request_line", "headers"),
    [
        *((CALL, {"origin": origin}) for origin in ("https://evil.example", "null", "", "file://", "http://localhost")),
        *((CALL, {"origin": f"http://localhost:{rest}"}) for rest in ("3000", "9464/", "9464.evil.example")),
        (CALL, {"origin": "http://evil@localhost:9464"}),
        (CALL, {"origin": "http://127.0.0.1:9464"}),
        (CALL, {"origin": "http://localhost:9464 https://evil.example"}),
        (CALL, [("origin", SHOP), ("origin", "null")]),
        *((line, EVIL) for line in (OPEN, LIST, ("OPTIONS", LIST[1]), ("DELETE", "/"))),
    ],
)
async def test_other_origin_is_rejected_on_every_path(request_line: tuple[str, str], headers: Any) -> None:
    response = await ask(request_line, headers, **LISTED)

    assert (response.status_code, response.headers["content-type"]) == (403, "application/problem+json")
    assert "http.allowed_origins" in response.json()["detail"]
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize(
    ("request_line", "status"),
    [(CALL, 403), (LIST, 403), (("POST", "/healthz"), 403), (OPEN, 200), (("HEAD", "/metrics"), 200)],
)
async def test_other_sites_can_link_to_pages_but_not_call_the_api(
    request_line: tuple[str, str], status: int, site: str
) -> None:
    assert (await ask(request_line, {"sec-fetch-site": site})).status_code == status


@pytest.mark.parametrize("headers", [{}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin"}])
@pytest.mark.parametrize("request_line", [CALL, LIST])
async def test_requests_without_origin_are_accepted(request_line: tuple[str, str], headers: dict[str, str]) -> None:
    assert (await ask(request_line, headers)).status_code == 200


@pytest.mark.parametrize("origin", ["moz-extension://2f7a-11", "safari-web-extension://A1"])
async def test_extensions_can_call_only_if_their_scheme_is_allowed(origin: str) -> None:
    allowed = {"allowed_origins": [SHOP, origin.partition("//")[0]]}
    headers = {"origin": origin, "sec-fetch-site": "cross-site"}

    assert (await ask(CALL, headers, **LISTED)).status_code == 403
    assert (await ask(CALL, {**headers, "origin": "chrome-extension://abc"}, **allowed)).status_code == 403
    answer = await ask(CALL, headers, **allowed)
    preflight = await ask(("OPTIONS", CALL[1]), {**headers, **PREFLIGHT}, **allowed)
    for response in (answer, preflight):
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, origin)


async def test_rejections_have_the_form_of_the_api() -> None:
    def error_form(error: Problem, message: str) -> PlainTextResponse:
        return PlainTextResponse(message, error.status)

    routes = [Route("/translate", Endpoint(_translate, GrpcSettings()), methods=["POST"])]
    app = protected_app(routes, HttpSettings(), [(routes, error_form)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:9464") as client:
        answers = [
            await client.request(method, path, headers=headers)
            for method, path, headers in (
                ("POST", "/translate", EVIL),
                ("DELETE", "/translate", EVIL),
                ("POST", "/translate", {"host": "evil.example"}),
                ("POST", "/other", EVIL),
            )
        ]

    assert [response.status_code for response in answers] == [403, 403, 421, 403]
    assert [response.headers["content-type"].partition(";")[0] for response in answers] == [
        *(["text/plain"] * 3),
        "application/problem+json",
    ]


PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-request-timeout",
}


async def test_allowed_origin_can_call_and_read_the_response() -> None:
    headers = {"origin": SHOP, "sec-fetch-site": "cross-site"}
    answer = await ask(CALL, headers, **LISTED)
    preflight = await ask(("OPTIONS", CALL[1]), {**headers, **PREFLIGHT}, **LISTED)

    assert (answer.status_code, preflight.status_code) == (200, 200)
    for response in (answer, preflight):
        assert response.headers["access-control-allow-origin"] == SHOP
        assert "Origin" in response.headers["vary"]
        assert "access-control-allow-credentials" not in response.headers
    assert {"x-request-id", "retry-after"} <= set(answer.headers["access-control-expose-headers"].lower().split(", "))
    assert preflight.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    assert "POST" in preflight.headers["access-control-allow-methods"]


@pytest.mark.parametrize("settings", [{}, LISTED])
async def test_preflight_of_other_origin_is_not_permitted(settings: dict[str, Any]) -> None:
    response = await ask(("OPTIONS", CALL[1]), {**EVIL, **PREFLIGHT}, **settings)

    assert response.status_code in {400, 405}
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    ("given", "origins"),
    [
        (SHOP, (SHOP,)),
        ("https://Shop.Example:443, http://127.0.0.1:80", (SHOP, "http://127.0.0.1")),
        (["http://localhost:3000", "http://[::1]:8080"], ("http://localhost:3000", "http://[::1]:8080")),
        ("chrome-extension://abcdef", ("chrome-extension://abcdef",)),
        ("Moz-Extension:", ("moz-extension:",)),
    ],
)
def test_origins_are_normalized(given: object, origins: tuple[str, ...]) -> None:
    assert load_settings(flags={"http.allowed_origins": given}).http.allowed_origins == origins


@pytest.mark.parametrize(
    "given",
    [
        "*",
        "null",
        "https:",
        "moz-extension://*",
        "shop.example",
        SHOP + "/",
        "https://",
        "https://*.shop.example",
        SHOP + ":99999",
        "https://ü.example",
    ],
)
def test_invalid_origin_is_rejected_at_startup(given: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.allowed_origins.*scheme://host\[:port\]"):
        load_settings(flags={"http.allowed_origins": given})
