"""Google Cloud Translation over HTTP: the REST form of version 3, and version 2 (`/language/translate/v2`).

Version 3 converts between JSON and protobuf messages and answers with `GoogleTranslation`, as gRPC does. The API key is
in the header `x-goog-api-key`, in `Authorization: Bearer KEY` or in the query parameter `key`. Errors are
`{"error": {"code": 400, "message": "...", "status": "INVALID_ARGUMENT", ...}}`.
"""

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, ClassVar, Literal, TypeVar

from google.protobuf.json_format import MessageToDict
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman_service.calls.handlers import Handlers, TranslatedText
from dragoman_service.calls.pipeline import Call, RequestPipeline
from dragoman_service.calls.policy import DETECT_LANGUAGE, LIST_MODELS, TRANSLATE
from dragoman_service.errors import InvalidFieldError, RequestError
from dragoman_service.http_api.bodies import FORM_MEDIA_TYPE, converted
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, Endpoint, HttpContext
from dragoman_service.http_api.json_mapping import parsed_json, to_json
from dragoman_service.http_api.problem_details import Problem
from dragoman_service.request import TextFormat, TranslationOptions, TranslationRequest
from dragoman_service.vendor_apis.base import HTTP_METHODS, NO_LANGUAGE, VendorApi, json_error
from dragoman_service.vendor_apis.google_grpc import (
    GoogleTranslation,
    check_languages_differ,
    language_names,
    model_name,
)
from dragoman_service.vendor_apis.parameters import (
    JsonFormat,
    Parameters,
    Texts,
    Unsupported,
    as_list,
    body_fields,
    grouped,
)

_NO_MEDIA_TYPE = "text/plain"  # reported by Python's `email` package for a request without `content-type`

_PREFIX = "/v3/projects/"
_V3_ROUTES: Mapping[str, tuple[str, str]] = {
    "TranslateText": ("POST", "{parent:path}:translateText"),
    "DetectLanguage": ("POST", "{parent:path}:detectLanguage"),
    "GetSupportedLanguages": ("GET", "{parent:path}/supportedLanguages"),
    "ListGlossaries": ("GET", "{parent:path}/glossaries"),
    "GetGlossary": ("GET", "{parent:path}/glossaries/{name}"),
}
_V2 = "/language/translate"
_FORMATS = {"html": TextFormat.HTML, "text": TextFormat.PLAIN}

_STATUSES: Mapping[str, HTTPStatus] = {
    "FAILED_PRECONDITION": HTTPStatus.BAD_REQUEST,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "UNIMPLEMENTED": HTTPStatus.NOT_IMPLEMENTED,
}
"""HTTP status of a gRPC code where Google's differs from that of the native API (google/rpc/code.proto)."""

_CODES: Mapping[HTTPStatus, str] = {
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.NOT_IMPLEMENTED: "UNIMPLEMENTED",
}
"""gRPC code of a rejected path or method."""

_KEY_INVALID = "API_KEY_INVALID"
_REASONS: Mapping[str, str] = {
    _KEY_INVALID: "keyInvalid",
    "INVALID_ARGUMENT": "invalid",
    "FAILED_PRECONDITION": "failedPrecondition",
    "UNAUTHENTICATED": "required",
    "PERMISSION_DENIED": "forbidden",
    "NOT_FOUND": "notFound",
    "RESOURCE_EXHAUSTED": "rateLimitExceeded",
}
"""`reason` in the list `errors`, by reason or gRPC code; `backendError` for all others."""

_Parameters = TypeVar("_Parameters", bound="CommonParameters")


class CommonParameters(Parameters):
    """Query parameters of all methods. Only the key has an effect: responses are always compact JSON."""

    key: str = ""
    alt: JsonFormat = "json"
    dollar_alt: JsonFormat = Field(default="json", alias="$alt")
    pretty_print: Any = Field(default=None, alias="prettyPrint")
    quota_user: Any = Field(default=None, alias="quotaUser")


class TextParameters(CommonParameters):
    """Parameters of translation in version 2."""

    q: Texts
    target: str
    source: str = ""
    format: Literal["html", "text"] = "html"
    model: str = ""
    cid: Unsupported = None  # custom models by id

    def translation_request(self) -> TranslationRequest:
        """Return the request of the service."""
        names_resource = self.model.startswith("projects/")
        return TranslationRequest(
            texts=tuple(self.q),
            source_language=self.source,
            target_language=self.target,
            model=model_name(self.model) if names_resource else "" if self.model in {"base", "nmt"} else self.model,
            options=TranslationOptions(format=_FORMATS[self.format]),
        )


class DetectionParameters(CommonParameters):
    """Parameters of language detection in version 2."""

    q: Texts


class LanguagesParameters(CommonParameters):
    """Parameters of the list of languages in version 2."""

    target: str = ""
    model: Literal["", "base", "nmt"] = ""


class _GoogleApi(VendorApi):
    """Errors and key of both versions."""

    key_header = "x-goog-api-key"
    key_parameter = "key"
    key_place = "the header `x-goog-api-key` or `Authorization: Bearer KEY`, or the query parameter `key`"

    def error_response(self, error: Problem, message: str) -> Response:
        """Return an error in Google's form."""
        code = str(error.members.get("code") or _CODES[error.status])
        status = _STATUSES.get(code, error.status)
        reason = _REASONS.get(error.members.get("reason", "")) or _REASONS.get(code, "backendError")
        content = {
            "code": int(status),
            "message": message,
            "status": code,
            "errors": [{"message": message, "domain": "global", "reason": reason}],
        }
        if error.members:
            content["details"] = self._details(error.members)
        return json_error(status, {"error": content})

    def _details(self, members: Mapping[str, Any]) -> list[dict[str, Any]]:
        details = [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": members["reason"],
                "domain": members["domain"],
                "metadata": members.get("metadata", {}),
            }
        ]
        if violations := members.get("violations"):
            renamed = [{**violation, "field": self.renamed(violation["field"])} for violation in violations]
            details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": renamed})
        if delay := members.get("retryDelay"):
            details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
        return details

    def _reject_all(self, path: str, code: HTTPStatus) -> Route:

        async def reject(request: Request) -> Response:
            message = f"{request.method} {request.url.path[:100]}: not implemented by this server"
            return self.error_response(Problem(status=code, members={}, headers={}), message)

        return Route(path, reject, methods=HTTP_METHODS)


class GoogleV3Api(_GoogleApi):
    """REST routes of version 3."""

    def __init__(self, pipeline: RequestPipeline, handlers: Handlers, *, google: GoogleTranslation) -> None:
        """Answer with the methods of `google`."""
        super().__init__(pipeline, handlers)
        self._google = google

    def routes(self) -> list[Route]:
        """Return the routes, with a rejection for all other paths of projects."""
        return [
            *(
                Route(_PREFIX + path, self._method(name), methods=[http_method])
                for name, (http_method, path) in _V3_ROUTES.items()
            ),
            self._reject_all(f"{_PREFIX}{{rest:path}}", HTTPStatus.NOT_IMPLEMENTED),
        ]

    def _method(self, name: str) -> Endpoint:
        method = self._google.methods[name]
        field_names = {each for field in method.request.DESCRIPTOR.fields for each in (field.name, field.json_name)}

        async def respond(context: HttpContext, call: Call, body: bytes) -> bytes:
            query = grouped(context.parameters)
            in_query = set() if body else query.keys() & field_names
            CommonParameters.parse({each: value for each, value in query.items() if each not in in_query})
            raw = body or _as_json(method.request, {each: query[each] for each in in_query})
            request = await parsed_json(raw, method.request)
            _set_resource(request, context.path_parameters)
            response = await method.handler(request, call)
            return await converted(lambda: to_json(MessageToDict(response)), response.ByteSize())

        return self.method(method.policy, respond)


class GoogleV2Api(_GoogleApi):
    """Routes of version 2."""

    media_types = (JSON_MEDIA_TYPE, FORM_MEDIA_TYPE, _NO_MEDIA_TYPE)
    field_names: ClassVar[Mapping[str, str]] = {"texts": "q", "source_language": "source", "target_language": "target"}

    def routes(self) -> list[Route]:
        """Return the routes, with a rejection for all other paths below `/language/translate`."""
        endpoints = {
            "": self.method(TRANSLATE, self._translate),
            "/detect": self.method(DETECT_LANGUAGE, self._detect),
            "/languages": self.method(LIST_MODELS, self._list_languages),
        }
        return [
            # POST for all: with `X-HTTP-Method-Override: GET`, a form replaces a query that is too long for a URL.
            *(Route(f"{_V2}/v2{path}", endpoint, methods=["GET", "POST"]) for path, endpoint in endpoints.items()),
            self._reject_all(f"{_V2}/{{rest:path}}", HTTPStatus.NOT_FOUND),
        ]

    def adapted_error(self, error: Problem, context: HttpContext) -> tuple[Problem, str]:
        """Return an unknown key as 400 with `API_KEY_INVALID`, as Google does."""
        if error.members["reason"] == "UNAUTHENTICATED" and context.header("authorization"):
            members = {**error.members, "code": "INVALID_ARGUMENT", "reason": _KEY_INVALID}
            error = replace(error, status=HTTPStatus.BAD_REQUEST, members=members, headers={})
        return super().adapted_error(error, context)

    async def _translate(self, context: HttpContext, call: Call, body: bytes) -> bytes:
        parameters = await self._parameters(context, body, TextParameters)
        request = parameters.translation_request()
        translated = await self.handlers.translate_each(request, call)
        check_languages_differ(request, translated)
        items = [_translation(text, names_model=bool(parameters.model)) for text in translated]
        return to_json({"data": {"translations": items}})

    async def _detect(self, context: HttpContext, call: Call, body: bytes) -> bytes:
        parameters = await self._parameters(context, body, DetectionParameters)
        detected = await self.handlers.detect_languages(parameters.q, call)
        detections = [
            [{"language": best.language, "confidence": best.confidence, "isReliable": False}]
            for best, *_ in (languages or [NO_LANGUAGE] for languages in detected)
        ]
        return to_json({"data": {"detections": detections}})

    async def _list_languages(self, context: HttpContext, _call: Call, body: bytes) -> bytes:
        parameters = await self._parameters(context, body, LanguagesParameters)
        pairs = self.language_pairs()
        codes = sorted(pairs.keys() | set().union(*pairs.values()))
        names = await language_names(codes, parameters.target) if parameters.target else {}
        items = [{"language": code, **({"name": names[code]} if names else {})} for code in codes]
        return to_json({"data": {"languages": items}})

    async def _parameters(self, context: HttpContext, body: bytes, model: type[_Parameters]) -> _Parameters:
        """Return the parameters of query and body; RequestError if one is invalid or has two values."""
        if body and context.media_type == _NO_MEDIA_TYPE:
            context.http_status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            raise InvalidFieldError("content-type", repr(_NO_MEDIA_TYPE), f"{JSON_MEDIA_TYPE} or {FORM_MEDIA_TYPE}")

        def parse() -> _Parameters:
            fields = grouped(context.parameters)
            for name, value in (body_fields(body, context.header("content-type")) if body else {}).items():
                if name == "q" and name in fields:
                    fields[name] = [*as_list(fields[name]), *as_list(value)]
                elif fields.setdefault(name, value) != value:
                    raise RequestError("request", "a parameter differs between query and body")
            return model.parse(fields, max_text_characters=self.max_text_characters)

        return await converted(parse, len(body))


def _translation(text: TranslatedText, *, names_model: bool) -> dict[str, Any]:
    """Return one item of `translations`; Google names the model only if the request does."""
    item = {"translatedText": text.best}
    if text.detected:
        item["detectedSourceLanguage"] = text.detected.language
    if names_model:
        item["model"] = text.model
    return item


def _as_json(message: type[Any], fields: Mapping[str, Any]) -> bytes:
    """Return fields of a message from the query as JSON, integers as numbers."""
    integers = {
        name
        for field in message.DESCRIPTOR.fields
        if field.type == field.TYPE_INT32
        for name in (field.name, field.json_name)
    }
    return to_json(
        {
            name: int(value) if name in integers and str(value).isdecimal() and len(value) < 10 else value
            for name, value in fields.items()
        }
    )


def _set_resource(request: Any, path_parameters: Mapping[str, str]) -> None:
    """Set the resource that the path names; RequestError if the body names another."""
    parent = f"projects/{path_parameters['parent']}"
    field = "name" if "name" in path_parameters else "parent"
    resource = f"{parent}/glossaries/{path_parameters['name']}" if field == "name" else parent
    if getattr(request, field) not in ("", resource):
        raise RequestError(field, "differs from the resource in the path")
    setattr(request, field, resource)
