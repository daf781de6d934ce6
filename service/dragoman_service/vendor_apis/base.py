"""Shared parts of the vendor APIs: routes, keys, errors in the vendor's form, and the language of each text."""

import contextlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman_service.datatypes import DetectedLanguage, TextHypothesis, Translation, TranslationResult
from dragoman_service.errors import RequestError
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, Endpoint, HttpContext
from dragoman_service.http_api.json_mapping import to_json
from dragoman_service.http_api.problem_details import Problem, problem
from dragoman_service.http_api.routes import MODEL_SERVICE, TRANSLATION_SERVICE, HttpApi, language_pairs
from dragoman_service.middleware import error_mapping
from dragoman_service.middleware.pipeline import REQUEST_ID_KEY, as_status
from dragoman_service.request import RequestRecord, TranslationRequest
from dragoman_service.translation.language_detection import UNKNOWN_LANGUAGE
from dragoman_service.translation.translator import Translator

HTTP_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

NO_LANGUAGE = DetectedLanguage(language=UNKNOWN_LANGUAGE, confidence=0.0, is_served=False)
"""Result for a text whose language cannot be detected."""

ResponseBody = bytes | Response
"""Body of a JSON response, or a whole response."""

Handler = Callable[[HttpContext, RequestRecord, bytes], Awaitable[ResponseBody]]
"""Returns the response to a request with a body."""


@dataclass(frozen=True, slots=True)
class TranslatedText:
    """Translation of one text."""

    translation: Translation
    model: str  # `name/version`; empty if the text was returned unchanged because it is in the target language
    detected: DetectedLanguage | None  # None if the request named the source language

    @property
    def best(self) -> str:
        """Return the best hypothesis."""
        return self.translation.hypotheses[0].text


async def translate_each(
    translator: Translator, request: TranslationRequest, record: RequestRecord
) -> list[TranslatedText]:
    """Translate the texts of a request, each from its own language if the request names none.

    Texts without letters, and texts in a target language that is not a served source language, are returned unchanged.
    """
    if request.source_language:
        return _texts_of(await translator.translate(request, record))
    languages = await translator.source_languages(request, record)
    counts = Counter(language.language for language in languages if language)
    most_common = DetectedLanguage(language=counts.most_common(1)[0][0], confidence=0.0) if counts else None
    indices_of: dict[str, list[int]] = {}  # texts without letters are under ""
    for index, language in enumerate(languages):
        indices_of.setdefault(language.language if language else "", []).append(index)
    translated: dict[int, TranslatedText] = {}
    for source, indices in indices_of.items():
        texts = tuple(request.texts[index] for index in indices)
        first = languages[indices[0]]
        if first and not first.is_served:
            parts = [TranslatedText(_unchanged(text), "", None) for text in texts]
        else:
            part = replace(request, source_language=source, texts=texts)
            parts = _texts_of(await translator.translate(part, record))
        for index, text in zip(indices, parts, strict=True):
            translated[index] = replace(text, detected=languages[index] or most_common or text.detected)
    return [translated[index] for index in range(len(languages))]


def _unchanged(text: str) -> Translation:
    return Translation(hypotheses=(TextHypothesis(text=text, score=0.0),), sentences=())


def _texts_of(result: TranslationResult) -> list[TranslatedText]:
    model = f"{result.model_name}/{result.model_version}"
    return [TranslatedText(translation, model, result.detected_language) for translation in result.translations]


class VendorApi(HttpApi):
    """Routes of a vendor's API."""

    media_types: ClassVar[tuple[str, ...]] = (JSON_MEDIA_TYPE,)  # of request bodies
    field_names: ClassVar[Mapping[str, str]] = {}  # vendor's name of a field of the service, for errors
    key_place: ClassVar[str]  # where clients send their key, for errors
    key_scheme: ClassVar[str | None] = None  # of the header `authorization`, in addition to `Bearer`
    key_header: ClassVar[str | None] = None
    key_parameter: ClassVar[str | None] = None  # of the query

    @abstractmethod
    def error_response(self, error: Problem, message: str) -> Response:
        """Return an error in the vendor's form."""

    def vendor_error(self, error: Problem, _context: HttpContext) -> Problem:
        """Return an error with the status and the reason that the vendor has for it."""
        return error

    def endpoint(
        self, answer: Callable[[HttpContext], Awaitable[None]], media_types: tuple[str, ...] | None = None
    ) -> Endpoint:
        """Return the application of a route; `media_types` replaces the media types of the API."""

        async def answer_with_key(context: HttpContext) -> None:
            context.key_place = self.key_place
            if self.key_scheme:
                context.accept_scheme(self.key_scheme)
            key = context.header(self.key_header) if self.key_header else ""
            with contextlib.suppress(RequestError):  # an invalid query is reported once the caller is known
                if key := key or (context.query.get(self.key_parameter, "") if self.key_parameter else ""):
                    context.authorize(key)
            await answer(context)

        return Endpoint(answer_with_key, self._settings, media_types or self.media_types)

    def translation(self, respond: Handler, method: str = "Translate") -> Endpoint:
        """Return the application of a route with the limits and the permission of a method of TranslationService."""

        async def answer(context: HttpContext) -> None:
            await self.answer(context, f"/{TRANSLATION_SERVICE}/{method}", partial(respond, context))

        return self.endpoint(answer)

    def reading(self, respond: Handler, method: str = "ListModels", *, is_open: bool = False) -> Endpoint:
        """Return the application of a route that counts as a method of ModelService.

        Requests need no key if the route `is_open`; their bodies are not read.
        """

        async def answer(context: HttpContext) -> None:
            async def checked(record: RequestRecord, body: bytes) -> ResponseBody:
                context.check_headers()
                return await respond(context, record, body)

            body = b"" if is_open else None
            await self.answer(context, f"/{MODEL_SERVICE}/{method}", checked, raw_request=body, is_open=is_open)

        return self.endpoint(answer)

    async def answer(
        self,
        context: HttpContext,
        path: str,
        respond: Callable[[RequestRecord, bytes], Awaitable[ResponseBody]],
        *,
        raw_request: bytes | None = None,
        is_open: bool = False,
    ) -> None:
        """Answer a request as the method of the service with this path; `raw_request` is a body that was read."""
        record = self._pipeline.start(path, context)

        async def responded(body: bytes) -> ResponseBody:
            return await respond(record, body)

        if context.is_read:
            raw_request = raw_request or b""
        outcome = await self._pipeline.answer(
            record, context, responded, as_status, raw_request=raw_request, is_open=is_open
        )
        if isinstance(outcome, error_mapping.RpcError):
            error = problem(outcome, request_id=record.request_id, http_status=context.http_status)
            error = self.vendor_error(error, context)
            response = self.error_response(error, self.renamed(outcome.message))
            response.headers.update(error.headers)
        else:
            response = outcome if isinstance(outcome, Response) else Response(outcome, media_type=JSON_MEDIA_TYPE)
        response.headers[REQUEST_ID_KEY] = record.request_id
        await context.respond(response)

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
        return self._backend.limits.max_text_characters

    async def translate(self, request: TranslationRequest, record: RequestRecord) -> list[TranslatedText]:
        """Translate the texts of a request; see `translate_each`."""
        return await translate_each(self._backend.translator, request, record)

    def language_pairs(self) -> dict[str, set[str]]:
        """Return the target languages of each source language of the models that are ready."""
        return language_pairs(self._backend.models.list_models())

    def renamed(self, message: str) -> str:
        """Return a message that begins with the vendor's name of a field."""
        field, colon, rest = message.partition(": ")
        name, bracket, index = field.partition("[")
        return f"{self.field_names.get(name, name)}{bracket}{index}{colon}{rest}"


def json_error(code: int, content: Mapping[str, Any]) -> Response:
    """Return an error as JSON."""
    return Response(to_json(content), code, media_type=JSON_MEDIA_TYPE)
