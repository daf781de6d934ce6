"""LibreTranslate's API over the same calls, for its clients: `/translate`, `/languages`, `/detect`.

Fields that the server does not know are refused with the kind of error that LibreTranslate has: `{"error": "..."}` and
one of the statuses 400, 403, 429, 500 and 503.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, ClassVar

from dragoman.v1 import translation_pb2 as pb
from starlette.responses import Response
from starlette.routing import Route

from service.api.callers import peer_name
from service.api.calls import Call
from service.api.rest.context import JSON_MEDIA_TYPE, HttpContext
from service.api.rest.facade import (
    FORM_MEDIA_TYPE,
    Facade,
    Translated,
    check_known,
    check_texts,
    fields_of,
    given,
    json_error,
    make_request,
)
from service.api.rest.json_mapping import to_json
from service.api.rest.problems import Problem
from service.errors import DragomanError, InvalidFieldError
from service.requests import MAX_BEAM_SIZE

_DEFAULT_BEAM_SIZE = 4
_FORMATS: Mapping[object, pb.TextFormat] = {"text": pb.TEXT_FORMAT_PLAIN, "html": pb.TEXT_FORMAT_HTML}
_FIELDS = ("q", "source", "target", "format", "alternatives", "api_key")

_STATUSES: Mapping[HTTPStatus, HTTPStatus] = {
    HTTPStatus.UNAUTHORIZED: HTTPStatus.FORBIDDEN,
    HTTPStatus.FORBIDDEN: HTTPStatus.FORBIDDEN,
    HTTPStatus.TOO_MANY_REQUESTS: HTTPStatus.TOO_MANY_REQUESTS,
}
"""What LibreTranslate sends in place of statuses below 500; 400 for all others."""


class LibreTranslateApi(Facade):
    """Answers the routes of LibreTranslate."""

    media_types = (JSON_MEDIA_TYPE, FORM_MEDIA_TYPE)
    field_names: ClassVar[Mapping[str, str]] = {"texts": "q", "source_language": "source", "target_language": "target"}

    def routes(self) -> list[Route]:
        """Return what to add to the application."""
        return [
            Route("/translate", self.endpoint(self._translate), methods=["POST"]),
            Route("/languages", self.endpoint(self._list_languages), methods=["GET"]),
            Route("/detect", self.endpoint(self._detect), methods=["POST"]),
        ]

    def failed(self, found: Problem, message: str) -> Response:
        """Return `{"error": MESSAGE}`."""
        code = found.status if found.status >= HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.BAD_REQUEST
        return json_error(_STATUSES.get(found.status, code), {"error": message})

    async def _translate(self, context: HttpContext) -> None:
        async def respond(call: Call, fields: dict[str, Any]) -> bytes:
            return to_json(answer(await self.translated(translate_request(fields), call), fields))

        await self._answer_fields(context, "Translate", respond)

    async def _detect(self, context: HttpContext) -> None:
        async def respond(call: Call, fields: dict[str, Any]) -> bytes:
            check_known(fields, ("q", "api_key"))
            (languages,) = await self.detected(check_texts("q", [fields.get("q")]), call)
            return to_json([_detected(one) for one in languages])

        await self._answer_fields(context, "DetectLanguage", respond)

    async def _answer_fields(
        self, context: HttpContext, method: str, respond: Callable[[Call, dict[str, Any]], Awaitable[bytes]]
    ) -> None:
        """Answer a request whose key is in its body: it is read before the caller is known, as probes are."""
        failure: DragomanError | None = None
        fields: dict[str, Any] = {}
        body = b""
        try:
            body = await self._pipeline.bounds.open_receiver.receive(context, peer_name(context.peer()))
            fields = fields_of(context, body, repeated={"q"})
            if key := fields.get("api_key"):
                context.authorize(str(key))
        except DragomanError as error:
            failure = error

        async def respond_unless_failed(call: Call, _body: bytes) -> bytes:
            if failure:
                raise failure
            return await respond(call, fields)

        await self.answer_translation(context, respond_unless_failed, method=method, raw_request=body)

    async def _list_languages(self, context: HttpContext) -> None:
        async def respond(call: Call, _body: bytes) -> bytes:
            pairs = await self.languages(call)
            return to_json([{"code": code, "name": code, "targets": sorted(pairs[code])} for code in sorted(pairs)])

        await self.answer_reading(context, "ListModels", respond)


def translate_request(fields: Mapping[str, Any]) -> pb.TranslateRequest:
    """Return the request of the contract; InvalidFieldError names the field of LibreTranslate that cannot be."""
    check_known(fields, _FIELDS)
    query = fields.get("q")
    texts = check_texts("q", query if isinstance(query, list) else [query])
    source, target = fields.get("source"), fields.get("target")
    for name, language in (("source", source), ("target", target)):
        if not isinstance(language, str):
            raise InvalidFieldError(name, "absent or no text", "a language, such as `en`")
    source = "" if source == "auto" else source
    text_format = given(fields, "format", "text")
    if not isinstance(text_format, str) or text_format not in _FORMATS:
        raise InvalidFieldError("format", "something else", "text or html")
    num_hypotheses = _num_alternatives(fields) + 1
    options = pb.DecodingOptions(format=_FORMATS[text_format])
    if num_hypotheses > 1:
        options.num_hypotheses = num_hypotheses
        options.beam_size = max(num_hypotheses, _DEFAULT_BEAM_SIZE)
    return make_request("q", texts=texts, source_language=source, target_language=target, options=options)


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
