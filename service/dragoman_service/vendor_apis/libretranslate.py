"""LibreTranslate API: `/translate`, `/detect`, `/languages` and the paths that its web page requests.

Parameters come from the query and from a body in JSON, an urlencoded form or a multipart form. Errors are
`{"error": "..."}` with one of the statuses 400, 403, 404, 405, 415, 429, 500 and 503.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman.option_ranges import option_range
from dragoman_service.calls.flow_control import MAX_ANONYMOUS_BODY_BYTES
from dragoman_service.calls.handlers import TranslatedText
from dragoman_service.calls.pipeline import Call
from dragoman_service.calls.policy import DETECT_LANGUAGE, LIST_MODELS, TRANSLATE, CallPolicy
from dragoman_service.datatypes import DetectedLanguage
from dragoman_service.errors import DragomanError, InvalidFieldError, RequestError, UnauthenticatedError
from dragoman_service.file_translation.multipart import MULTIPART_MEDIA_TYPE
from dragoman_service.http_api.bodies import FORM_MEDIA_TYPE, converted
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, Endpoint, HttpContext
from dragoman_service.http_api.json_mapping import to_json
from dragoman_service.http_api.problem_details import Problem
from dragoman_service.request import (
    TextFormat,
    TranslationOptions,
    TranslationRequest,
)
from dragoman_service.security.authentication import peer_name
from dragoman_service.vendor_apis.base import NO_LANGUAGE, VendorApi, json_error
from dragoman_service.vendor_apis.language_names import language_name
from dragoman_service.vendor_apis.parameters import Ignored, Parameters, Text, Texts, body_fields, grouped

_FORMATS = {"text": TextFormat.PLAIN, "html": TextFormat.HTML}

_STATUSES: Mapping[HTTPStatus, HTTPStatus] = {
    HTTPStatus.UNAUTHORIZED: HTTPStatus.FORBIDDEN,
    HTTPStatus.FORBIDDEN: HTTPStatus.FORBIDDEN,
    HTTPStatus.METHOD_NOT_ALLOWED: HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HTTPStatus.TOO_MANY_REQUESTS: HTTPStatus.TOO_MANY_REQUESTS,
}
"""LibreTranslate's statuses instead of those below 500; all others become 400, except 404 for unknown paths."""


_LANGUAGES: Mapping[str, str] = {"pb": "pt-BR", "zt": "zh-Hant"}
"""LibreTranslate's names of languages."""


def _language_tag(language: str) -> str:
    return _LANGUAGES.get(language.lower(), language.replace("_", "-"))


_Language = Annotated[str, AfterValidator(_language_tag)]


class TranslationParameters(Parameters):
    """Parameters that `/translate` and `/translate_file` share."""

    source: _Language
    target: _Language
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(default=0, ge=0, lt=option_range("options.beam_size").maximum)
    api_key: str = ""
    secret: Ignored = None

    def translation_request(self, texts: Sequence[str]) -> TranslationRequest:
        """Return the request of the service."""
        return TranslationRequest(
            texts=tuple(texts),
            source_language="" if self.source == "auto" else self.source,
            target_language=self.target,
            options=TranslationOptions(
                format=_FORMATS[self.format], num_hypotheses=self.alternatives + 1 if self.alternatives else None
            ),
        )


class TextParameters(TranslationParameters):
    """Parameters of `/translate`."""

    q: Texts


class DetectionParameters(Parameters):
    """Parameters of `/detect`."""

    q: Text
    api_key: str = ""
    secret: Ignored = None


class LibreTranslateApi(VendorApi):
    """Routes of LibreTranslate."""

    media_types = (JSON_MEDIA_TYPE, FORM_MEDIA_TYPE, MULTIPART_MEDIA_TYPE)
    key_place = "the parameter `api_key`"
    key_parameter = "api_key"
    field_names: ClassVar[Mapping[str, str]] = {"texts": "q", "source_language": "source", "target_language": "target"}

    file_formats: Sequence[str] = ()
    """Extensions that `/translate_file` accepts, such as `.txt`; empty if it is disabled."""

    def routes(self) -> list[Route]:
        """Return the routes, with rejections for other methods."""
        suggest = self.rejection(HTTPStatus.FORBIDDEN, "suggestions are not accepted by this server")
        spec = self.rejection(HTTPStatus.NOT_FOUND, "not available; the API of this server is at /openapi.json")
        handlers: dict[str, tuple[str, Any]] = {
            "/translate": ("POST", self._with_fields(TRANSLATE, self._translate)),
            "/detect": ("POST", self._with_fields(DETECT_LANGUAGE, self._detect)),
            "/languages": ("GET", self.method(LIST_MODELS.anonymous(), self._list_languages)),
            "/frontend/settings": ("GET", self.method(LIST_MODELS.anonymous(), self._get_settings)),
            "/health": ("GET", _health),
            "/suggest": ("POST", suggest),
            "/spec": ("GET", spec),
        }
        return [
            *(Route(path, handler, methods=[method]) for path, (method, handler) in handlers.items()),
            *self.rejections({path: method for path, (method, _) in handlers.items()}),
        ]

    def error_response(self, error: Problem, message: str) -> Response:
        """Return `{"error": MESSAGE}`."""
        code = error.status if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.BAD_REQUEST
        is_unknown_path = error.status is HTTPStatus.NOT_FOUND and not error.members
        code = HTTPStatus.NOT_FOUND if is_unknown_path else _STATUSES.get(error.status, code)
        return json_error(code, {"error": message})

    async def _translate(self, call: Call, fields: Mapping[str, Any]) -> bytes:
        parameters = TextParameters.parse(fields, max_text_characters=self.max_text_characters)
        translated = await self.handlers.translate_each(parameters.translation_request(parameters.q), call)
        is_list = isinstance(fields["q"], list)
        num_characters = sum(map(len, parameters.q))
        return await converted(lambda: to_json(translations(translated, parameters, is_list=is_list)), num_characters)

    async def _detect(self, call: Call, fields: Mapping[str, Any]) -> bytes:
        parameters = DetectionParameters.parse(fields, max_text_characters=self.max_text_characters)
        (languages,) = await self.handlers.detect_languages([parameters.q], call)
        return to_json([_detected(language) for language in languages])

    def _with_fields(
        self, policy: CallPolicy, respond: Callable[[Call, Mapping[str, Any]], Awaitable[bytes]]
    ) -> Endpoint:
        """Return the application of a route whose body may contain the key.

        Such a body is read before the caller is known, within the limits of unknown callers.
        """

        async def answer(context: HttpContext) -> None:
            failure: DragomanError | None = None
            fields: Mapping[str, Any] | None = None
            body: bytes | None = None
            try:
                query = grouped(context.parameters)
                if not self.is_known(context):
                    body, fields = await self._read_anonymous(context, query)
                    key = fields.get("api_key") or ""
                    if not isinstance(key, str):
                        raise RequestError("api_key", "must be one string")
                    if key:
                        context.authorize(key)
                elif not _has_body(context):
                    body, fields = b"", query
            except DragomanError as error:
                failure, body = error, body or b""

            async def respond_unless_failed(_context: HttpContext, call: Call, raw: bytes) -> bytes:
                if failure:
                    raise failure
                parsed = fields
                if parsed is None:
                    parsed = await converted(lambda: _all_fields(context, raw, query), len(raw))
                return await respond(call, parsed)

            # A failure is reported instead of the missing key.
            applied = policy.anonymous() if failure else policy
            await self.answer(context, applied, respond_unless_failed, raw_request=body)

        return self.endpoint(answer)

    def is_known(self, context: HttpContext) -> bool:
        """Return whether the caller is known without a key from the body."""
        try:
            self.pipeline.access.check_known(context)
        except UnauthenticatedError:
            return bool(context.header("authorization"))  # the key is wrong, also with a key in the body
        return True

    async def _read_anonymous(self, context: HttpContext, query: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
        """Return the body of an unknown caller, and the fields of its request."""
        if not _has_body(context):
            return b"", dict(query)
        limits, host = self.pipeline.bounds, peer_name(context.peer())
        declared = int(context.header("content-length") or MAX_ANONYMOUS_BODY_BYTES)
        if declared > MAX_ANONYMOUS_BODY_BYTES:
            limit = f"at most {MAX_ANONYMOUS_BODY_BYTES} bytes without a key in the query or the header Authorization"
            raise InvalidFieldError("request", f"{declared} bytes", limit)
        context.max_body_bytes = MAX_ANONYMOUS_BODY_BYTES
        with ExitStack() as slots:
            slots.enter_context(limits.anonymous_bytes.held(host, declared))
            body = await limits.anonymous_receiver.receive(context, host)
            async with limits.anonymous_parsing:
                return body, await converted(lambda: _all_fields(context, body, query), len(body))

    async def _list_languages(self, _context: HttpContext, _call: Call, _body: bytes) -> bytes:
        pairs = sorted(self.language_pairs().items())
        return await asyncio.to_thread(
            lambda: to_json(
                [{"code": code, "name": language_name(code), "targets": sorted(targets)} for code, targets in pairs]
            )
        )

    async def _get_settings(self, _context: HttpContext, _call: Call, _body: bytes) -> bytes:
        pairs = self.language_pairs()
        target = next((code for source in sorted(pairs) for code in sorted(pairs[source])), "")
        needs_key = self.pipeline.access.needs_key
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


def _has_body(context: HttpContext) -> bool:
    return bool(context.header("transfer-encoding")) or context.header("content-length") not in {"", "0"}


async def _health(_request: Request) -> Response:
    return Response(to_json({"status": "ok"}), media_type=JSON_MEDIA_TYPE)


def _all_fields(context: HttpContext, body: bytes, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of query and body; a field may be in both with the same value."""
    fields = body_fields(body, context.header("content-type"))
    for name in query.keys() & fields.keys():
        if query[name] != fields[name]:
            raise RequestError(name, "differs between query and body")
    return {**query, **fields}


def translations(
    translated: Sequence[TranslatedText], parameters: TranslationParameters, *, is_list: bool
) -> dict[str, Any]:
    """Return the response of `/translate`: with lists if `q` was a list."""
    response: dict[str, list[Any]] = {"translatedText": [text.best for text in translated]}
    if parameters.alternatives:
        response["alternatives"] = [
            [hypothesis.text for hypothesis in text.translation.hypotheses[1:]] for text in translated
        ]
    if parameters.source == "auto":
        response["detectedLanguage"] = [_detected(text.detected or NO_LANGUAGE) for text in translated]
    return response if is_list else {name: values[0] for name, values in response.items()}


def _detected(language: DetectedLanguage) -> dict[str, Any]:
    return {"confidence": round(100 * language.confidence), "language": language.language}
