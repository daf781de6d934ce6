"""The API over HTTP: messages as JSON, documents as server-sent events.

Plain Starlette routes: the messages are defined in the proto file, and pydantic models for FastAPI would define them a
second time.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, ClassVar

import grpc
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.calls import error_mapping
from dragoman_service.calls.handlers import Handler, Handlers
from dragoman_service.calls.pipeline import REQUEST_ID_KEY, Call, RequestPipeline, ResponseStream
from dragoman_service.calls.policy import (
    DETECT_LANGUAGE,
    GET_MODEL,
    LIST_GLOSSARIES,
    LIST_MODELS,
    TRANSLATE,
    TRANSLATE_DOCUMENT,
    CallPolicy,
)
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, Endpoint, HttpContext
from dragoman_service.http_api.json_mapping import as_dict, parsed_json, serialized_json, to_json
from dragoman_service.http_api.openapi import openapi_document
from dragoman_service.http_api.problem_details import Problem, problem
from dragoman_service.models.model import ModelState, ModelStatus
from dragoman_service.observability.usage import WARNINGS_KEY

_OPENAPI_DOCUMENT = openapi_document()
_NUM_PUBLIC_URLS = 16  # cached documents: clients choose the host if any is allowed

ResponseBody = bytes | Response | None  # JSON, a whole response, or None if a stream has sent all its messages

Respond = Callable[[HttpContext, Call, bytes], Awaitable[ResponseBody]]
"""Returns the response to a request with a body."""


class HttpApi(ABC):
    """Answers the routes of one API over HTTP."""

    media_types: ClassVar[tuple[str, ...]] = (JSON_MEDIA_TYPE,)  # of request bodies
    late_status: ClassVar[HTTPStatus] = HTTPStatus.GATEWAY_TIMEOUT  # of a request that does not arrive in time

    def __init__(self, pipeline: RequestPipeline, handlers: Handlers) -> None:
        self.pipeline = pipeline
        self.handlers = handlers
        self.settings = pipeline.bounds.settings

    @abstractmethod
    def routes(self) -> list[Route]:
        """Return the routes of the API."""

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

    def method(self, policy: CallPolicy, respond: Respond) -> Endpoint:
        """Return the application of a route with the policy of a method."""

        async def answer(context: HttpContext) -> None:
            await self.answer(context, policy, respond)

        return self.endpoint(answer)

    async def answer(
        self, context: HttpContext, policy: CallPolicy, respond: Respond, *, raw_request: bytes | None = None
    ) -> None:
        """Answer a request; without `raw_request`, its body is read if it has one and the policy says so."""
        if context.is_read:
            raw_request = raw_request or b""
        with self.pipeline.call(policy, context) as call:
            outcome = await self.pipeline.answer(
                call, partial(self._respond, context, call, respond), raw_request=raw_request
            )
            await self._send(context, call, outcome)

    async def _respond(self, context: HttpContext, call: Call, respond: Respond, body: bytes) -> ResponseBody:
        if not call.policy.is_translation:  # without a body, they are not checked yet
            context.check_headers()
        return await respond(context, call, body)

    async def _send(self, context: HttpContext, call: Call, outcome: ResponseBody | error_mapping.RpcError) -> None:
        if isinstance(outcome, error_mapping.RpcError):
            is_caller_late = outcome.code is grpc.StatusCode.DEADLINE_EXCEEDED and not context.is_read
            http_status = self.late_status if is_caller_late else context.http_status
            error = problem(outcome, request_id=call.request_id, http_status=http_status)
            if context.has_begun:
                await context.end(event("error", to_json(error.members)))
                return
            error, message = self.adapted_error(error, context)
            response = self.error_response(error, message)
            response.headers.update({**error.headers, **context.error_headers})
        elif context.has_begun:
            await context.end(event("end", b"{}"))
            return
        else:
            response = outcome if isinstance(outcome, Response) else Response(outcome, media_type=JSON_MEDIA_TYPE)
        response.headers[REQUEST_ID_KEY] = call.request_id
        if call.usage.warnings:
            response.headers[WARNINGS_KEY] = call.usage.warning_header
        await context.respond(response)


class TranslationApi(HttpApi):
    """Answers the routes of the API."""

    late_status = HTTPStatus.REQUEST_TIMEOUT

    def routes(self) -> list[Route]:
        """Return the routes of the API."""
        handlers = self.handlers
        posted = {
            "/v1/translate": self._message(TRANSLATE, pb.TranslateRequest, handlers.translate),
            "/v1/translate/document": self.method(TRANSLATE_DOCUMENT, self._stream_document),
            "/v1/detect": self._message(DETECT_LANGUAGE, pb.DetectLanguageRequest, handlers.detect_language),
        }
        read = {
            "/v1/models": self._reading(LIST_MODELS, pb.ListModelsRequest, handlers.list_models),
            "/v1/models/{model:path}": self._reading(GET_MODEL, pb.GetModelRequest, handlers.get_model),
            "/v1/languages": self.method(replace(LIST_MODELS, reads_message=False), self._list_languages),
            "/v1/glossaries": self._reading(LIST_GLOSSARIES, pb.ListGlossariesRequest, handlers.list_glossaries),
        }
        return [
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posted.items()),
            *(Route(path, endpoint, methods=["GET"]) for path, endpoint in read.items()),
            Route("/openapi.json", _openapi, methods=["GET"]),
        ]

    def error_response(self, error: Problem, _message: str) -> Response:
        """Return problem details."""
        return error.response()

    def _message(self, policy: CallPolicy, kind: type[Any], handler: Handler) -> Endpoint:
        """Return the application of a route whose request and response are messages as JSON."""

        async def respond(_context: HttpContext, call: Call, body: bytes) -> bytes:
            request = await parsed_json(body, kind)
            self.pipeline.identify(call, request)
            return await serialized_json(await handler(request, call))

        return self.method(policy, respond)

    def _reading(self, policy: CallPolicy, kind: type[Any], handler: Handler) -> Endpoint:
        """Return the application of a route without a body, whose path has the fields of the request."""

        async def respond(context: HttpContext, call: Call, _body: bytes) -> bytes:
            return to_json(as_dict(await handler(kind(**context.path_parameters), call)))

        return self.method(replace(policy, reads_message=False), respond)

    async def _stream_document(self, context: HttpContext, call: Call, body: bytes) -> None:
        """Send the sentences of a document as server-sent events (WHATWG HTML, section 9.2)."""
        request = await parsed_json(body, pb.TranslateDocumentRequest)
        self.pipeline.identify(call, request)
        context.response_headers.append((REQUEST_ID_KEY.encode(), call.request_id.encode()))
        stream = ResponseStream(call, self.settings.stream_idle_timeout_s)
        async with contextlib.aclosing(self.handlers.translate_document(request, call)) as sentences:
            async for sentence in sentences:
                await stream.write(event("sentence", await serialized_json(sentence)))

    async def _list_languages(self, _context: HttpContext, _call: Call, _body: bytes) -> bytes:
        pairs = language_pairs(self.handlers.models.list_models())
        languages = [{"sourceLanguage": source, "targetLanguages": sorted(pairs[source])} for source in sorted(pairs)]
        return to_json({"languages": languages})


async def _openapi(request: Request) -> Response:
    return Response(_openapi_of(request.state.public_url), media_type=JSON_MEDIA_TYPE)


@lru_cache(maxsize=_NUM_PUBLIC_URLS)
def _openapi_of(public_url: str) -> bytes:
    return to_json({**_OPENAPI_DOCUMENT, "servers": [{"url": public_url}]})


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
