"""The API over HTTP: messages as JSON, documents as server-sent events.

Plain Starlette routes: the messages are defined in the proto file, and pydantic models for FastAPI would define them a
second time.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from http import HTTPStatus

import grpc
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.http_api.context import Endpoint, HttpContext
from dragoman_service.http_api.json_mapping import as_dict, parsed_json, serialized_json, to_json
from dragoman_service.http_api.openapi import openapi_document
from dragoman_service.http_api.problem_details import Problem, problem
from dragoman_service.middleware import conversion, error_mapping
from dragoman_service.middleware.flow_control import ResponseStream
from dragoman_service.middleware.pipeline import (
    REQUEST_ID_KEY,
    Backend,
    RequestPipeline,
    as_status,
    resolve_request_id,
)
from dragoman_service.middleware.settings import GrpcSettings
from dragoman_service.models.model import ModelState, ModelStatus
from dragoman_service.request import RequestRecord

_SERVICES = pb.DESCRIPTOR.services_by_name
TRANSLATION_SERVICE: str = _SERVICES["TranslationService"].full_name
MODEL_SERVICE: str = _SERVICES["ModelService"].full_name

_OPENAPI_DOCUMENT = to_json(openapi_document())

Outcome = bytes | error_mapping.RpcError | None
"""A response, an error, or None if a stream has sent all its messages."""


class HttpApi:
    """Answers the routes of one API over HTTP."""

    def __init__(self, pipeline: RequestPipeline, backend: Backend, settings: GrpcSettings) -> None:
        """`settings` limits calls of all transports."""
        self._pipeline = pipeline
        self._backend = backend
        self._settings = settings


class TranslationApi(HttpApi):
    """Answers the routes of the API."""

    def routes(self) -> list[Route]:
        """Return the routes of the API."""
        posted = {
            "/v1/translate": self._translate,
            "/v1/translate/document": self._stream_document,
            "/v1/detect": self._detect_language,
        }
        read = {
            "/v1/models": self._list_models,
            "/v1/models/{model:path}": self._get_model,
            "/v1/languages": self._list_languages,
            "/v1/glossaries": self._list_glossaries,
        }
        return [
            *(Route(path, self._endpoint(answer), methods=["POST"]) for path, answer in posted.items()),
            *(Route(path, self._endpoint(answer), methods=["GET"]) for path, answer in read.items()),
            Route("/openapi.json", _openapi, methods=["GET"]),
        ]

    def _endpoint(self, answer: Callable[[HttpContext], Awaitable[None]]) -> ASGIApp:
        return Endpoint(answer, self._settings)

    async def _translate(self, context: HttpContext) -> None:
        record = self._pipeline.start(f"/{TRANSLATION_SERVICE}/Translate", context)

        async def respond(raw_request: bytes) -> bytes:
            request = await parsed_json(raw_request, pb.TranslateRequest)
            resolve_request_id(record, request)
            record.priority = conversion.from_priority(request.priority)
            result = await self._backend.translator.translate(conversion.from_translate_request(request), record)
            return await serialized_json(conversion.to_translate_response(result, request_id=record.request_id))

        await _send(await self._pipeline.answer(record, context, respond, as_status), record, context)

    async def _detect_language(self, context: HttpContext) -> None:
        record = self._pipeline.start(f"/{TRANSLATION_SERVICE}/DetectLanguage", context)

        async def respond(raw_request: bytes) -> bytes:
            request = await parsed_json(raw_request, pb.DetectLanguageRequest)
            texts, target_language = conversion.from_detect_language_request(request)
            detected = await self._backend.translator.detect_languages(texts, record, target_language=target_language)
            return await serialized_json(conversion.to_detect_language_response(detected))

        await _send(await self._pipeline.answer(record, context, respond, as_status), record, context)

    async def _stream_document(self, context: HttpContext) -> None:
        record = self._pipeline.start(f"/{TRANSLATION_SERVICE}/TranslateDocument", context)

        async def respond(raw_request: bytes) -> None:
            request = await parsed_json(raw_request, pb.TranslateDocumentRequest)
            resolve_request_id(record, request)
            context.response_headers.append((REQUEST_ID_KEY.encode(), record.request_id.encode()))
            await self._send_sentences(request, record, context)

        with ExitStack() as slots:
            outcome = await self._pipeline.answer(record, context, respond, as_status, streams=slots)
            await _send(outcome, record, context)

    async def _send_sentences(
        self, request: pb.TranslateDocumentRequest, record: RequestRecord, context: HttpContext
    ) -> None:
        """Send the sentences of a document as server-sent events (WHATWG HTML, section 9.2)."""
        record.priority = conversion.from_priority(request.priority)
        document = conversion.from_translate_document_request(request)
        stream, index = ResponseStream(record, context, self._settings.stream_idle_timeout_s), 0
        async with contextlib.aclosing(self._backend.translator.translate_document(document, record)) as sentences:
            async for sentence in sentences:
                message = conversion.to_translated_sentence(sentence, index=index, request_id=record.request_id)
                await stream.write(event("sentence", await serialized_json(message)))
                index += 1

    async def _list_models(self, context: HttpContext) -> None:
        def list_models() -> dict[str, object]:
            statuses = self._backend.models.list_models()
            return as_dict(conversion.to_list_models_response(statuses, self._backend.limits))

        await self._answer_get(context, "ListModels", list_models)

    async def _get_model(self, context: HttpContext) -> None:
        def get_model() -> dict[str, object]:
            name = conversion.from_model_name(context.path_parameters["model"])
            model = conversion.to_model(self._backend.models.get_model(name), self._backend.limits)
            return as_dict(pb.GetModelResponse(model=model))

        await self._answer_get(context, "GetModel", get_model)

    async def _list_languages(self, context: HttpContext) -> None:
        def list_languages() -> dict[str, object]:
            pairs = language_pairs(self._backend.models.list_models())
            languages = [
                {"sourceLanguage": source, "targetLanguages": sorted(pairs[source])} for source in sorted(pairs)
            ]
            return {"languages": languages}

        await self._answer_get(context, "ListModels", list_languages)

    async def _list_glossaries(self, context: HttpContext) -> None:
        def list_glossaries() -> dict[str, object]:
            return as_dict(conversion.to_list_glossaries_response(self._backend.glossaries.all()))

        await self._answer_get(context, "ListGlossaries", list_glossaries)

    async def _answer_get(self, context: HttpContext, method: str, answer: Callable[[], dict[str, object]]) -> None:
        """Answer a request without a body."""
        record = self._pipeline.start(f"/{MODEL_SERVICE}/{method}", context)

        async def respond(_no_body: bytes) -> bytes:
            context.check_headers()
            return to_json(answer())

        outcome = await self._pipeline.answer(record, context, respond, as_status, raw_request=b"")
        await _send(outcome, record, context)


async def _openapi(_request: Request) -> Response:
    return Response(_OPENAPI_DOCUMENT, media_type="application/json")


def event(kind: str, data: bytes) -> bytes:
    """Return a server-sent event with one line of data."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def language_pairs(statuses: Iterable[ModelStatus]) -> dict[str, set[str]]:
    """Return the target languages of each source language over all models that are ready."""
    targets: dict[str, set[str]] = {}
    for status in statuses:
        if status.state is ModelState.READY:
            for group in status.language_groups:
                for source in group.sources:
                    others = set(group.targets).difference([source])
                    targets.setdefault(source, set()).update(others or group.targets)
    return targets


async def _send(outcome: Outcome, record: RequestRecord, context: HttpContext) -> None:
    if not context.has_begun:
        response = (
            _problem(outcome, record, context).response()
            if isinstance(outcome, error_mapping.RpcError)
            else Response(outcome, HTTPStatus.OK, media_type="application/json")
        )
        response.headers[REQUEST_ID_KEY] = record.request_id
        await context.respond(response)
    elif isinstance(outcome, error_mapping.RpcError):
        await context.end(event("error", to_json(_problem(outcome, record, context).members)))
    else:
        await context.end(event("end", b"{}"))


def _problem(error: error_mapping.RpcError, record: RequestRecord, context: HttpContext) -> Problem:
    is_caller_late = error.code is grpc.StatusCode.DEADLINE_EXCEEDED and not context.is_read
    http_status = HTTPStatus.REQUEST_TIMEOUT if is_caller_late else context.http_status
    return problem(error, request_id=record.request_id, http_status=http_status)
