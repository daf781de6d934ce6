"""The ASGI application of an HTTP port."""

import ipaddress
import re
from collections.abc import Callable, Collection, Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman_service.http_api.context import Endpoint
from dragoman_service.http_api.problem_details import Problem, plain_problem
from dragoman_service.http_api.public_address import PublicAddress
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
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:]+))(?::[0-9]*)?")  # address in brackets or name, and port
_FOREIGN_SITES = {"cross-site", "same-site"}


ErrorForm = Callable[[Problem, str], Response]  # returns an error with a message in the form of an API


def protected_app(
    routes: Sequence[Route], settings: HttpSettings, error_forms: Sequence[tuple[Sequence[Route], ErrorForm]] = ()
) -> ASGIApp:
    """Return an application with these routes that rejects requests of web pages of other sites.

    `error_forms` has the form of such a rejection for routes of vendor APIs, instead of problem details.
    """
    app: ASGIApp = make_app(routes)
    if settings.allowed_origins:
        schemes = "|".join(origin.removesuffix(":") for origin in settings.allowed_origins if origin.endswith(":"))
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_origin_regex=f"({schemes})://[A-Za-z0-9-]+" if schemes else None,
            allow_methods=["*"],
            allow_headers=["*"],
            allow_private_network=True,  # allows pages on the internet to call a server on loopback
            expose_headers=_EXPOSED_HEADERS,
        )
    pages = {route.path for route in routes if not isinstance(route.endpoint, Endpoint)}
    return PublicAddress(BrowserCheck(app, settings, pages, error_forms), settings)


class BrowserCheck:
    """Rejects requests that web pages of other sites send through a browser.

    A `Host` that is not a name of the server is the sign of DNS rebinding: a web page whose name resolves to this
    machine would have the rights of local programs. Addresses cannot be rebound. Browsers send `Origin` with each
    request of a page to another site, except with some GET requests, and `Sec-Fetch-Site` with each request. Other
    clients send neither and are not affected.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: HttpSettings,
        pages: Collection[str],
        error_forms: Sequence[tuple[Sequence[Route], ErrorForm]],
    ) -> None:
        """Check requests to `app`; other sites may link to `pages`, the paths that are not part of the API.

        `Host` is checked if the server listens on loopback or names are configured.
        """
        self._app = app
        self._checks_host = is_loopback(settings.host) or bool(settings.allowed_hosts)
        self._public_origin = normalized_origin(origin_of(settings.public_url))
        public_host = self._public_origin.partition("://")[2] if self._public_origin else settings.host
        self._names = {name.lower() for name in (settings.host, *settings.allowed_hosts, _name_of(public_host))}
        self._error_forms = error_forms
        self._allowed_origins = frozenset(settings.allowed_origins)
        self._pages = frozenset(pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = Headers(scope=scope)
        app: ASGIApp = self._app
        forwarded = scope.get("state", {}).get("forwarded_host")
        hosts = [*headers.getlist("host"), *([forwarded] if forwarded else [])]
        if self._checks_host and not all(map(self._is_own_host, hosts)):
            names = ascii(", ".join(hosts)[:256])
            app = self._rejection(scope, HTTPStatus.MISDIRECTED_REQUEST, f"Host {names} is not in http.allowed_hosts")
        elif reason := self._foreign_origin(scope, headers, hosts):
            app = self._rejection(scope, HTTPStatus.FORBIDDEN, reason)
        await app(scope, receive, send)

    def _rejection(self, scope: Scope, status: HTTPStatus, detail: str) -> Response:
        error = plain_problem(status, detail)
        for routes, error_form in self._error_forms:
            if any(route.matches(scope)[0] is not Match.NONE for route in routes):
                return error_form(error, detail)
        return error.response()

    def _is_own_host(self, host: str) -> bool:
        name = _name_of(host)
        is_known = name in self._names or name.endswith(".localhost")
        return bool(name) and (is_known or is_loopback(name) or _is_address(name))

    def _foreign_origin(self, scope: Scope, headers: Headers, hosts: list[str]) -> str | None:
        """Return why a request is from another site that is not allowed; None otherwise."""
        origins = headers.getlist("origin")
        if origins:
            # A preflight has no effect, and its response permits only listed origins.
            is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
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
        return (
            normalized in own
            or normalized == self._public_origin
            or normalized in self._allowed_origins
            or f"{scheme}:" in self._allowed_origins
        )


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL without user name."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.partition("/")[0]


def _name_of(host: str) -> str:
    """Return the name or address of a host that may have a port; empty if there is anything else."""
    match = _HOST.fullmatch(host)
    return (match[1] or match[2].lower().rstrip(".")) if match else ""


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
