"""The index at `/`: version, language pairs, and links to the pages of the port."""

from collections.abc import Mapping
from html import escape
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman_service.http_api.context import JSON_MEDIA_TYPE
from dragoman_service.http_api.json_mapping import to_json
from dragoman_service.http_api.routes import language_pairs
from dragoman_service.models.repository import ModelRepository

_LINKS: Mapping[str, str] = {
    "playground": "/playground",
    "openapi": "/openapi.json",
    "models": "/v1/models",
    "health": "/healthz",
    "readiness": "/readyz",
    "metrics": "/metrics",
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "vary": "Accept",
}


def with_index(routes: list[Route], models: ModelRepository) -> list[Route]:
    """Return the routes of a port and a route of `/` with links to them."""
    paths = {route.path for route in routes}
    links = {name: path for name, path in _LINKS.items() if path in paths}

    async def answer(request: Request) -> Response:
        public_url: str = request.state.public_url
        content = {
            "name": "dragoman",
            "version": version("dragoman"),
            "languages": {
                source: sorted(targets) for source, targets in sorted(language_pairs(models.list_models()).items())
            },
            "links": {name: f"{public_url}{path}" for name, path in links.items()},
        }
        if "text/html" in request.headers.get("accept", ""):
            return Response(_page(content), media_type="text/html", headers=_HEADERS)
        return Response(to_json(content), media_type=JSON_MEDIA_TYPE, headers=_HEADERS)

    return [Route("/", answer, methods=["GET"]), *routes]


def _page(content: Mapping[str, Any]) -> str:
    pairs = (
        f"<li>{escape(source)} to {escape(', '.join(targets))}" for source, targets in content["languages"].items()
    )
    links = (f'<li><a href="{escape(url)}">{escape(name)}</a>' for name, url in content["links"].items())
    return (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Dragoman</title>'
        f"<h1>Dragoman {escape(content['version'])}</h1><h2>Languages</h2><ul>{''.join(pairs)}</ul>"
        f"<h2>Pages</h2><ul>{''.join(links)}</ul></html>"
    )
