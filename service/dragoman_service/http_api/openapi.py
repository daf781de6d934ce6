"""The OpenAPI 3.1 document of the API, generated from the descriptors of the messages."""

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from dragoman.option_ranges import OptionRange, field_range
from dragoman.v1 import translation_pb2 as pb
from dragoman_service.http_api.context import SECONDS_PATTERN, TIMEOUT_HEADER
from dragoman_service.http_api.problem_details import HTTP_STATUSES, MEDIA_TYPE
from dragoman_service.language_tags import LANGUAGE_TAG_PATTERN
from dragoman_service.models.model import REFERENCE_PATTERN
from dragoman_service.observability.usage import WARNINGS_KEY

_SCALARS: Mapping[int, dict[str, Any]] = {
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number"},
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
}
_INT64 = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^-?[0-9]{1,19}$"}, {"type": "null"}]}
_DURATION = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?s$"}

_LANGUAGE = {"pattern": f"^({LANGUAGE_TAG_PATTERN})?$"}
_PATTERNS: Mapping[str, dict[str, str]] = {
    "sourceLanguage": _LANGUAGE,
    "targetLanguage": _LANGUAGE,
    "pivotLanguages": {"pattern": f"^{LANGUAGE_TAG_PATTERN}$"},
    "requestId": {"pattern": "^[ -~]*$"},
    "model": {"pattern": f"^({REFERENCE_PATTERN})?$"},
}
"""Patterns of fields of requests, by JSON name; ranges and defaults are declared in the proto file."""

_STRING = {"type": "string"}


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_PROBLEM = {
    **_object(
        {
            **dict.fromkeys(("type", "title", "detail", "code", "reason", "requestId"), _STRING),
            "status": {"type": "integer"},
            "domain": {"const": "dragoman"},
            "metadata": {"type": "object", "additionalProperties": _STRING},
            "violations": {
                "type": "array",
                "items": _object({"field": _STRING, "description": _STRING}, "field", "description"),
            },
            "retryDelay": _DURATION,
        },
        *("type", "title", "status", "detail"),
    ),
    "description": "Error (RFC 9457); `code`, `reason` and `violations` have the values of the gRPC status.",
}

_LANGUAGE_TARGETS = {"type": "array", "items": _STRING, "minItems": 1}
_LANGUAGE_PAIRS = _object(
    {"sourceLanguage": _STRING, "targetLanguages": _LANGUAGE_TARGETS}, "sourceLanguage", "targetLanguages"
)
_LANGUAGES = _object({"languages": {"type": "array", "items": _LANGUAGE_PAIRS}}, "languages")

_EVENT = {
    "type": "object",
    "description": "Events: the sentences in order, then `end`, or `error` if translation fails.",
    "oneOf": [
        {
            "properties": {
                "event": {"const": kind},
                "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": content},
            },
            "required": ["event", "data"],
        }
        for kind, content in (
            ("sentence", {"$ref": "#/components/schemas/TranslatedSentence"}),
            ("end", {"type": "object"}),
            ("error", {"$ref": "#/components/schemas/Problem"}),
        )
    ],
}

_READ_FAILURES = (*HTTP_STATUSES.values(), HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
_BODY_FAILURES = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)

_HEADERS = [
    {
        "name": "X-Request-Id",
        "in": "header",
        "description": "Id of the request in responses and logs; the id in the body takes precedence.",
        "schema": {"type": "string"},
    },
    {
        "name": TIMEOUT_HEADER.title(),
        "in": "header",
        "description": "Time limit of the request in seconds, above 0.",
        "schema": {"type": "string", "pattern": rf"^(?=[0-9.]*[1-9]){SECONDS_PATTERN}$"},
    },
]

_WARNING_HEADER = {
    WARNINGS_KEY.title(): {
        "description": "Number of warnings of each kind, such as `NUMBER_CHANGED=2, TRUNCATED=1`. Absent: no warnings.",
        "schema": {"type": "string", "pattern": "^[A-Z_]+=[0-9]+(, [A-Z_]+=[0-9]+)*$"},
    }
}


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM, "Languages": _LANGUAGES}
    for message in (pb.TranslateRequest, pb.TranslateDocumentRequest, pb.DetectLanguageRequest):
        _add_message(schemas, message.DESCRIPTOR, is_request=True)
    for response in (
        pb.TranslateResponse,
        pb.TranslatedSentence,
        pb.DetectLanguageResponse,
        pb.ListModelsResponse,
        pb.GetModelResponse,
        pb.ListGlossariesResponse,
    ):
        _add_message(schemas, response.DESCRIPTOR, is_request=False)
    model = {
        "name": "model",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "pattern": f"^{REFERENCE_PATTERN}$"},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dragoman",
            "version": "v1",
            "description": "The API dragoman.v1 in the JSON mapping of protobuf. Paths for clients of other services "
            "(`/translate`, `/languages`, `/detect`, `/v2`, `/v3`) are documented by these services.",
        },
        "paths": {
            "/v1/translate": _operation(
                "Translate",
                "Translate texts of one language pair",
                _json("TranslateResponse"),
                "TranslateRequest",
                headers=_WARNING_HEADER,
            ),
            "/v1/translate/document": _operation(
                "TranslateDocument",
                "Translate one long text",
                {"text/event-stream": {"schema": _EVENT}},
                "TranslateDocumentRequest",
            ),
            "/v1/detect": _operation(
                "DetectLanguage",
                "Detect the language of each text",
                _json("DetectLanguageResponse"),
                "DetectLanguageRequest",
            ),
            "/v1/models": _operation("ListModels", "List all models", _json("ListModelsResponse")),
            "/v1/models/{model}": {"parameters": [model]}
            | _operation("GetModel", "Describe one model: name, name/version or name@label", _json("GetModelResponse")),
            "/v1/languages": _operation(
                "ListLanguages", "List source languages and their target languages", _json("Languages")
            ),
            "/v1/glossaries": _operation("ListGlossaries", "List the glossaries", _json("ListGlossariesResponse")),
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],  # the operator decides whether a key is required
    }


def _operation(
    name: str,
    summary: str,
    response: dict[str, Any],
    request: str | None = None,
    *,
    headers: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the operation of a path; `request` is the schema of its body, without which the method is GET.

    `headers` describes the headers of its response.
    """
    problem = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    failures = sorted({*_READ_FAILURES, *(_BODY_FAILURES if request else ())})
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "parameters": _HEADERS,
        "responses": {
            "200": {"description": "OK", "content": response} | ({"headers": headers} if headers else {}),
            **{str(int(code)): {"description": code.phrase, "content": problem} for code in failures},
        },
    }
    if request:
        operation["requestBody"] = {"required": True, "content": _json(request)}
    return {"post" if request else "get": operation}


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _add_message(schemas: dict[str, Any], descriptor: Any, *, is_request: bool) -> None:
    """Add a message and its nested messages; a request has no unknown fields, a response has all of its fields."""
    if descriptor.name in schemas:
        return
    schema: dict[str, Any] = {"type": "object"}
    schemas[descriptor.name] = schema  # before its fields, because a message can contain itself
    schema["properties"] = {
        field.json_name: _property(schemas, field, is_request=is_request)
        for field in descriptor.fields
        if field.message_type is None or field.message_type.file.package != "google.rpc"
    }
    if is_request:
        schema["additionalProperties"] = False
        required = [field.json_name for field in descriptor.fields if _is_required(field_range(field))]
    else:
        required = [field.json_name for field in descriptor.fields if field.is_repeated or not field.has_presence]
    if required:
        schema["required"] = required


def _is_required(option: OptionRange) -> bool:
    return option.min_items > 0 if option.is_list else option.min_characters > 0


def _property(schemas: dict[str, Any], field: Any, *, is_request: bool) -> dict[str, Any]:
    schema = _item(schemas, field, is_request=is_request)
    option = field_range(field)
    if field.is_repeated:
        schema = {"type": "array", "items": schema}
        if is_request:
            bounds = {"minItems": option.min_items or None, "maxItems": option.max_items}
            schema |= {name: value for name, value in bounds.items() if value is not None}
    if not is_request or "anyOf" in schema or _is_required(option):
        return schema
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    schema = {"anyOf": [schema, {"type": "null"}]}  # null means absent
    return schema if option.default is None else {**schema, "default": option.default}


def _item(schemas: dict[str, Any], field: Any, *, is_request: bool) -> dict[str, Any]:
    if field.message_type is not None:
        if field.message_type.full_name == "google.protobuf.Duration":
            return _DURATION
        _add_message(schemas, field.message_type, is_request=is_request)
        return {"$ref": f"#/components/schemas/{field.message_type.name}"}
    if field.enum_type is not None:
        members = field.enum_type.values
        numbers = [member.number for member in members] if is_request else []
        return {"enum": [*(member.name for member in members), *numbers]}
    if field.cpp_type == FieldDescriptor.CPPTYPE_INT64:
        return _INT64
    scalar = _SCALARS[field.cpp_type]
    return scalar | _bounds(field_range(field)) | _PATTERNS.get(field.json_name, {}) if is_request else scalar


def _bounds(option: OptionRange) -> dict[str, Any]:
    """Return the range of a number or the length of a string, of each item for a list."""
    if option.type is str:
        lengths = {"minLength": option.min_characters or None, "maxLength": option.max_characters}
        return {name: value for name, value in lengths.items() if value is not None}
    low = "exclusiveMinimum" if option.exclusive_minimum else "minimum"
    high = "exclusiveMaximum" if option.exclusive_maximum else "maximum"
    bounds = {low: option.minimum, high: option.maximum} if option.type in {int, float} else {}
    return {name: value for name, value in bounds.items() if math.isfinite(value)}
