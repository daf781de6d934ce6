"""The API over HTTP: messages as JSON, documents as server-sent events.

Plain Starlette routes: the messages are defined in the proto file, and pydantic models for FastAPI would define them a
second time.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus
from typing import ClassVar

import grpc
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, Endpoint, HttpContext
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
from dragoman_service.models.model import ModelState, ModelStatus
from dragoman_service.request import WARNINGS_KEY, RequestRecord

_SERVICES = pb.DESCRIPTOR.services_by_name
TRANSLATION_SERVICE: str = _SERVICES["TranslationService"].full_name
MODEL_SERVICE: str = _SERVICES["ModelService"].full_name

_OPENAPI_DOCUMENT = to_json(openapi_document())

ResponseBody = bytes | Response | None  # JSON, a whole response, or None if a stream has sent all its messages

Handler = Callable[[HttpContext, RequestRecord, bytes], Awaitable[ResponseBody]]
"""Returns the response to a request with a body."""


class HttpApi(ABC):
    """Answers the routes of one API over HTTP."""

    media_types: ClassVar[tuple[str, ...]] = (JSON_MEDIA_TYPE,)  # of request bodies
    late_status: ClassVar[HTTPStatus] = HTTPStatus.GATEWAY_TIMEOUT  # of a request that does not arrive in time

    def __init__(self, pipeline: RequestPipeline, backend: Backend) -> None:
        self.pipeline = pipeline
        self.backend = backend
        self.settings = pipeline.bounds.settings

    @abstractmethod
    def error_response(self, error: Problem, message: str) -> Response:
        """Return an error in the form of the API."""

    def adapted_error(self, error: Problem, _context: HttpContext) -> tuple[Problem, str]:
        """Return an error and its message with the status, the reason and the field names of the API."""
        return error, error.members["detail"]

    def endpoint(
        self, answer: Callable[[HttpContext], Awaitable[None]], media_types: tuple[str, ...] | None = None
    ) -> Endpoint:
        """Return the application of a route; `media_types` replaces the media types of the API."""
        return Endpoint(answer, self.settings, media_types or self.media_types)

    def translation(self, respond: Handler, method: str = "Translate", *, is_stream: bool = False) -> Endpoint:
        """Return the application of a route with the limits and the permission of a method of TranslationService."""

        async def answer(context: HttpContext) -> None:
            path = f"/{TRANSLATION_SERVICE}/{method}"
            with ExitStack() as slots:
                await self.answer(context, path, partial(respond, context), streams=slots if is_stream else None)

        return self.endpoint(answer)

    def reading(
        self, respond: Handler, method: str = "ListModels", *, is_open: bool = False, has_body: bool = True
    ) -> Endpoint:
        """Return the application of a route that counts as a method of ModelService.

        Requests need no key if the route `is_open`; their bodies are not read.
        """

        async def answer(context: HttpContext) -> None:
            async def checked(record: RequestRecord, body: bytes) -> ResponseBody:
                context.check_headers()
                return await respond(context, record, body)

            body = b"" if is_open or not has_body else None
            await self.answer(context, f"/{MODEL_SERVICE}/{method}", checked, raw_request=body, is_open=is_open)

        return self.endpoint(answer)

    async def answer(
        self,
        context: HttpContext,
        path: str,
        respond: Callable[[RequestRecord, bytes], Awaitable[ResponseBody]],
        *,
        raw_request: bytes | None = None,
        streams: ExitStack | None = None,
        is_open: bool = False,
    ) -> None:
        """Answer a request as the method with this path; see `RequestPipeline.answer` for the other parameters."""
        record = self.pipeline.start(path, context)
        if context.is_read:
            raw_request = raw_request or b""
        outcome = await self.pipeline.answer(
            record,
            context,
            partial(respond, record),
            as_status,
            raw_request=raw_request,
            streams=streams,
            is_open=is_open,
        )
        if isinstance(outcome, error_mapping.RpcError):
            is_caller_late = outcome.code is grpc.StatusCode.DEADLINE_EXCEEDED and not context.is_read
            http_status = self.late_status if is_caller_late else context.http_status
            error = problem(outcome, request_id=record.request_id, http_status=http_status)
            if context.has_begun:
                await context.end(event("error", to_json(error.members)))
                return
            error, message = self.adapted_error(error, context)
            response = self.error_response(error, message)
            response.headers.update(error.headers)
        elif context.has_begun:
            await context.end(event("end", b"{}"))
            return
        else:
            response = outcome if isinstance(outcome, Response) else Response(outcome, media_type=JSON_MEDIA_TYPE)
        response.headers[REQUEST_ID_KEY] = record.request_id
        if record.warnings:
            response.headers[WARNINGS_KEY] = record.warning_header
        await context.respond(response)


class TranslationApi(HttpApi):
    """Answers the routes of the API."""

    late_status = HTTPStatus.REQUEST_TIMEOUT

    def routes(self) -> list[Route]:
        """Return the routes of the API."""
        posted = {
            "/v1/translate": self.translation(self._translate),
            "/v1/translate/document": self.translation(self._stream_document, "TranslateDocument", is_stream=True),
            "/v1/detect": self.translation(self._detect_language, "DetectLanguage"),
        }
        read = {
            "/v1/models": self.reading(self._list_models, has_body=False),
            "/v1/models/{model:path}": self.reading(self._get_model, "GetModel", has_body=False),
            "/v1/languages": self.reading(self._list_languages, has_body=False),
            "/v1/glossaries": self.reading(self._list_glossaries, "ListGlossaries", has_body=False),
        }
        return [
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posted.items()),
            *(Route(path, endpoint, methods=["GET"]) for path, endpoint in read.items()),
            Route("/openapi.json", _openapi, methods=["GET"]),
        ]

    def error_response(self, error: Problem, _message: str) -> Response:
        """Return problem details."""
        return error.response()

    async def _translate(self, _context: HttpContext, record: RequestRecord, body: bytes) -> bytes:
        request = await parsed_json(body, pb.TranslateRequest)
        resolve_request_id(record, request)
        record.priority = conversion.from_priority(request.priority)
        result = await self.backend.translator.translate(conversion.from_translate_request(request), record)
        return await serialized_json(conversion.to_translate_response(result, request_id=record.request_id))

    async def _detect_language(self, _context: HttpContext, record: RequestRecord, body: bytes) -> bytes:
        request = await parsed_json(body, pb.DetectLanguageRequest)
        texts, target_language = conversion.from_detect_language_request(request)
        detected = await self.backend.translator.detect_languages(texts, record, target_language=target_language)
        return await serialized_json(conversion.to_detect_language_response(detected))

    async def _stream_document(self, context: HttpContext, record: RequestRecord, body: bytes) -> None:
        """Send the sentences of a document as server-sent events (WHATWG HTML, section 9.2)."""
        request = await parsed_json(body, pb.TranslateDocumentRequest)
        resolve_request_id(record, request)
        context.response_headers.append((REQUEST_ID_KEY.encode(), record.request_id.encode()))
        record.priority = conversion.from_priority(request.priority)
        document = conversion.from_translate_document_request(request)
        stream, index = ResponseStream(record, context, self.settings.stream_idle_timeout_s), 0
        async with contextlib.aclosing(self.backend.translator.translate_document(document, record)) as sentences:
            async for sentence in sentences:
                message = conversion.to_translated_sentence(sentence, index=index, request_id=record.request_id)
                await stream.write(event("sentence", await serialized_json(message)))
                index += 1

    async def _list_models(self, _context: HttpContext, _record: RequestRecord, _body: bytes) -> bytes:
        statuses = self.backend.models.list_models()
        return to_json(as_dict(conversion.to_list_models_response(statuses, self.backend.limits)))

    async def _get_model(self, context: HttpContext, _record: RequestRecord, _body: bytes) -> bytes:
        name = conversion.from_model_name(context.path_parameters["model"])
        model = conversion.to_model(self.backend.models.get_model(name), self.backend.limits)
        return to_json(as_dict(pb.GetModelResponse(model=model)))

    async def _list_languages(self, _context: HttpContext, _record: RequestRecord, _body: bytes) -> bytes:
        pairs = language_pairs(self.backend.models.list_models())
        languages = [{"sourceLanguage": source, "targetLanguages": sorted(pairs[source])} for source in sorted(pairs)]
        return to_json({"languages": languages})

    async def _list_glossaries(self, _context: HttpContext, _record: RequestRecord, _body: bytes) -> bytes:
        return to_json(as_dict(conversion.to_list_glossaries_response(self.backend.glossaries.all())))


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
