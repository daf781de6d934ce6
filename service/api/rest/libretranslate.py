"""LibreTranslate's API over the same calls, for its clients: `/translate`, `/languages`, `/detect`.

What the server cannot do (detect a language) and fields that it does not know are refused with the kind of error that
LibreTranslate has: `{"error": "..."}` and one of the statuses 400, 403, 429, 500 and 503.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from dragoman.v1 import translation_pb2 as pb
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.api import status
from service.api.callers import peer_name
from service.api.calls import REQUEST_ID_KEY, Call
from service.api.pipeline import as_status
from service.api.rest.context import JSON_MEDIA_TYPE, Endpoint, HttpContext
from service.api.rest.json_mapping import json_object, to_json
from service.api.rest.problems import problem
from service.api.rest.translation import MODEL_SERVICE, TRANSLATION_SERVICE, HttpApi, language_pairs
from service.api.servicer import ended_after
from service.errors import DragomanError, InvalidFieldError
from service.translate.options import MAX_BEAM_SIZE, MAX_TEXTS

_FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
_DEFAULT_BEAM_SIZE = 4
_FORMATS: Mapping[object, pb.TextFormat] = {"text": pb.TEXT_FORMAT_PLAIN, "html": pb.TEXT_FORMAT_HTML}
_FIELDS = ("q", "source", "target", "format", "alternatives", "api_key")
_NO_DETECTION = "this server does not detect languages: name the language in `source`"

_STATUSES: Mapping[HTTPStatus, HTTPStatus] = {
    HTTPStatus.UNAUTHORIZED: HTTPStatus.FORBIDDEN,
    HTTPStatus.FORBIDDEN: HTTPStatus.FORBIDDEN,
    HTTPStatus.TOO_MANY_REQUESTS: HTTPStatus.TOO_MANY_REQUESTS,
}
"""What LibreTranslate sends in place of statuses below 500; 400 for all others."""


class LibreTranslateApi(HttpApi):
    """Answers the routes of LibreTranslate."""

    def routes(self) -> list[Route]:
        """Return what to add to the application."""
        media_types = (JSON_MEDIA_TYPE, _FORM_MEDIA_TYPE)
        return [
            Route("/translate", Endpoint(self._translate, self._settings, media_types), methods=["POST"]),
            Route("/languages", Endpoint(self._list_languages, self._settings), methods=["GET"]),
            Route("/detect", _refuse_detection, methods=["POST"]),
        ]

    async def _translate(self, context: HttpContext) -> None:
        """Answer a request whose key is in its body: it is read before the caller is known, as probes are."""
        failure: DragomanError | None = None
        fields: dict[str, Any] = {}
        raw_request = b""
        try:
            raw_request = await self._pipeline.bounds.open_receiver.receive(context, peer_name(context.peer()))
            fields = _form(raw_request) if context.media_type == _FORM_MEDIA_TYPE else json_object(raw_request)
            if key := fields.get("api_key"):
                context.authorize(str(key))
        except DragomanError as error:
            failure = error
        call = self._pipeline.start(f"/{TRANSLATION_SERVICE}/Translate", context)

        async def respond(_raw_request: bytes) -> bytes:
            if failure:
                raise failure
            async with ended_after(self._settings.allowed_s(call.time_remaining())):
                return to_json(answer(await self._translation.Translate(translate_request(fields), call), fields))

        await _send(await self._pipeline.answer(call, respond, as_status, raw_request=raw_request), call, context)

    async def _list_languages(self, context: HttpContext) -> None:
        call = self._pipeline.start(f"/{MODEL_SERVICE}/ListModels", context)

        async def respond(_no_body: bytes) -> bytes:
            context.check_headers()
            pairs = language_pairs(await self._models.ListModels(pb.ListModelsRequest(), call))
            return to_json([{"code": code, "name": code, "targets": sorted(pairs[code])} for code in sorted(pairs)])

        await _send(await self._pipeline.answer(call, respond, as_status, raw_request=b""), call, context)


def translate_request(fields: Mapping[str, Any]) -> pb.TranslateRequest:
    """Return the request of the contract; InvalidFieldError names the field of LibreTranslate that cannot be."""
    for name in fields:
        if name not in _FIELDS:
            raise InvalidFieldError("request", "of a field that is unknown", f"one of {', '.join(_FIELDS)}")
    query = fields.get("q")
    texts: list[Any] = query if isinstance(query, list) else [query]
    if not all(isinstance(text, str) for text in texts) or not 1 <= len(texts) <= MAX_TEXTS:
        raise InvalidFieldError("q", "of another type or length", f"a text, or a list of 1 to {MAX_TEXTS} texts")
    source, target = fields.get("source"), fields.get("target")
    if source == "auto":
        raise InvalidFieldError("source", "'auto'", f"a language; {_NO_DETECTION}")
    for name, language in (("source", source), ("target", target)):
        if not isinstance(language, str):
            raise InvalidFieldError(name, "absent or no text", "a language, such as `en`")
    text_format = _given(fields, "format", "text")
    if not isinstance(text_format, str) or text_format not in _FORMATS:
        raise InvalidFieldError("format", "something else", "text or html")
    num_hypotheses = _num_alternatives(fields) + 1
    options = pb.DecodingOptions(format=_FORMATS[text_format])
    if num_hypotheses > 1:
        options.num_hypotheses = num_hypotheses
        options.beam_size = max(num_hypotheses, _DEFAULT_BEAM_SIZE)
    try:
        return pb.TranslateRequest(texts=texts, source_language=source, target_language=target, options=options)
    except ValueError:
        raise InvalidFieldError("q", "a text with a lone surrogate", "Unicode text") from None


def answer(response: pb.TranslateResponse, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what LibreTranslate answers: lists if it was asked with a list."""
    texts = [[hypothesis.text for hypothesis in one.hypotheses] for one in response.translations]
    best, others = [each[0] for each in texts], [each[1:] for each in texts]
    is_list = isinstance(fields["q"], list)
    answered: dict[str, Any] = {"translatedText": best if is_list else best[0]}
    if _num_alternatives(fields):
        answered["alternatives"] = others if is_list else others[0]
    return answered


def _num_alternatives(fields: Mapping[str, Any]) -> int:
    given = _given(fields, "alternatives", 0)
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 4:  # as forms have it
        given = int(given)
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given < MAX_BEAM_SIZE:
        raise InvalidFieldError("alternatives", "something else", f"an integer, 0 to {MAX_BEAM_SIZE - 1}")
    return given


def _given(fields: Mapping[str, Any], name: str, default: object) -> Any:
    """Return a field, or the default if it is absent, or empty as in a form."""
    return default if fields.get(name) in (None, "") else fields[name]


def _form(raw_request: bytes) -> dict[str, Any]:
    """Return the fields of a form; `q` is a list if it is there more than once."""
    try:
        pairs = parse_qsl(
            raw_request.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_TEXTS + len(_FIELDS)
        )
    except ValueError as error:  # no UTF-8, or too many fields
        raise InvalidFieldError("request", f"no form in UTF-8 ({type(error).__name__})", "one") from None
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name not in fields:
            fields[name] = value
        elif name == "q":
            fields[name] = [*(fields[name] if isinstance(fields[name], list) else [fields[name]]), value]
        else:
            raise InvalidFieldError("request", "of a field that is there more than once", "of each field once")
    return fields


async def _refuse_detection(_request: Request) -> Response:
    return _error(HTTPStatus.BAD_REQUEST, _NO_DETECTION)


async def _send(outcome: bytes | status.Answer | None, call: Call, context: HttpContext) -> None:
    if isinstance(outcome, status.Answer):
        found = problem(outcome, request_id=call.request_id)
        code = found.status if found.status >= HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.BAD_REQUEST
        response = _error(_STATUSES.get(found.status, code), outcome.message)
        response.headers.update(found.headers)
    else:
        response = Response(outcome, media_type=JSON_MEDIA_TYPE)
    response.headers[REQUEST_ID_KEY] = call.request_id
    await context.respond(response)


def _error(code: HTTPStatus, message: str) -> Response:
    return Response(to_json({"error": message}), code, media_type=JSON_MEDIA_TYPE)
