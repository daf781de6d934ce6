"""Google Cloud Translation over HTTP: the REST form of version 3, and version 2 (`/language/translate/v2`).

Version 3 takes the JSON form of the protobuf messages and answers through `GoogleTranslation`, as gRPC does. Both
versions take the API key in the header `x-goog-api-key`, as `Authorization: Bearer KEY`, or in the query parameter
`key`. Errors have the form of Google: `{"error": {"code": 400, "message": "...", "status": "INVALID_ARGUMENT", ...}}`.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, ClassVar

from google.protobuf.json_format import MessageToDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import DragomanError, InvalidFieldError
from dragoman_service.http_api.bodies import FORM_MEDIA_TYPE, converted
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, HttpContext
from dragoman_service.http_api.json_mapping import parsed_json, to_json
from dragoman_service.http_api.problem_details import Problem
from dragoman_service.http_api.routes import TRANSLATION_SERVICE
from dragoman_service.middleware.pipeline import Backend, RequestPipeline
from dragoman_service.request import RequestRecord
from dragoman_service.security.settings import GrpcSettings
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
from dragoman_service.vendor_apis.google_grpc import METHODS, SERVICE, GoogleTranslation, language_names, model_name

_KEY_HEADER = "x-goog-api-key"
_COMMON_PARAMETERS = ("key", "alt", "$alt", "prettyPrint", "quotaUser")
"""Query parameters of all methods. Except for the key they have no effect: answers are compact JSON."""

_UNREAD_MEDIA_TYPE = "text/plain"
"""Media type of a request without the header `content-type`, as Python's `email` package reports it."""

_PREFIX = "/v3/projects/"
_V3_ROUTES: Mapping[str, tuple[str, str]] = {
    "TranslateText": ("POST", "{parent:path}:translateText"),
    "DetectLanguage": ("POST", "{parent:path}:detectLanguage"),
    "GetSupportedLanguages": ("GET", "{parent:path}/supportedLanguages"),
    "ListGlossaries": ("GET", "{parent:path}/glossaries"),
    "GetGlossary": ("GET", "{parent:path}/glossaries/{name}"),
}

_V2 = "/language/translate"
_FORMATS: Mapping[str, pb.TextFormat] = {"html": pb.TEXT_FORMAT_HTML, "text": pb.TEXT_FORMAT_PLAIN}
_V2_GENERAL_MODELS = frozenset({"", "base", "nmt"})
_TRANSLATE_FIELDS = ("q", "target", "source", "format", "model", "cid", *_COMMON_PARAMETERS)
_DETECT_FIELDS = ("q", *_COMMON_PARAMETERS)
_LANGUAGES_FIELDS = ("target", "model", *_COMMON_PARAMETERS)

_STATUSES: Mapping[str, HTTPStatus] = {
    "FAILED_PRECONDITION": HTTPStatus.BAD_REQUEST,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "UNIMPLEMENTED": HTTPStatus.NOT_IMPLEMENTED,
}
"""HTTP status of a gRPC code, where Google's differs from that of the native API (google/rpc/code.proto)."""

_NAMES: Mapping[HTTPStatus, str] = {
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.NOT_IMPLEMENTED: "UNIMPLEMENTED",
}
"""gRPC code of an error that has none of its own."""

_REASONS: Mapping[str, str] = {
    "INVALID_ARGUMENT": "invalid",
    "FAILED_PRECONDITION": "failedPrecondition",
    "UNAUTHENTICATED": "required",
    "PERMISSION_DENIED": "forbidden",
    "NOT_FOUND": "notFound",
    "RESOURCE_EXHAUSTED": "rateLimitExceeded",
}
"""`reason` in the list `errors`, by gRPC code; `backendError` for all others."""


class _GoogleApi(VendorApi):
    """What both versions share: the place of the key, and errors."""

    key_place = "the header `x-goog-api-key` or `Authorization: Bearer KEY`, or the query parameter `key`"

    def failed(self, found: Problem, message: str) -> Response:
        """Return an error in the form of Google."""
        name = str(found.members.get("code") or _NAMES[found.status])
        status = _STATUSES.get(name, found.status)
        error = {
            "code": int(status),
            "message": message,
            "status": name,
            "errors": [{"message": message, "domain": "global", "reason": _REASONS.get(name, "backendError")}],
        }
        if found.members:
            error["details"] = self._details(found.members)
        return json_error(status, {"error": error})

    def _details(self, members: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the details of an error as google.rpc messages in JSON."""
        details = [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": members["reason"],
                "domain": members["domain"],
                "metadata": members.get("metadata", {}),
            }
        ]
        if violations := members.get("violations"):
            renamed = [{**one, "field": self._renamed(one["field"])} for one in violations]
            details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": renamed})
        if delay := members.get("retryDelay"):
            details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
        return details

    def _refuse_all(self, path: str, code: HTTPStatus) -> Route:
        """Return the route that refuses all requests which no route before it takes."""

        async def refuse(request: Request) -> Response:
            message = f"{request.method} {request.url.path[:100]}: not implemented by this server"
            return self.failed(Problem(status=code, members={}, headers={}), message)

        return Route(path, refuse, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])


class GoogleV3Api(_GoogleApi):
    """Answers the REST routes of version 3."""

    def __init__(
        self, pipeline: RequestPipeline, backend: Backend, settings: GrpcSettings, *, google: GoogleTranslation
    ) -> None:
        """`google` answers the methods."""
        super().__init__(pipeline, backend, settings)
        self._google = google

    def routes(self) -> list[Route]:
        """Return the routes to add to the application."""
        return [
            *(
                Route(_PREFIX + path, self.endpoint(self._method(name)), methods=[http_method])
                for name, (http_method, path) in _V3_ROUTES.items()
            ),
            self._refuse_all(f"{_PREFIX}{{rest:path}}", HTTPStatus.NOT_IMPLEMENTED),
        ]

    def _method(self, name: str) -> Callable[[HttpContext], Awaitable[None]]:
        """Return what answers a request of a method of Google's service."""
        method = self._google.by_name[name]
        _, service, own_name = METHODS[f"/{SERVICE}/{name}"].split("/")

        async def answer(context: HttpContext) -> None:
            query = _Query(context)

            async def respond(record: RequestRecord, body: bytes) -> bytes:
                request = await parsed_json(body or query.as_json(method.request), method.request)
                query.check(_COMMON_PARAMETERS if body else (*_COMMON_PARAMETERS, *_names(method.request)))
                _set_resource(request, context.path_parameters)
                response = await method.answer(request, record)
                return await converted(lambda: to_json(MessageToDict(response)), response.ByteSize())

            if service == TRANSLATION_SERVICE:
                await self.answer_translation(context, respond, method=own_name)
            else:
                await self.answer_reading(context, own_name, respond)

        return answer


class GoogleV2Api(_GoogleApi):
    """Answers the routes of version 2."""

    media_types = (JSON_MEDIA_TYPE, FORM_MEDIA_TYPE, _UNREAD_MEDIA_TYPE)
    field_names: ClassVar[Mapping[str, str]] = {"texts": "q", "source_language": "source", "target_language": "target"}

    def routes(self) -> list[Route]:
        """Return the routes to add to the application."""
        answers = {"": self._translate, "/detect": self._detect, "/languages": self._list_languages}
        return [
            # POST for all: with `X-HTTP-Method-Override: GET`, a form replaces a query that is too long for a URL.
            *(
                Route(f"{_V2}/v2{path}", self.endpoint(answer), methods=["GET", "POST"])
                for path, answer in answers.items()
            ),
            self._refuse_all(f"{_V2}/{{rest:path}}", HTTPStatus.NOT_FOUND),
        ]

    async def _translate(self, context: HttpContext) -> None:
        async def respond(record: RequestRecord, fields: dict[str, Any]) -> list[dict[str, Any]]:
            request = translate_request(fields, max_characters=self.max_text_characters)
            return [_translation(one, fields) for one in await self.translated(request, record)]

        await self._answer_fields(context, "Translate", _TRANSLATE_FIELDS, "translations", respond)

    async def _detect(self, context: HttpContext) -> None:
        async def respond(record: RequestRecord, fields: dict[str, Any]) -> list[list[dict[str, Any]]]:
            return [[_detected(one)] for one in await self.detected(_texts(fields, self.max_text_characters), record)]

        await self._answer_fields(context, "DetectLanguage", _DETECT_FIELDS, "detections", respond)

    async def _answer_fields(
        self,
        context: HttpContext,
        method: str,
        known: Collection[str],
        name: str,
        respond: Callable[[RequestRecord, dict[str, Any]], Awaitable[Sequence[Any]]],
    ) -> None:
        """Answer a request for translation or detection with a list of this name."""
        query = _Query(context)

        async def answer(record: RequestRecord, body: bytes) -> bytes:
            fields = await _merged(context, query, body, known)
            return to_json({"data": {name: await respond(record, fields)}})

        await self.answer_translation(context, answer, method=method, raw_request=b"" if context.is_read else None)

    async def _list_languages(self, context: HttpContext) -> None:
        query = _Query(context)

        async def respond(_record: RequestRecord, body: bytes) -> bytes:
            fields = await _merged(context, query, body, _LANGUAGES_FIELDS)
            names_in = _word(fields, "target")
            if _word(fields, "model") not in _V2_GENERAL_MODELS:
                raise InvalidFieldError("model", "another model", "absent, base or nmt")
            pairs = self.languages()
            codes = sorted(pairs.keys() | set().union(*pairs.values()))
            names = await language_names(codes, names_in) if names_in else {}
            listed = [{"language": code, **({"name": names[code]} if names else {})} for code in codes]
            return to_json({"data": {"languages": listed}})

        await self.answer_reading(context, "ListModels", respond)


class _Query:
    """The parameters of the query, and the key of the request."""

    def __init__(self, context: HttpContext) -> None:
        """Give the key to the context. An error of the query is raised later, when the caller is known."""
        self._failure: DragomanError | None = None
        self._fields: dict[str, Any] = {}
        try:
            self._fields = merged(context.parameters, {"q"})
        except DragomanError as error:
            self._failure = error
        if key := context.header(_KEY_HEADER) or self._fields.get("key"):
            context.authorize(key)

    @property
    def fields(self) -> Mapping[str, Any]:
        """Values by name; a list for `q` if it is repeated. InvalidFieldError if the query cannot be parsed."""
        if self._failure:
            raise self._failure
        return self._fields

    def check(self, known: Collection[str]) -> None:
        """Raise InvalidFieldError if there is a parameter of another name, or the answer may not be JSON."""
        check_known(self.fields, known)
        _check_alt(self.fields)

    def as_json(self, kind: type[Any]) -> bytes:
        """Return the fields of a message that the query holds, in JSON."""
        integers = {name for field in kind.DESCRIPTOR.fields if field.type == field.TYPE_INT32 for name in _both(field)}
        return to_json(
            {
                name: int(value) if name in integers and value.isdecimal() and len(value) < 10 else value
                for name, value in self.fields.items()
                if name in _names(kind)
            }
        )


def translate_request(fields: Mapping[str, Any], *, max_characters: int) -> pb.TranslateRequest:
    """Return the request of the contract; InvalidFieldError names the field of version 2 that is wrong."""
    text_format = given(fields, "format", "html")
    if not isinstance(text_format, str) or text_format not in _FORMATS:
        raise InvalidFieldError("format", "something else", "html or text")
    if fields.get("cid"):
        raise InvalidFieldError("cid", "given", "absent: the server has no custom models by id")
    target = _word(fields, "target")
    if not target:
        raise InvalidFieldError("target", "absent", "a language, such as `de`")
    model = _word(fields, "model")
    return pb.TranslateRequest(
        texts=_texts(fields, max_characters),
        source_language=_word(fields, "source"),
        target_language=target,
        model="" if model in _V2_GENERAL_MODELS else model_name(model) if model.startswith("projects/") else model,
        options=pb.DecodingOptions(format=_FORMATS[text_format]),
    )


def _texts(fields: Mapping[str, Any], max_characters: int) -> list[str]:
    query = fields.get("q")
    return check_texts("q", query if isinstance(query, list) else [query], max_characters=max_characters)


def _word(fields: Mapping[str, Any], name: str) -> str:
    """Return a language or a model; empty if it is absent."""
    value = given(fields, name, "")
    if not isinstance(value, str) or not value.isascii():
        raise InvalidFieldError(name, "of another type or not ASCII", "an ASCII string")
    return value


def _translation(one: Translated, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return one item of `translations`; Google names the model only if the request does."""
    answered = {"translatedText": one.text}
    if one.detected:
        answered["detectedSourceLanguage"] = one.detected.language
    if given(fields, "model", ""):
        answered["model"] = one.model
    return answered


def _detected(languages: Sequence[pb.DetectedLanguage]) -> dict[str, Any]:
    """Return the likeliest language: Google reports one for each text."""
    best = languages[0] if languages else pb.DetectedLanguage(language="und")
    return {"language": best.language, "confidence": best.confidence, "isReliable": False}


async def _merged(context: HttpContext, query: _Query, body: bytes, known: Collection[str]) -> dict[str, Any]:
    """Return the fields of query and body; InvalidFieldError if one is unknown or has two values."""
    merged = dict(query.fields)
    if body and context.media_type == _UNREAD_MEDIA_TYPE:
        context.http_status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        raise InvalidFieldError("content-type", repr(_UNREAD_MEDIA_TYPE), f"{JSON_MEDIA_TYPE} or {FORM_MEDIA_TYPE}")
    if body:
        sent = await converted(lambda: fields_of(body, context.header("content-type"), repeated={"q"}), len(body))
        for name, value in sent.items():
            if name == "q" and name in merged:
                merged[name] = [*_as_list(merged[name]), *_as_list(value)]
            elif merged.setdefault(name, value) != value:
                raise InvalidFieldError(
                    "request", "of a field with one value in the query and another in the body", "one"
                )
    check_known(merged, known)
    _check_alt(merged)
    return merged


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_alt(fields: Mapping[str, Any]) -> None:
    for name in ("alt", "$alt"):
        if str(fields.get(name) or "json").partition(";")[0] != "json":
            raise InvalidFieldError(name, "another format", "json")


def _set_resource(request: Any, path_parameters: Mapping[str, str]) -> None:
    """Set the resource that the path names; InvalidFieldError if the body names another."""
    place = f"projects/{path_parameters['parent']}"
    field = "name" if "name" in path_parameters else "parent"
    resource = f"{place}/glossaries/{path_parameters['name']}" if field == "name" else place
    if getattr(request, field) not in ("", resource):
        raise InvalidFieldError(field, "another resource than that of the path", "absent or the same")
    setattr(request, field, resource)


def _both(field: Any) -> tuple[str, str]:
    """Return the names that JSON has for a field."""
    return field.name, field.json_name


def _names(kind: type[Any]) -> set[str]:
    return {name for field in kind.DESCRIPTOR.fields for name in _both(field)}
