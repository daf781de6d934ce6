"""Shared parts of the vendor APIs: routes, keys, errors in the vendor's form, and the language of each text."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman_service.datatypes import DetectedLanguage
from dragoman_service.errors import RequestError
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, Endpoint, HttpContext
from dragoman_service.http_api.json_mapping import to_json
from dragoman_service.http_api.problem_details import Problem
from dragoman_service.http_api.routes import HttpApi, language_pairs
from dragoman_service.translation.language_detection import UNKNOWN_LANGUAGE

HTTP_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

NO_LANGUAGE = DetectedLanguage(language=UNKNOWN_LANGUAGE, confidence=0.0, is_served=False)
"""Result for a text whose language cannot be detected."""


class VendorApi(HttpApi):
    """Routes of a vendor's API."""

    field_names: ClassVar[Mapping[str, str]] = {}  # vendor's name of a field of the service, for errors
    key_place: ClassVar[str]  # where clients send their key, for errors
    key_scheme: ClassVar[str | None] = None  # of the header `authorization`, in addition to `Bearer`
    key_header: ClassVar[str | None] = None
    key_parameter: ClassVar[str | None] = None  # of the query

    def adapted_error(self, error: Problem, _context: HttpContext) -> tuple[Problem, str]:
        """Return an error and its message with the vendor's name of the field at the beginning."""
        field, colon, rest = str(error.members["detail"]).partition(": ")
        return error, f"{self.renamed(field)}{colon}{rest}"

    def endpoint(
        self, answer: Callable[[HttpContext], Awaitable[None]], media_types: tuple[str, ...] | None = None
    ) -> Endpoint:
        """Return the application of a route whose requests have their key where the vendor's clients send it."""

        async def answer_with_key(context: HttpContext) -> None:
            context.key_place = self.key_place
            if self.key_scheme:
                context.accept_scheme(self.key_scheme)
            key = context.header(self.key_header) if self.key_header else ""
            with contextlib.suppress(RequestError):  # an invalid query is reported once the caller is known
                if key := key or (context.query.get(self.key_parameter, "") if self.key_parameter else ""):
                    context.authorize(key)
            await answer(context)

        return super().endpoint(answer_with_key, media_types)

    def rejection(
        self, code: HTTPStatus, message: str, *, allowed_methods: str = ""
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a route handler that rejects all requests in the vendor's form."""

        async def reject(_request: Request) -> Response:
            response = self.error_response(Problem(status=code, members={}, headers={}), message)
            if allowed_methods:
                response.headers["allow"] = allowed_methods
            return response

        return reject

    def rejections(self, paths: Mapping[str, str], make_route: type[Route] = Route) -> list[Route]:
        """Return routes that reject methods of paths, except the given one, and all paths below them."""
        routes = []
        for path, method in paths.items():
            message = f"method not allowed; {path} accepts {method}"
            reject = self.rejection(HTTPStatus.METHOD_NOT_ALLOWED, message, allowed_methods=method)
            routes.append(make_route(path, reject, methods=[each for each in HTTP_METHODS if each != method]))
            below = self.rejection(HTTPStatus.NOT_FOUND, f"path not found below {path}")
            routes.append(make_route(f"{path}/{{rest:path}}", below, methods=HTTP_METHODS))
        return routes

    @property
    def max_text_characters(self) -> int:
        """Maximum length of a text in characters."""
        return self.handlers.limits.max_text_characters

    def language_pairs(self) -> dict[str, set[str]]:
        """Return the target languages of each source language of the models that are ready."""
        return language_pairs(self.handlers.models.list_models())

    def renamed(self, field: str) -> str:
        """Return the vendor's name of a field, such as `texts[3]`."""
        name, bracket, index = field.partition("[")
        return f"{self.field_names.get(name, name)}{bracket}{index}"


def json_error(code: int, content: Mapping[str, Any]) -> Response:
    """Return an error as JSON."""
    return Response(to_json(content), code, media_type=JSON_MEDIA_TYPE)
