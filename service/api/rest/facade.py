"""What APIs of other services have in common: requests become calls of the contract, errors have the service's form."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from dragoman.v1 import translation_pb2 as pb
from starlette.requests import Request
from starlette.responses import Response

from service.api import status
from service.api.calls import REQUEST_ID_KEY, Call
from service.api.pipeline import as_status
from service.api.rest.context import JSON_MEDIA_TYPE, Endpoint, HttpContext
from service.api.rest.json_mapping import json_object, to_json
from service.api.rest.problems import Problem, problem
from service.api.rest.translation import MODEL_SERVICE, TRANSLATION_SERVICE, HttpApi, language_pairs
from service.api.servicer import TranslationServicer, ended_after
from service.errors import InvalidFieldError
from service.requests import MAX_TEXTS

FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
_MAX_OTHER_FIELDS = 64  # of a form, beside texts

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


async def translate_each(
    translation: TranslationServicer, request: pb.TranslateRequest, call: Call
) -> list[Translated]:
    """Translate the texts of a request, each from its own language if the request names none.

    A text without letters, or in the target language if that is not served, is returned unchanged.
    """
    if request.source_language:
        return _each(await translation.Translate(request, call))
    found = await translation.source_languages(request, call)
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
            parts = _each(await translation.Translate(part, call))
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


class Facade(HttpApi):
    """Answers the routes of another service."""

    media_types: ClassVar[tuple[str, ...]] = (JSON_MEDIA_TYPE,)
    """Of bodies."""

    field_names: ClassVar[Mapping[str, str]] = {}
    """What the service calls a field of the contract, for errors."""

    @abstractmethod
    def failed(self, found: Problem, message: str) -> Response:
        """Return the response of a failed call, in the form of the service."""

    def endpoint(self, answer: Callable[[HttpContext], Awaitable[None]]) -> Endpoint:
        """Return the application of a route."""
        return Endpoint(answer, self._settings, self.media_types)

    def refusal(self, code: HTTPStatus, message: str) -> Callable[[Request], Awaitable[Response]]:
        """Return what refuses all requests of a route in the form of the service."""

        async def refuse(_request: Request) -> Response:
            return self.failed(Problem(status=code, members={}, headers={}), message)

        return refuse

    async def answer_translation(
        self,
        context: HttpContext,
        respond: Callable[[Call, bytes], Awaitable[Answer]],
        *,
        method: str = "Translate",
        raw_request: bytes | None = None,
    ) -> None:
        """Answer a request as a method of TranslationService within its time; `respond` gets the body."""

        async def within_time(call: Call, body: bytes) -> Answer:
            async with ended_after(self._settings.allowed_s(call.time_remaining())):
                return await respond(call, body)

        await self._answer(context, f"/{TRANSLATION_SERVICE}/{method}", within_time, raw_request)

    async def answer_reading(
        self,
        context: HttpContext,
        method: str,
        respond: Callable[[Call, bytes], Awaitable[Answer]],
    ) -> None:
        """Answer a request for what the server has, as a method of ModelService; `respond` gets the body, if any."""

        async def checked(call: Call, body: bytes) -> Answer:
            context.check_headers()
            return await respond(call, body)

        await self._answer(context, f"/{MODEL_SERVICE}/{method}", checked, b"" if context.is_read else None)

    async def translated(self, request: pb.TranslateRequest, call: Call) -> list[Translated]:
        """Translate the texts of a request; see `translate_each`."""
        return await translate_each(self._translation, request, call)

    async def detected(self, texts: list[str], call: Call) -> list[list[pb.DetectedLanguage]]:
        """Return the languages that each text may be in, the likeliest first."""
        try:
            request = pb.DetectLanguageRequest(texts=texts)
        except ValueError:
            raise InvalidFieldError("texts", "a text with a lone surrogate", "Unicode text") from None
        response = await self._translation.DetectLanguage(request, call)
        return [list(one.languages) for one in response.detections]

    async def languages(self, call: Call) -> dict[str, set[str]]:
        """Return into which languages models translate, by the language that they translate from."""
        return language_pairs(await self._models.ListModels(pb.ListModelsRequest(), call))

    async def _answer(
        self,
        context: HttpContext,
        path: str,
        respond: Callable[[Call, bytes], Awaitable[Answer]],
        raw_request: bytes | None,
    ) -> None:
        call = self._pipeline.start(path, context)

        async def responded(body: bytes) -> Answer:
            return await respond(call, body)

        outcome = await self._pipeline.answer(call, responded, as_status, raw_request=raw_request)
        if isinstance(outcome, status.Answer):
            found = problem(outcome, request_id=call.request_id, http_status=context.http_status)
            response = self.failed(found, self._renamed(outcome.message))
            response.headers.update(found.headers)
        else:
            response = outcome if isinstance(outcome, Response) else Response(outcome, media_type=JSON_MEDIA_TYPE)
        response.headers[REQUEST_ID_KEY] = call.request_id
        await context.respond(response)

    def _renamed(self, message: str) -> str:
        """Return a message with the service's own name of the field that it begins with."""
        field, colon, rest = message.partition(": ")
        name, bracket, index = field.partition("[")
        return f"{self.field_names.get(name, name)}{bracket}{index}{colon}{rest}"


def json_error(code: int, content: Mapping[str, Any]) -> Response:
    """Return an error in JSON."""
    return Response(to_json(content), code, media_type=JSON_MEDIA_TYPE)


def fields_of(context: HttpContext, body: bytes, *, repeated: Collection[str]) -> dict[str, Any]:
    """Return the fields of a request in JSON or of a form, in which some may be there more than once.

    Raises:
        InvalidFieldError: if the body is neither, or another field is there twice.
    """
    return _form(body, repeated) if context.media_type == FORM_MEDIA_TYPE else json_object(body)


def check_known(fields: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise InvalidFieldError if a request has a field that is not among the known ones."""
    for name in fields:
        if name not in known:
            shown = name if name.isidentifier() and len(name) < 64 else "request"
            raise InvalidFieldError(shown, "a field that this server does not take", f"one of {', '.join(known)}")


def check_texts(field: str, texts: object) -> list[str]:
    """Return the texts of a request; InvalidFieldError if it is no list of texts, or one of another length."""
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or not texts:
        raise InvalidFieldError(field, "of another type or empty", f"a text, or a list of 1 to {MAX_TEXTS} texts")
    if len(texts) > MAX_TEXTS:
        raise InvalidFieldError(field, f"a list of {len(texts)}", f"at most {MAX_TEXTS} texts")
    return texts


def given(fields: Mapping[str, Any], name: str, default: object) -> Any:
    """Return a field, or the default if it is absent, or empty as in a form."""
    return default if fields.get(name) in (None, "") else fields[name]


def make_request(field: str, **content: Any) -> pb.TranslateRequest:
    """Return the request of the contract; InvalidFieldError names the field with a text that is no Unicode."""
    try:
        return pb.TranslateRequest(**content)
    except ValueError:
        raise InvalidFieldError(field, "a text with a lone surrogate", "Unicode text") from None


def _form(body: bytes, repeated: Collection[str]) -> dict[str, Any]:
    """Return the fields of a form; one that may be repeated is a list if it is."""
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_TEXTS + _MAX_OTHER_FIELDS
        )
    except ValueError as error:  # no UTF-8, or too many fields
        raise InvalidFieldError("request", f"no form in UTF-8 ({type(error).__name__})", "one") from None
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name not in fields:
            fields[name] = value
        elif name in repeated:
            fields[name] = [*(fields[name] if isinstance(fields[name], list) else [fields[name]]), value]
        else:
            raise InvalidFieldError("request", "of a field that is there more than once", "of each field once")
    return fields
