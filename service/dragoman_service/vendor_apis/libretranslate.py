"""LibreTranslate's API for its clients: `/translate`, `/detect`, `/languages` and what its web page asks for.

Parameters come from the query and from a body in JSON, an urlencoded form or a multipart form. Errors have
LibreTranslate's form, `{"error": "..."}`, and one of the statuses 400, 403, 404, 405, 429, 500 and 503.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import DragomanError, InvalidFieldError, UnauthenticatedError
from dragoman_service.file_translation.multipart import MULTIPART_MEDIA_TYPE
from dragoman_service.http_api.bodies import FORM_MEDIA_TYPE, converted
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, HttpContext
from dragoman_service.http_api.json_mapping import to_json
from dragoman_service.http_api.problem_details import Problem
from dragoman_service.middleware.flow_control import MAX_OPEN_BODY_BYTES
from dragoman_service.request import MAX_BEAM_SIZE, RequestRecord
from dragoman_service.security.api_keys import peer_name
from dragoman_service.vendor_apis.base import (
    Translated,
    VendorApi,
    check_known,
    check_texts,
    fields_of,
    given,
    json_error,
    merged,
)
from dragoman_service.vendor_apis.language_names import language_name

_FORMATS: Mapping[object, pb.TextFormat] = {"text": pb.TEXT_FORMAT_PLAIN, "html": pb.TEXT_FORMAT_HTML}
_FIELDS = ("q", "source", "target", "format", "alternatives", "api_key")

_STATUSES: Mapping[HTTPStatus, HTTPStatus] = {
    HTTPStatus.UNAUTHORIZED: HTTPStatus.FORBIDDEN,
    HTTPStatus.FORBIDDEN: HTTPStatus.FORBIDDEN,
    HTTPStatus.METHOD_NOT_ALLOWED: HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.TOO_MANY_REQUESTS: HTTPStatus.TOO_MANY_REQUESTS,
}
"""What LibreTranslate sends in place of statuses below 500; 400 for all others, but 404 for unknown paths."""

_PATHS: Mapping[str, Sequence[str]] = {
    "/translate": ("POST",),
    "/detect": ("POST",),
    "/languages": ("GET",),
    "/suggest": ("POST",),
    "/health": ("GET",),
    "/frontend/settings": ("GET",),
    "/spec": ("GET",),
}
"""The methods of each path."""


class LibreTranslateApi(VendorApi):
    """Answers the routes of LibreTranslate."""

    media_types = (JSON_MEDIA_TYPE, FORM_MEDIA_TYPE, MULTIPART_MEDIA_TYPE)
    key_place = "the parameter `api_key`"
    field_names: ClassVar[Mapping[str, str]] = {"texts": "q", "source_language": "source", "target_language": "target"}

    file_formats: Sequence[str] = ()
    """Extensions of the files that `/translate_file` takes, such as `.txt`; empty if it is off."""

    def routes(self) -> list[Route]:
        """Return what to add to the application."""
        suggest = self.refusal(HTTPStatus.FORBIDDEN, "this server takes no suggestions")
        spec = self.refusal(HTTPStatus.NOT_FOUND, "this server describes its own API at /openapi.json")
        return [
            Route("/translate", self.endpoint(self._translate), methods=["POST"]),
            Route("/detect", self.endpoint(self._detect), methods=["POST"]),
            Route("/languages", self.endpoint(self._list_languages), methods=["GET"]),
            Route("/frontend/settings", self.endpoint(self._describe_settings), methods=["GET"]),
            Route("/health", _answer_health, methods=["GET"]),
            Route("/suggest", suggest, methods=["POST"]),
            Route("/spec", spec, methods=["GET"]),
            *self.refusals(_PATHS),
        ]

    def failed(self, found: Problem, message: str) -> Response:
        """Return `{"error": MESSAGE}`."""
        code = found.status if found.status >= HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.BAD_REQUEST
        is_unknown_path = found.status is HTTPStatus.NOT_FOUND and not found.members
        code = HTTPStatus.NOT_FOUND if is_unknown_path else _STATUSES.get(found.status, code)
        return json_error(code, {"error": message})

    async def _translate(self, context: HttpContext) -> None:
        async def respond(record: RequestRecord, fields: dict[str, Any]) -> bytes:
            request = translate_request(fields, max_characters=self.max_text_characters)
            translated = await self.translated(request, record)
            return await converted(lambda: to_json(answer(translated, fields)), request.ByteSize())

        await self._answer_fields(context, "Translate", respond)

    async def _detect(self, context: HttpContext) -> None:
        async def respond(record: RequestRecord, fields: dict[str, Any]) -> bytes:
            check_known(fields, ("q", "api_key"))
            texts = check_texts("q", [fields.get("q")], max_characters=self.max_text_characters)
            (languages,) = await self.detected(texts, record)
            return to_json([_detected(one) for one in languages])

        await self._answer_fields(context, "DetectLanguage", respond)

    async def _answer_fields(
        self, context: HttpContext, method: str, respond: Callable[[RequestRecord, dict[str, Any]], Awaitable[bytes]]
    ) -> None:
        """Answer a request whose key may be in its body, which is then read before the caller is known."""
        failure: DragomanError | None = None
        fields: dict[str, Any] = {}
        body: bytes | None = None
        try:
            query = merged(context.parameters, {"q"})
            if key := query.get("api_key"):
                context.authorize(key)
            if not self.is_known(context):
                body, fields = await self._read_open(context, query)
                if key := fields.get("api_key"):
                    context.authorize(_text_of(key))
            elif not has_body(context):
                body, fields = b"", query
        except DragomanError as error:
            failure, body = error, body or b""
        is_parsed = body is not None

        async def respond_unless_failed(record: RequestRecord, read: bytes) -> bytes:
            if failure:
                raise failure
            parsed = fields if is_parsed else await converted(lambda: _fields(context, read, query), len(read))
            return await respond(record, parsed)

        is_open = failure is not None  # the error says more than that there is no key
        await self.answer_translation(context, respond_unless_failed, method=method, raw_request=body, is_open=is_open)

    def is_known(self, context: HttpContext) -> bool:
        """Return whether the caller is known without the body."""
        try:
            self._pipeline.access.check_known(context)
        except UnauthenticatedError:
            return bool(context.header("authorization"))  # and the key is wrong, whatever the body has
        return True

    async def _read_open(self, context: HttpContext, query: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
        """Return the body of a caller who is not known yet, and the fields of the request."""
        if not has_body(context):
            return b"", dict(query)
        bounds, host = self._pipeline.bounds, peer_name(context.peer())
        declared = int(context.header("content-length") or MAX_OPEN_BODY_BYTES)
        if declared > MAX_OPEN_BODY_BYTES:
            limit = f"at most {MAX_OPEN_BODY_BYTES} bytes, unless the query or the header Authorization has the key"
            raise InvalidFieldError("request", f"{declared} bytes", limit)
        context.max_body_bytes = MAX_OPEN_BODY_BYTES
        with ExitStack() as places:
            places.enter_context(bounds.open_bytes.taken(host, declared))
            body = await bounds.open_receiver.receive(context, host)
            async with bounds.open_parsing:
                return body, await converted(lambda: _fields(context, body, query), len(body))

    async def _list_languages(self, context: HttpContext) -> None:
        async def respond(_record: RequestRecord) -> bytes:
            pairs = self.languages()

            def listed() -> bytes:
                return to_json(
                    [
                        {"code": code, "name": language_name(code), "targets": sorted(pairs[code])}
                        for code in sorted(pairs)
                    ]
                )

            return await asyncio.to_thread(listed)

        await self.answer_open(context, "ListModels", respond)

    async def _describe_settings(self, context: HttpContext) -> None:
        async def respond(_record: RequestRecord) -> bytes:
            pairs = self.languages()
            target = next((code for source in sorted(pairs) for code in sorted(pairs[source])), "")
            needs_key = self._pipeline.access.needs_key
            settings = {
                "charLimit": self.max_text_characters,
                "frontendTimeout": 500,
                "apiKeys": needs_key,
                "keyRequired": needs_key,
                "suggestions": False,
                "filesTranslation": bool(self.file_formats),
                "supportedFilesFormat": list(self.file_formats),
                "language": {
                    "source": {"code": "auto", "name": "Auto Detect"},
                    "target": {"code": target, "name": await asyncio.to_thread(language_name, target)},
                },
            }
            return to_json(settings)

        await self.answer_open(context, "ListModels", respond)


def has_body(context: HttpContext) -> bool:
    """Return whether a request has a body."""
    return bool(context.header("transfer-encoding")) or context.header("content-length") not in {"", "0"}


async def _answer_health(_request: Request) -> Response:
    return Response(to_json({"status": "ok"}), media_type=JSON_MEDIA_TYPE)


def _fields(context: HttpContext, body: bytes, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of query and body; a field may be in both only with the same value."""
    fields = fields_of(body, context.header("content-type"), repeated={"q"})
    for name in query.keys() & fields.keys():
        if query[name] != fields[name]:
            raise InvalidFieldError(name, "of two values, in query and body", "given once")
    return {**query, **fields}


def _text_of(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidFieldError("api_key", "not a text", "an API key")
    return key


def translate_request(fields: Mapping[str, Any], *, max_characters: int) -> pb.TranslateRequest:
    """Return the request of the contract; InvalidFieldError names the field of LibreTranslate with a wrong value."""
    query = fields.get("q")
    texts = check_texts("q", query if isinstance(query, list) else [query], max_characters=max_characters)
    check_known(fields, _FIELDS)
    source, target = fields.get("source"), fields.get("target")
    for name, language in (("source", source), ("target", target)):
        if not isinstance(language, str):
            raise InvalidFieldError(name, "absent or no text", "a language, such as `en`")
    source = "" if source == "auto" else source
    text_format = given(fields, "format", "text")
    if not isinstance(text_format, str) or text_format not in _FORMATS:
        raise InvalidFieldError("format", "something else", "text or html")
    options = pb.DecodingOptions(format=_FORMATS[text_format])
    if num_alternatives := _num_alternatives(fields):
        options.num_hypotheses = num_alternatives + 1
    return pb.TranslateRequest(texts=texts, source_language=source, target_language=target, options=options)


def answer(translated: Sequence[Translated], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what LibreTranslate answers: lists if it was asked with a list."""
    is_list = isinstance(fields["q"], list)
    answered: dict[str, list[Any]] = {"translatedText": [one.text for one in translated]}
    if _num_alternatives(fields):
        answered["alternatives"] = [[each.text for each in one.translation.hypotheses[1:]] for one in translated]
    if fields["source"] == "auto":
        answered["detectedLanguage"] = [_detected(one.detected or pb.DetectedLanguage()) for one in translated]
    return answered if is_list else {name: values[0] for name, values in answered.items()}


def _detected(language: pb.DetectedLanguage) -> dict[str, Any]:
    """Return a language with its confidence in percent."""
    return {"confidence": round(100 * language.confidence, 1), "language": language.language}


def _num_alternatives(fields: Mapping[str, Any]) -> int:
    value = given(fields, "alternatives", 0)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 4:  # as forms have it
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_BEAM_SIZE:
        raise InvalidFieldError("alternatives", "something else", f"an integer, 0 to {MAX_BEAM_SIZE - 1}")
    return value
