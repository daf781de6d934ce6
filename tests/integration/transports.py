"""One text translated over each transport of the native API, with responses in one form."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc import code_pb2, error_details_pb2

from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import Rejection, RunningServer, bearer, http_client, rejection, unpacked


@dataclass(frozen=True, kw_only=True)
class Response:
    """A translation, or the error of a call."""

    hypotheses: tuple[str, ...] = ()
    detected_language: str = ""
    request_id: str = ""
    code: str = "OK"
    reason: str = ""
    fields: tuple[str, ...] = ()
    retry_delay_s: float = 0.0  # of rate limits only, because other delays depend on the load


@dataclass(frozen=True, kw_only=True)
class Transport:
    """A way to translate one text; `call` takes the server, a request with one text, a time limit and an API key."""

    name: str
    method: str  # in metrics and logs
    call: Callable[[RunningServer, pb.TranslateRequest, float | None, str | None], Awaitable[Response]]

    async def translate(
        self, server: RunningServer, text: str, *, timeout_s: float | None = None, key: str | None = None, **fields: Any
    ) -> Response:
        """Translate from English to German."""
        languages = {"source_language": "en", "target_language": "de", "request_id": "r-1"}
        return await self.call(server, pb.TranslateRequest(texts=[text], **{**languages, **fields}), timeout_s, key)


def document(request: pb.TranslateRequest) -> pb.TranslateDocumentRequest:
    """Return the same request for a document."""
    fields = {field.name: value for field, value in request.ListFields() if field.name != "texts"}
    return pb.TranslateDocumentRequest(text=request.texts[0], **fields)


def _of_rejection(error: Rejection) -> Response:
    return Response(
        code=error.code,
        reason=error.reason,
        fields=tuple(error.fields),
        retry_delay_s=error.retry_delay_ms / 1000 if error.reason == "RATE_LIMITED" else 0.0,
        request_id=error.trailing.get("x-request-id", ""),
    )


def _of_translation(response: pb.TranslateResponse) -> Response:
    (translation,) = response.translations
    return Response(
        hypotheses=tuple(hypothesis.text for hypothesis in translation.hypotheses),
        detected_language=response.detected_language.language,
        request_id=response.request_id,
    )


def of_stream_response(response: pb.TranslateResponse) -> Response:
    """Convert a response or an error within a stream."""
    if not response.HasField("error"):
        return _of_translation(response)
    info = unpacked(response.error, error_details_pb2.ErrorInfo())
    bad_request = unpacked(response.error, error_details_pb2.BadRequest())
    retry = unpacked(response.error, error_details_pb2.RetryInfo())
    return Response(
        code=code_pb2.Code.Name(response.error.code),
        reason=info.reason,
        fields=tuple(violation.field for violation in bad_request.field_violations),
        retry_delay_s=retry.retry_delay.ToMilliseconds() / 1000 if info.reason == "RATE_LIMITED" else 0.0,
        request_id=response.request_id,
    )


def _of_sentences(sentences: list[pb.TranslatedSentence]) -> Response:
    """Join the first hypotheses; other hypotheses are those of the only sentence."""
    others = [each.text for each in sentences[0].hypotheses[1:]] if len(sentences) == 1 else []
    return Response(
        hypotheses=("".join(sentence.text for sentence in sentences), *others),
        detected_language=sentences[0].detected_language.language,
        request_id=sentences[0].request_id,
    )


async def _unary(
    server: RunningServer, request: pb.TranslateRequest, timeout_s: float | None, key: str | None
) -> Response:
    try:
        return _of_translation(await server.translation.Translate(request, timeout=timeout_s, metadata=bearer(key)))
    except grpc.aio.AioRpcError as error:
        return _of_rejection(Rejection(error))


async def _stream(
    server: RunningServer, request: pb.TranslateRequest, timeout_s: float | None, key: str | None
) -> Response:
    call = server.translation.TranslateStream(timeout=timeout_s, metadata=bearer(key))
    try:
        await call.write(request)
        response = await call.read()
        await call.done_writing()
    except (grpc.aio.AioRpcError, grpc.aio.UsageError, AttributeError):
        return _of_rejection(await rejection(call.read()))
    return of_stream_response(response)


async def _document(
    server: RunningServer, request: pb.TranslateRequest, timeout_s: float | None, key: str | None
) -> Response:
    try:
        call = server.translation.TranslateDocument(document(request), timeout=timeout_s, metadata=bearer(key))
        return _of_sentences([sentence async for sentence in call])
    except grpc.aio.AioRpcError as error:
        return _of_rejection(Rejection(error))


async def _post(
    server: RunningServer,
    path: str,
    body: pb.TranslateRequest | pb.TranslateDocumentRequest,
    timeout_s: float | None,
    key: str | None,
) -> httpx.Response:
    headers = dict(bearer(key)) | ({"x-request-timeout": str(timeout_s)} if timeout_s else {})
    async with http_client(server) as http:
        return await http.post(path, json=MessageToDict(body), headers=headers)


def problem(response: httpx.Response) -> dict[str, Any]:
    """Check that a response is a problem of RFC 9457; return it."""
    members: dict[str, Any] = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert members["status"] == response.status_code
    assert members["requestId"] == response.headers["x-request-id"]
    return members


def _of_problem(response: httpx.Response) -> Response:
    members = problem(response)
    return Response(
        code=members["code"],
        reason=members.get("reason", ""),
        fields=tuple(violation["field"] for violation in members.get("violations", ())),
        retry_delay_s=float(response.headers.get("retry-after", 0)) if members.get("reason") == "RATE_LIMITED" else 0.0,
        request_id=members["requestId"],
    )


async def _http(
    server: RunningServer, request: pb.TranslateRequest, timeout_s: float | None, key: str | None
) -> Response:
    response = await _post(server, "/v1/translate", request, timeout_s, key)
    if response.status_code != 200:
        return _of_problem(response)
    assert response.headers["x-request-id"] == response.json()["requestId"]
    return _of_translation(ParseDict(response.json(), pb.TranslateResponse()))


async def _http_document(
    server: RunningServer, request: pb.TranslateRequest, timeout_s: float | None, key: str | None
) -> Response:
    response = await _post(server, "/v1/translate/document", document(request), timeout_s, key)
    if response.status_code != 200:
        return _of_problem(response)
    *sentences, (last, data) = events(response.text)
    if last == "error":
        return Response(code=data["code"], reason=data.get("reason", ""), request_id=data["requestId"])
    assert {kind for kind, _ in sentences} | {last} == {"sentence", "end"}
    return _of_sentences([ParseDict(sentence, pb.TranslatedSentence()) for _, sentence in sentences])


def events(body: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the server-sent events of a stream."""
    lines = [event.split("\n") for event in body.split("\n\n")[:-1]]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in lines]


TRANSPORTS = [
    Transport(name="gRPC", method="Translate", call=_unary),
    Transport(name="gRPC stream", method="TranslateStream", call=_stream),
    Transport(name="gRPC document", method="TranslateDocument", call=_document),
    Transport(name="HTTP", method="Translate", call=_http),
    Transport(name="HTTP document", method="TranslateDocument", call=_http_document),
]
