"""What APIs of other services have in common: requests become calls of the contract, errors have the service's form."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import InvalidFieldError
from dragoman_service.file_translation.multipart import MULTIPART_MEDIA_TYPE
from dragoman_service.http_api.bodies import (
    FORM_MEDIA_TYPE,
    check_unicode,
    form_fields,
    json_content,
    multipart_fields,
    shown_name,
)
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, Endpoint, HttpContext
from dragoman_service.http_api.json_mapping import to_json
from dragoman_service.http_api.problem_details import Problem, problem
from dragoman_service.http_api.routes import MODEL_SERVICE, TRANSLATION_SERVICE, HttpApi, language_pairs
from dragoman_service.middleware import conversion, error_mapping
from dragoman_service.middleware.pipeline import REQUEST_ID_KEY, Backend, as_status
from dragoman_service.request import MAX_TEXTS, RequestRecord

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

Answer = bytes | Response
"""The body of a response in JSON, or the whole of it."""


@dataclass(frozen=True, slots=True)
class Translated:
    """What became of one text."""

    translation: pb.Translation
    model: str
    """`name/version` that answered; empty if the text was in the target language."""

    detected: pb.DetectedLanguage | None
    """The language that the text was taken to be in; None if the request named it."""

    @property
    def text(self) -> str:
        """The best translation."""
        return self.translation.hypotheses[0].text


async def translate(backend: Backend, request: pb.TranslateRequest, record: RequestRecord) -> pb.TranslateResponse:
    """Translate the texts of a request."""
    result = await backend.translator.translate(conversion.from_translate_request(request), record)
    return conversion.to_translate_response(result, request_id=record.request_id)


async def translate_each(backend: Backend, request: pb.TranslateRequest, record: RequestRecord) -> list[Translated]:
    """Translate the texts of a request, each from its own language if the request names none.

    A text without letters, or in the target language if that is not served, is returned unchanged.
    """
    if request.source_language:
        return _each(await translate(backend, request, record))
    languages = await backend.translator.source_languages(conversion.from_translate_request(request), record)
    found = [conversion.to_detected_language(one) if one else None for one in languages]
    counts = Counter(one.language for one in found if one)
    commonest = pb.DetectedLanguage(language=counts.most_common(1)[0][0], is_served=True) if counts else None
    indices_of: dict[str, list[int]] = {}
    for index, one in enumerate(found):
        indices_of.setdefault(one.language if one else "", []).append(index)
    translated: dict[int, Translated] = {}
    for language, indices in indices_of.items():
        texts = [request.texts[index] for index in indices]
        first = found[indices[0]]
        if first and not first.is_served:
            parts = [Translated(_unchanged(text), "", None) for text in texts]
        else:
            part = pb.TranslateRequest()
            part.CopyFrom(request)
            part.source_language = language  # empty for texts without letters, which are returned unchanged
            part.texts[:] = texts
            parts = _each(await translate(backend, part, record))
        for index, answered in zip(indices, parts, strict=True):
            detected = found[index] or commonest or answered.detected
            translated[index] = replace(answered, detected=detected)
    return [translated[index] for index in range(len(found))]


def _unchanged(text: str) -> pb.Translation:
    return pb.Translation(hypotheses=[pb.Hypothesis(text=text)])


def _each(response: pb.TranslateResponse) -> list[Translated]:
    detected = response.detected_language if response.HasField("detected_language") else None
    model = f"{response.model_name}/{response.model_version}"
    return [Translated(one, model, detected) for one in response.translations]


class VendorApi(HttpApi):
    """Answers the routes of another service."""

    media_types: ClassVar[tuple[str, ...]] = (JSON_MEDIA_TYPE,)
    """Of bodies."""

    field_names: ClassVar[Mapping[str, str]] = {}
    """What the service calls a field of the contract, for errors."""

    @abstractmethod
    def failed(self, found: Problem, message: str) -> Response:
        """Return the response of a failed record, in the form of the service."""

    key_place: ClassVar[str] = "the header `Authorization: Bearer KEY`"
    """Where the service's clients send their key, for errors."""

    def endpoint(
        self, answer: Callable[[HttpContext], Awaitable[None]], media_types: tuple[str, ...] | None = None
    ) -> Endpoint:
        """Return the application of a route whose bodies are of other media types than those of the API, if given."""

        async def answer_with_place(context: HttpContext) -> None:
            context.key_place = self.key_place
            await answer(context)

        return Endpoint(answer_with_place, self._settings, media_types or self.media_types)

    @property
    def max_text_characters(self) -> int:
        """Most characters of a text."""
        return self._backend.limits.max_text_characters

    def refusals(self, paths: Mapping[str, Collection[str]], make_route: type[Route] = Route) -> list[Route]:
        """Return routes that refuse the other methods of these paths, and the paths below, in the service's form."""
        routes = []
        for path, methods in paths.items():
            allowed = ", ".join(methods)
            refuse = self.refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"method not allowed: {path} takes {allowed}", allowed)
            routes.append(make_route(path, refuse, methods=[one for one in _METHODS if one not in methods]))
            below = self.refusal(HTTPStatus.NOT_FOUND, f"there is nothing below {path}")
            routes.append(make_route(f"{path}/{{rest:path}}", below, methods=_METHODS))
        return routes

    def refusal(self, code: HTTPStatus, message: str, allowed: str = "") -> Callable[[Request], Awaitable[Response]]:
        """Return what refuses all requests of a route in the form of the service; `allowed` are methods."""

        async def refuse(_request: Request) -> Response:
            response = self.failed(Problem(status=code, members={}, headers={}), message)
            if allowed:
                response.headers["allow"] = allowed
            return response

        return refuse

    async def answer_translation(
        self,
        context: HttpContext,
        respond: Callable[[RequestRecord, bytes], Awaitable[Answer]],
        *,
        method: str = "Translate",
        raw_request: bytes | None = None,
        is_open: bool = False,
    ) -> None:
        """Answer a request as a method of TranslationService; `respond` gets the body."""
        await self._answer(context, f"/{TRANSLATION_SERVICE}/{method}", respond, raw_request, is_open=is_open)

    async def answer_reading(
        self,
        context: HttpContext,
        method: str,
        respond: Callable[[RequestRecord, bytes], Awaitable[Answer]],
    ) -> None:
        """Answer a request for what the server has, as a method of ModelService; `respond` gets the body, if any."""

        async def checked(record: RequestRecord, body: bytes) -> Answer:
            context.check_headers()
            return await respond(record, body)

        await self._answer(context, f"/{MODEL_SERVICE}/{method}", checked, b"" if context.is_read else None)

    async def answer_open(
        self, context: HttpContext, method: str, respond: Callable[[RequestRecord], Awaitable[Answer]]
    ) -> None:
        """Answer a request that needs no key, as a method of ModelService; its body is not read."""

        async def checked(record: RequestRecord, _body: bytes) -> Answer:
            context.check_headers()
            return await respond(record)

        await self._answer(context, f"/{MODEL_SERVICE}/{method}", checked, b"", is_open=True)

    async def translated(self, request: pb.TranslateRequest, record: RequestRecord) -> list[Translated]:
        """Translate the texts of a request; see `translate_each`."""
        return await translate_each(self._backend, request, record)

    async def detected(self, texts: list[str], record: RequestRecord) -> list[list[pb.DetectedLanguage]]:
        """Return the languages that each text may be in, the likeliest first."""
        detected = await self._backend.translator.detect_languages(
            conversion.from_detect_language_request(pb.DetectLanguageRequest(texts=texts))[0], record
        )
        return [list(map(conversion.to_detected_language, languages)) for languages in detected]

    def languages(self) -> dict[str, set[str]]:
        """Return into which languages models translate, by the language that they translate from."""
        return language_pairs(self._backend.models.list_models())

    async def _answer(
        self,
        context: HttpContext,
        path: str,
        respond: Callable[[RequestRecord, bytes], Awaitable[Answer]],
        raw_request: bytes | None,
        *,
        is_open: bool = False,
    ) -> None:
        record = self._pipeline.start(path, context)

        async def responded(body: bytes) -> Answer:
            return await respond(record, body)

        outcome = await self._pipeline.answer(
            record, context, responded, as_status, raw_request=raw_request, is_open=is_open
        )
        if isinstance(outcome, error_mapping.Answer):
            found = problem(outcome, request_id=record.request_id, http_status=context.http_status)
            response = self.failed(found, self._renamed(outcome.message))
            response.headers.update(found.headers)
        else:
            response = outcome if isinstance(outcome, Response) else Response(outcome, media_type=JSON_MEDIA_TYPE)
        response.headers[REQUEST_ID_KEY] = record.request_id
        await context.respond(response)

    def _renamed(self, message: str) -> str:
        """Return a message with the service's own name of the field that it begins with."""
        field, colon, rest = message.partition(": ")
        name, bracket, index = field.partition("[")
        return f"{self.field_names.get(name, name)}{bracket}{index}{colon}{rest}"


def json_error(code: int, content: Mapping[str, Any]) -> Response:
    """Return an error in JSON."""
    return Response(to_json(content), code, media_type=JSON_MEDIA_TYPE)


def fields_of(body: bytes, content_type: str, *, repeated: Collection[str]) -> dict[str, Any]:
    """Return the fields of a request in JSON or of a form, in which some may be given more than once.

    Raises:
        InvalidFieldError: if the body is neither, has another field twice, or text that is not Unicode.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == FORM_MEDIA_TYPE:
        return merged(form_fields(body), repeated)
    if media_type == MULTIPART_MEDIA_TYPE:
        return merged(multipart_fields(body, content_type), repeated)
    fields = json_content(body)
    if not isinstance(fields, dict):
        raise InvalidFieldError("request", "not an object", "a JSON object")
    check_unicode(fields)
    return fields


def merged(pairs: Iterable[tuple[str, str]], repeated: Collection[str]) -> dict[str, Any]:
    """Return fields by name; one of `repeated` that is given more than once is a list."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    for name, given_values in values.items():
        if len(given_values) > 1 and name not in repeated:
            raise InvalidFieldError(shown_name(name), "given more than once", "given once")
    return {name: given_values if len(given_values) > 1 else given_values[0] for name, given_values in values.items()}


def check_known(fields: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise InvalidFieldError if a request has a field that is not among the known ones."""
    for name in fields:
        if name not in known:
            raise InvalidFieldError(
                shown_name(name), "a field that this server does not take", f"one of {', '.join(known)}"
            )


def check_texts(field: str, texts: object, *, max_characters: int) -> list[str]:
    """Return the texts of a request; InvalidFieldError if there are too many, one is too long or not a text."""
    if not isinstance(texts, list) or not texts:
        raise InvalidFieldError(field, "of another type or empty", f"a text, or a list of 1 to {MAX_TEXTS} texts")
    if len(texts) > MAX_TEXTS:
        raise InvalidFieldError(field, f"a list of {len(texts)}", f"at most {MAX_TEXTS} texts")
    for index, text in enumerate(texts):
        item = f"{field}[{index}]" if len(texts) > 1 else field
        if not isinstance(text, str):
            raise InvalidFieldError(item, "not a text", "a text")
        if len(text) > max_characters:
            raise InvalidFieldError(item, f"{len(text)} characters", f"at most {max_characters}")
    return texts


def given(fields: Mapping[str, Any], name: str, default: object) -> Any:
    """Return a field, or the default if it is absent, or empty as in a form."""
    return default if fields.get(name) in (None, "") else fields[name]
