"""The OpenAPI 3.1 document of the API; messages come from the descriptors of the contract, so they cannot differ."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from dragoman.v1 import translation_pb2 as pb
from dragoman_service import request
from dragoman_service.http_api.context import SECONDS_PATTERN, TIMEOUT_HEADER
from dragoman_service.http_api.problem_details import HTTP_STATUSES, MEDIA_TYPE
from dragoman_service.middleware.conversion import MAX_LANGUAGE_CHARACTERS
from dragoman_service.models.model import LANGUAGE_TAG_PATTERN, REFERENCE_PATTERN
from dragoman_service.request import MAX_NAME_CHARACTERS

_SCALARS: Mapping[int, dict[str, Any]] = {
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number"},
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
}
_INT64 = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^-?[0-9]{1,19}$"}, {"type": "null"}]}
_DURATION = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?s$"}

_LANGUAGE = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_LANGUAGE_CHARACTERS,
    "pattern": f"^{LANGUAGE_TAG_PATTERN}$",
}
_REQUIRED: Mapping[str, dict[str, Any]] = {
    "texts": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": request.MAX_TEXTS},
    "text": {"type": "string", "minLength": 1},
    "targetLanguage": _LANGUAGE,
}
"""Fields without which a request is refused, by their names in JSON."""

_RANGES: Mapping[str, dict[str, Any]] = {
    "sourceLanguage": {"maxLength": MAX_LANGUAGE_CHARACTERS, "pattern": f"^({LANGUAGE_TAG_PATTERN})?$"},
    "targetLanguage": {"maxLength": MAX_LANGUAGE_CHARACTERS, "pattern": f"^({LANGUAGE_TAG_PATTERN})?$"},
    "pivotLanguages": {
        "minLength": 1,
        "maxLength": MAX_LANGUAGE_CHARACTERS,
        "pattern": f"^{LANGUAGE_TAG_PATTERN}$",
    },
    "beamSize": {"minimum": 1, "maximum": request.MAX_BEAM_SIZE},
    "numHypotheses": {"minimum": 1, "maximum": request.MAX_BEAM_SIZE},
    "lengthPenalty": {"minimum": 0, "maximum": request.MAX_LENGTH_PENALTY},
    "minTargetTokens": {"minimum": 0, "maximum": request.MAX_TARGET_TOKENS - 1},
    "maxTargetTokens": {"minimum": 1, "maximum": request.MAX_TARGET_TOKENS},
    "noRepeatNgramSize": {"minimum": 0, "maximum": request.MAX_NGRAM_SIZE},
    "repetitionPenalty": {"minimum": 1, "maximum": request.MAX_REPETITION_PENALTY},
    "coveragePenalty": {"minimum": 0, "maximum": request.MAX_COVERAGE_PENALTY},
    "temperature": {"minimum": request.MIN_TEMPERATURE, "maximum": request.MAX_TEMPERATURE},
    "topK": {"minimum": 1, "maximum": request.MAX_TOP_K},
    "topP": {"exclusiveMinimum": 0, "maximum": 1},
    "targetPrefix": {"maxLength": request.MAX_PREFIX_CHARACTERS},
    "requestId": {"maxLength": MAX_NAME_CHARACTERS, "pattern": "^[ -~]*$"},
    "model": {"maxLength": MAX_NAME_CHARACTERS, "pattern": f"^({REFERENCE_PATTERN})?$"},
    "glossary": {"maxLength": MAX_NAME_CHARACTERS},
}
"""Caps of fields of requests, by their names in JSON."""

_PROBLEM = {
    "type": "object",
    "description": "Why a request failed (RFC 9457); `code`, `reason` and `violations` are those of the gRPC status.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "reason": {"type": "string"},
        "domain": {"const": "dragoman"},
        "requestId": {"type": "string"},
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
        "violations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "description": {"type": "string"}},
                "required": ["field", "description"],
            },
        },
        "retryDelay": _DURATION,
    },
    "required": ["type", "title", "status", "detail"],
}

_LANGUAGES = {
    "type": "object",
    "properties": {
        "languages": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "sourceLanguage": {"type": "string"},
                    "targetLanguages": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                },
                "required": ["sourceLanguage", "targetLanguages"],
            },
        }
    },
    "required": ["languages"],
}

_EVENT = {
    "type": "object",
    "description": "Each event: a sentence in order, then `end`, or `error` if the rest will not come.",
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
_POST_FAILURES = (
    *_READ_FAILURES,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)

_HEADERS = [
    {
        "name": "X-Request-Id",
        "in": "header",
        "description": "Names the request in answers and logs, unless its body does.",
        "schema": {"type": "string"},
    },
    {
        "name": TIMEOUT_HEADER.title(),
        "in": "header",
        "description": "Seconds allowed to the request, more than 0.",
        "schema": {"type": "string", "pattern": rf"^(?=[0-9.]*[1-9]){SECONDS_PATTERN}$"},
    },
]


def openapi_document() -> dict[str, Any]:
    """Return the document."""
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
            "description": "The contract dragoman.v1 in the JSON mapping of protobuf. Paths that serve clients of "
            "other services (`/translate`, `/languages`, `/detect`, `/v2`, `/v3`) are described by their owners.",
        },
        "paths": {
            "/v1/translate": {
                "post": _posting("Translate", "Translate texts of one language pair", "TranslateRequest")
                | _answered(_json("TranslateResponse"), _POST_FAILURES)
            },
            "/v1/translate/document": {
                "post": _posting("TranslateDocument", "Translate one long text", "TranslateDocumentRequest")
                | _answered({"text/event-stream": {"schema": _EVENT}}, _POST_FAILURES)
            },
            "/v1/detect": {
                "post": _posting("DetectLanguage", "Tell which language each text is in", "DetectLanguageRequest")
                | _answered(_json("DetectLanguageResponse"), _POST_FAILURES)
            },
            "/v1/models": {
                "get": _reading("ListModels", "List all models")
                | _answered(_json("ListModelsResponse"), _READ_FAILURES)
            },
            "/v1/models/{model}": {
                "parameters": [model],
                "get": _reading("GetModel", "Describe one model: name, name/version or name@label")
                | _answered(_json("GetModelResponse"), _READ_FAILURES),
            },
            "/v1/languages": {
                "get": _reading("ListLanguages", "List which languages are translated into which")
                | _answered(_json("Languages"), _READ_FAILURES)
            },
            "/v1/glossaries": {
                "get": _reading("ListGlossaries", "List the glossaries that a request may name")
                | _answered(_json("ListGlossariesResponse"), _READ_FAILURES)
            },
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],  # whether one is needed is for the operator to say
    }


def _posting(name: str, summary: str, schema: str) -> dict[str, Any]:
    body = {"required": True, "content": _json(schema)}
    return {"operationId": name, "summary": summary, "parameters": _HEADERS, "requestBody": body}


def _reading(name: str, summary: str) -> dict[str, Any]:
    return {"operationId": name, "summary": summary, "parameters": _HEADERS}


def _answered(content: dict[str, Any], failures: Iterable[HTTPStatus]) -> dict[str, Any]:
    problem = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    failed = {str(int(code)): {"description": code.phrase, "content": problem} for code in sorted(set(failures))}
    return {"responses": {"200": {"description": "OK", "content": content}, **failed}}


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _add_message(schemas: dict[str, Any], descriptor: Any, *, is_request: bool) -> None:
    """Add a message and those that it holds; one of a request takes no other fields, one of a response has all."""
    if descriptor.name in schemas:
        return
    schema: dict[str, Any] = {"type": "object"}
    schemas[descriptor.name] = schema  # before its fields: it may hold itself
    schema["properties"] = {
        field.json_name: _property(schemas, field, is_request=is_request)
        for field in descriptor.fields
        if field.message_type is None or field.message_type.file.package != "google.rpc"
    }
    if is_request:
        schema["additionalProperties"] = False
        is_optional = {"targetLanguage"} if descriptor is pb.DetectLanguageRequest.DESCRIPTOR else set[str]()
        required = [name for name in schema["properties"] if name in _REQUIRED.keys() - is_optional]
        schema["properties"].update({name: _REQUIRED[name] for name in required})
    else:
        required = [field.json_name for field in descriptor.fields if field.is_repeated or not field.has_presence]
    if required:
        schema["required"] = required


def _property(schemas: dict[str, Any], field: Any, *, is_request: bool) -> dict[str, Any]:
    item = _item(schemas, field, is_request=is_request)
    if field.is_repeated:
        item = {"type": "array", "items": item}
    if not is_request or "anyOf" in item:
        return item
    if "enum" in item:
        return {"enum": [*item["enum"], None]}
    return {"anyOf": [item, {"type": "null"}]}  # which stands for absent


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
    return _SCALARS[field.cpp_type] | (_RANGES.get(field.json_name, {}) if is_request else {})
