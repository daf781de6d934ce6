"""The playground: a web page for trying translations with the API of the same server."""

from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FILES = Path(__file__).with_name("page")

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
"""No content of other sites, no scripts other than the served one, no embedding in other pages."""

_MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def playground_routes() -> list[Route]:
    """Return the routes of `/playground` and its files, which are read once."""
    return [
        Route(
            "/playground" if file.name == "index.html" else f"/playground/{file.name}",
            partial(_answer, file.read_bytes(), _MEDIA_TYPES[file.suffix]),
            methods=["GET"],
        )
        for file in sorted(_FILES.iterdir())
    ]


async def _answer(content: bytes, media_type: str, _request: Request) -> Response:
    return Response(content, media_type=media_type, headers=_HEADERS)
