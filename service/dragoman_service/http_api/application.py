"""The ASGI application of an HTTP port."""

import ipaddress
from collections.abc import Collection, Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman_service.http_api.context import Endpoint
from dragoman_service.http_api.problem_details import plain_problem
from dragoman_service.http_api.settings import HttpSettings, normalized_origin
from dragoman_service.observability.usage import WARNINGS_KEY
from dragoman_service.security.settings import is_loopback

_EXPOSED_HEADERS = (
    "x-request-id",
    "x-requestid",
    "x-metered-usage",
    WARNINGS_KEY,
    "retry-after",
    "www-authenticate",
)
_FOREIGN_SITES = {"cross-site", "same-site"}


def protected_app(routes: Sequence[Route], settings: HttpSettings) -> ASGIApp:
    """Return an application with these routes that rejects requests of web pages of other sites."""
    app: ASGIApp = make_app(routes)
    if settings.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            allow_private_network=True,  # allows pages on the internet to call a server on loopback
            expose_headers=_EXPOSED_HEADERS,
        )
    pages = {route.path for route in routes if not isinstance(route.endpoint, Endpoint)}
    return BrowserCheck(app, settings, pages)


class BrowserCheck:
    """Rejects requests that web pages of other sites send through a browser.

    A `Host` that is not a name of the server is the sign of DNS rebinding: a web page whose name resolves to this
    machine would have the rights of local programs. Addresses cannot be rebound. Browsers send `Origin` with each
    request of a page to another site, except with some GET requests, and `Sec-Fetch-Site` with each request. Other
    clients send neither and are not affected.
    """

    def __init__(self, app: ASGIApp, settings: HttpSettings, pages: Collection[str]) -> None:
        """Check requests to `app`; other sites may link to `pages`, the paths that are not part of the API.

        `Host` is checked if the server listens on loopback or names are configured.
        """
        self._app = app
        self._checks_host = is_loopback(settings.host) or bool(settings.allowed_hosts)
        self._names = {name.lower() for name in (settings.host, *settings.allowed_hosts)}
        self._allowed_origins = frozenset(settings.allowed_origins)
        self._pages = frozenset(pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = Headers(scope=scope)
        app: ASGIApp = self._app
        if self._checks_host and not all(map(self._is_own_host, headers.getlist("host"))):
            names = ascii(", ".join(headers.getlist("host"))[:256])
            detail = f"Host {names} is not in http.allowed_hosts"
            app = plain_problem(HTTPStatus.MISDIRECTED_REQUEST, detail).response()
        elif reason := self._foreign_origin(scope, headers):
            app = plain_problem(HTTPStatus.FORBIDDEN, reason).response()
        await app(scope, receive, send)

    def _is_own_host(self, host: str) -> bool:
        bracketed, _, _ = host.partition("]")
        name = bracketed[1:] if host.startswith("[") else host.partition(":")[0].lower().rstrip(".")
        return name in self._names or name.endswith(".localhost") or is_loopback(name) or _is_address(name)

    def _foreign_origin(self, scope: Scope, headers: Headers) -> str | None:
        """Return why a request is from another site that is not allowed; None otherwise."""
        origins = headers.getlist("origin")
        if origins:
            # A preflight has no effect, and its response permits only listed origins.
            is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
            hosts = headers.getlist("host")
            if is_preflight or all(self._is_allowed(origin, hosts) for origin in origins):
                return None
            origin = repr(", ".join(origins)[:256])
            return f"Origin {origin} is not the origin of this server and is not in http.allowed_origins"
        site = headers.get("sec-fetch-site", "")
        is_page = scope["method"] in {"GET", "HEAD"} and scope["path"] in self._pages
        if site not in _FOREIGN_SITES or is_page:
            return None
        return f"Sec-Fetch-Site is {site!r}: web pages of other sites cannot call this server"

    def _is_allowed(self, origin: str, hosts: list[str]) -> bool:
        normalized = normalized_origin(origin)
        if normalized is None:
            return False
        # Behind a proxy that terminates TLS, the page has https and the server http, so only host and port must match.
        scheme, _, _ = normalized.partition("://")
        own = {normalized_origin(f"{scheme}://{host}") for host in hosts}
        return normalized in own or normalized in self._allowed_origins


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def make_app(routes: Sequence[Route]) -> Starlette:
    """Return an application that answers other paths and methods with 404 and 405."""
    app = Starlette(routes=list(routes), exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False
    return app


async def _http_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise TypeError("handler of HTTPException") from error
    headers = dict(error.headers or {})
    if "Allow" in headers:
        headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
    return plain_problem(HTTPStatus(error.status_code), error.detail, headers=headers).response()
