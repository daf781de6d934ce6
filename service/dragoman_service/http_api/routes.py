"""The contract over HTTP: JSON in and out, documents as events; every request passes the pipeline that gRPC's pass.

Starlette routes and nothing more: messages are defined by the contract, and models of pydantic, as FastAPI wants them,
would define them a second time.
"""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from http import HTTPStatus

import grpc
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.grpc_api.servicer import ModelServicer, TranslationServicer, ended_after
from dragoman_service.grpc_api.streaming import ResponseStream
from dragoman_service.http_api.context import Endpoint, HttpContext
from dragoman_service.http_api.json_mapping import as_dict, parsed_json, serialized_json, to_json
from dragoman_service.http_api.openapi import openapi_document
from dragoman_service.http_api.problem_details import Problem, problem
from dragoman_service.middleware import error_mapping
from dragoman_service.middleware.call import REQUEST_ID_KEY, Call
from dragoman_service.middleware.pipeline import RequestPipeline, as_status
from dragoman_service.security.settings import GrpcSettings

_SERVICES = pb.DESCRIPTOR.services_by_name
TRANSLATION_SERVICE: str = _SERVICES["TranslationService"].full_name
MODEL_SERVICE: str = _SERVICES["ModelService"].full_name

_DESCRIPTION = to_json(openapi_document())

Outcome = bytes | error_mapping.Answer | None
"""A response, an error, or None if a stream has sent all there is to send."""


class HttpApi:
    """What an API over HTTP answers with: the pipeline and the methods of gRPC."""

    def __init__(
        self,
        pipeline: RequestPipeline,
        *,
        translation: TranslationServicer,
        models: ModelServicer,
        settings: GrpcSettings,
    ) -> None:
        """`settings` has what is allowed to a call, whichever way it comes."""
        self._pipeline = pipeline
        self._translation = translation
        self._models = models
        self._settings = settings


class TranslationApi(HttpApi):
    """Answers the routes of the contract."""

    def routes(self) -> list[Route]:
        """Return what to add to the application."""
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
            Route("/openapi.json", _described, methods=["GET"]),
        ]

    def _endpoint(self, answer: Callable[[HttpContext], Awaitable[None]]) -> ASGIApp:
        return Endpoint(answer, self._settings)

    async def _translate(self, context: HttpContext) -> None:
        call = self._pipeline.start(f"/{TRANSLATION_SERVICE}/Translate", context)

        async def respond(raw_request: bytes) -> bytes:
            request = await parsed_json(raw_request, pb.TranslateRequest)
            call.resolve_request_id(request)
            async with ended_after(self._settings.allowed_s(call.time_remaining())):
                return await serialized_json(await self._translation.Translate(request, call))

        await _send(await self._pipeline.answer(call, respond, as_status), call, context)

    async def _detect_language(self, context: HttpContext) -> None:
        call = self._pipeline.start(f"/{TRANSLATION_SERVICE}/DetectLanguage", context)

        async def respond(raw_request: bytes) -> bytes:
            request = await parsed_json(raw_request, pb.DetectLanguageRequest)
            async with ended_after(self._settings.allowed_s(call.time_remaining())):
                return await serialized_json(await self._translation.DetectLanguage(request, call))

        await _send(await self._pipeline.answer(call, respond, as_status), call, context)

    async def _stream_document(self, context: HttpContext) -> None:
        call = self._pipeline.start(f"/{TRANSLATION_SERVICE}/TranslateDocument", context)

        async def respond(raw_request: bytes) -> None:
            request = await parsed_json(raw_request, pb.TranslateDocumentRequest)
            call.resolve_request_id(request)
            context.response_headers.append((REQUEST_ID_KEY.encode(), call.request_id.encode()))
            await self._translation.TranslateDocument(request, EventStream(call, self._settings.stream_idle_timeout_s))

        with ExitStack() as places:
            await _send(await self._pipeline.answer(call, respond, as_status, streams=places), call, context)

    async def _list_models(self, context: HttpContext) -> None:
        await self._answer_reading(context, "ListModels", self._listed)

    async def _get_model(self, context: HttpContext) -> None:
        async def described(call: Call) -> dict[str, object]:
            return as_dict(
                await self._models.GetModel(pb.GetModelRequest(model=context.path_parameters["model"]), call)
            )

        await self._answer_reading(context, "GetModel", described)

    async def _list_languages(self, context: HttpContext) -> None:
        async def listed(call: Call) -> dict[str, object]:
            pairs = language_pairs(await self._models.ListModels(pb.ListModelsRequest(), call))
            languages = [
                {"sourceLanguage": source, "targetLanguages": sorted(pairs[source])} for source in sorted(pairs)
            ]
            return {"languages": languages}

        await self._answer_reading(context, "ListModels", listed)

    async def _list_glossaries(self, context: HttpContext) -> None:
        async def listed(call: Call) -> dict[str, object]:
            return as_dict(await self._models.ListGlossaries(pb.ListGlossariesRequest(), call))

        await self._answer_reading(context, "ListGlossaries", listed)

    async def _listed(self, call: Call) -> dict[str, object]:
        return as_dict(await self._models.ListModels(pb.ListModelsRequest(), call))

    async def _answer_reading(
        self, context: HttpContext, method: str, answer: Callable[[Call], Awaitable[dict[str, object]]]
    ) -> None:
        """Answer a request without a body."""
        call = self._pipeline.start(f"/{MODEL_SERVICE}/{method}", context)

        async def respond(_no_body: bytes) -> bytes:
            context.check_headers()
            return to_json(await answer(call))

        await _send(await self._pipeline.answer(call, respond, as_status, raw_request=b""), call, context)


class EventStream(ResponseStream):
    """Sends the messages of a call as server-sent events (WHATWG HTML, section 9.2)."""

    async def write(self, response: Message) -> None:
        """Send a sentence."""
        await self.write_raw(event("sentence", await serialized_json(response)))


async def _described(_request: Request) -> Response:
    return Response(_DESCRIPTION, media_type="application/json")


def event(kind: str, data: bytes) -> bytes:
    """Return a server-sent event; the data is one line."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def language_pairs(listed: pb.ListModelsResponse) -> dict[str, set[str]]:
    """Return into which languages models that are ready translate, by the language that they translate from."""
    targets: dict[str, set[str]] = {}
    for model in listed.models:
        for version in model.versions:
            if version.state == pb.MODEL_STATE_READY:
                for group in version.language_groups:
                    for source in group.source_languages:
                        others = set(group.target_languages).difference([source])
                        targets.setdefault(source, set()).update(others or group.target_languages)
    return targets


async def _send(outcome: Outcome, call: Call, context: HttpContext) -> None:
    if not context.has_begun:
        response = (
            _problem(outcome, call, context).response()
            if isinstance(outcome, error_mapping.Answer)
            else Response(outcome, HTTPStatus.OK, media_type="application/json")
        )
        response.headers[REQUEST_ID_KEY] = call.request_id
        await context.respond(response)
    elif isinstance(outcome, error_mapping.Answer):
        await context.end(event("error", to_json(_problem(outcome, call, context).members)))
    else:
        await context.end(event("end", b"{}"))


def _problem(answer: error_mapping.Answer, call: Call, context: HttpContext) -> Problem:
    is_caller_late = answer.code is grpc.StatusCode.DEADLINE_EXCEEDED and not context.is_read
    http_status = HTTPStatus.REQUEST_TIMEOUT if is_caller_late else context.http_status
    return problem(answer, request_id=call.request_id, http_status=http_status)
