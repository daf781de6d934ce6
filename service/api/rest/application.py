"""The ASGI application of an HTTP port."""

import ipaddress
from collections.abc import Iterable
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.rest.problems import plain_problem
from service.api.settings import HttpSettings, is_loopback


class HostCheck:
    """Refuses requests to a name that is not the server's, as a web page sends them whose name leads to this machine.

    Such a page (DNS rebinding) would have the rights of programs on this machine. An address cannot be rebound.
    """

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        """Check where only this machine connects, or the settings have names; else pass everything on."""
        self._app = app
        self._is_on = is_loopback(settings.host) or bool(settings.allowed_hosts)
        self._names = {name.lower() for name in (settings.host, *settings.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        names = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        app: ASGIApp = self._app
        if self._is_on and not all(map(self._is_allowed, names)):
            detail = "the header Host has a name that is not among http.allowed_hosts"
            app = plain_problem(HTTPStatus.MISDIRECTED_REQUEST, detail).response()
        await app(scope, receive, send)

    def _is_allowed(self, host: str) -> bool:
        bracketed, _, _ = host.partition("]")
        name = bracketed[1:] if host.startswith("[") else host.partition(":")[0].lower().rstrip(".")
        return name in self._names or name.endswith(".localhost") or is_loopback(name) or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def make_app(routes: Iterable[Route]) -> Starlette:
    """Answer these routes, and 404 or 405 to everything else."""
    app = Starlette(routes=list(routes), exception_handlers={HTTPException: _refused})
    app.router.redirect_slashes = False
    return app


async def _refused(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise TypeError("a handler of another error") from error
    headers = dict(error.headers or {})
    if "Allow" in headers:
        headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
    return plain_problem(HTTPStatus(error.status_code), error.detail, headers=headers).response()
