"""A hand-written server whose behaviour each test scripts."""
# ruff: noqa: N802 - the wire names the methods

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import grpc
from google.rpc import error_details_pb2, status_pb2

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

Behaviour = Callable[[Any, Any], Any]
"""What one call does with its request and context."""


class LanguagePair(TypedDict):
    """What every request must name."""

    source_language: str
    target_language: str


EN_DE: LanguagePair = {"source_language": "en", "target_language": "de"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedCall:
    """What the server saw of one attempt."""

    request: Any
    time_remaining_s: float | None
    metadata: dict[str, str]


class ScriptedService(
    pb_grpc.TranslationServiceServicer, pb_grpc.ModelServiceServicer, pb_grpc.ModelAdminServiceServicer
):
    """Answers each call with the next behaviour of its script."""

    def __init__(self) -> None:
        self.script: deque[Behaviour] = deque()
        self.calls: list[ReceivedCall] = []

    def Translate(self, request: pb.TranslateRequest, context: Any) -> Any:
        return self._play(request, context)

    def TranslateDocument(self, request: pb.TranslateDocumentRequest, context: Any) -> Any:
        return self._play(request, context)

    def TranslateStream(self, request_iterator: Any, context: Any) -> Any:
        return self._play(request_iterator, context)

    def DetectLanguage(self, request: pb.DetectLanguageRequest, context: Any) -> Any:
        return self._play(request, context)

    def ListModels(self, request: pb.ListModelsRequest, context: Any) -> Any:
        return self._play(request, context)

    def GetModel(self, request: pb.GetModelRequest, context: Any) -> Any:
        return self._play(request, context)

    def LoadModel(self, request: pb.LoadModelRequest, context: Any) -> Any:
        return self._play(request, context)

    def UnloadModel(self, request: pb.UnloadModelRequest, context: Any) -> Any:
        return self._play(request, context)

    def SetModelLabel(self, request: pb.SetModelLabelRequest, context: Any) -> Any:
        return self._play(request, context)

    def _play(self, request: Any, context: Any) -> Any:
        metadata = dict(context.invocation_metadata())
        self.calls.append(ReceivedCall(request=request, time_remaining_s=context.time_remaining(), metadata=metadata))
        return self.script.popleft()(request, context)


def answers(response: Any) -> Behaviour:
    """Return `response`, or the messages of a stream."""
    return lambda request, context: response


def refuses(code: grpc.StatusCode, *details: Any, pushback_ms: int | None = None) -> Behaviour:
    """End with `code`, the message "refused" and `details`; `pushback_ms` says when to retry, -1 forbids it."""
    status = status_pb2.Status(code=code.value[0], message="refused")
    for detail in details:
        status.details.add().Pack(detail)
    trailer: list[tuple[str, str | bytes]] = [("grpc-status-details-bin", status.SerializeToString())]
    if pushback_ms is not None:
        trailer.append(("grpc-retry-pushback-ms", str(pushback_ms)))

    def refuse(request: Any, context: Any) -> Any:
        context.set_trailing_metadata(trailer)
        context.abort(code, "refused")

    return refuse


def refuses_for(code: grpc.StatusCode, reason: str, *details: Any, pushback_ms: int | None = None) -> Behaviour:
    """Refuse as `refuses`, with the ErrorInfo that our server adds."""
    return refuses(
        code, error_details_pb2.ErrorInfo(reason=reason, domain="dragoman"), *details, pushback_ms=pushback_ms
    )


def document_until(has_left: threading.Event) -> Behaviour:
    """Send one sentence, then none until the caller has left, which sets `has_left`."""

    def translate(request: Any, context: Any) -> Iterator[pb.TranslatedSentence]:
        context.add_callback(has_left.set)
        yield pb.TranslatedSentence(index=0, text="Eins. ")
        has_left.wait()

    return translate


def stream_that_refuses(request_id: str) -> Behaviour:
    """Answer each request of a stream, the one of that name with an error."""
    status = status_pb2.Status(code=grpc.StatusCode.INVALID_ARGUMENT.value[0], message="refused")

    def translate(requests: Any, context: Any) -> Iterator[pb.TranslateResponse]:
        for request in requests:
            error = status if request.request_id == request_id else None
            yield pb.TranslateResponse(request_id=request.request_id, error=error)

    return translate


@contextmanager
def running(service: ScriptedService, credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    """Serve on a free port, encrypted if there are credentials, and yield the target to connect to."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    pb_grpc.add_TranslationServiceServicer_to_server(service, server)
    pb_grpc.add_ModelServiceServicer_to_server(service, server)
    pb_grpc.add_ModelAdminServiceServicer_to_server(service, server)
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()
