"""The ASGI application of an HTTP port."""

from collections.abc import Iterable
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.api.rest.problems import plain_problem


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
