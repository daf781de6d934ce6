"""A server that plays the script of a test, and blocking access to both kinds of clients."""

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypedDict

import grpc
from google.rpc import error_details_pb2, status_pb2

from dragoman.client import (
    AsyncModelAdminClient,
    AsyncTranslationClient,
    ModelAdminClient,
    TranslationClient,
    TranslationRequest,
)
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

Behaviour = Callable[[Any, Any], Any]  # handler of one call
Connect = Callable[..., Any]


class LanguagePair(TypedDict):
    source_language: str
    target_language: str


EN_DE: LanguagePair = {"source_language": "en", "target_language": "de"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedCall:
    """One attempt as the server received it."""

    request: Any
    time_remaining_s: float | None
    metadata: dict[str, str]


class ScriptedService(
    pb_grpc.TranslationServiceServicer, pb_grpc.ModelServiceServicer, pb_grpc.ModelAdminServiceServicer
):
    """Answers each call with the next behaviour of its script, and records it."""

    def __init__(self) -> None:
        self.script: deque[Behaviour] = deque()
        self.calls: list[ReceivedCall] = []

    def play(self, request: Any, context: Any) -> Any:
        metadata = dict(context.invocation_metadata())
        self.calls.append(ReceivedCall(request=request, time_remaining_s=context.time_remaining(), metadata=metadata))
        return self.script.popleft()(request, context)


for _service in pb.DESCRIPTOR.services_by_name.values():
    for _method in _service.methods:
        setattr(ScriptedService, _method.name, ScriptedService.play)


def answers(response: Any) -> Behaviour:
    """Answer with a response, or with a list of messages of a stream."""
    return lambda request, context: iter(response) if isinstance(response, list) else response


def rejects(code: grpc.StatusCode, reason: str = "", *details: Any, pushback_ms: int | None = None) -> Behaviour:
    """End with an error: with a reason, that of a Dragoman server; `pushback_ms` is the retry delay, -1 forbids one."""
    status = status_of(code, reason, *details)
    trailer: list[tuple[str, str | bytes]] = [("grpc-status-details-bin", status.SerializeToString())]
    if pushback_ms is not None:
        trailer.append(("grpc-retry-pushback-ms", str(pushback_ms)))

    def reject(request: Any, context: Any) -> Any:
        context.set_trailing_metadata(trailer)
        context.abort(code, "rejected")

    return reject


def status_of(code: grpc.StatusCode, reason: str = "", *details: Any, **info: Any) -> status_pb2.Status:
    """Return a status with details; with a reason, an ErrorInfo with fields `info` is the first."""
    status = status_pb2.Status(code=code.value[0], message="rejected")
    if reason:
        details = (error_details_pb2.ErrorInfo(**{"reason": reason, "domain": "dragoman", **info}), *details)
    for detail in details:
        status.details.add().Pack(detail)
    return status


def text_request(request_id: str, text: str = "One.") -> TranslationRequest:
    return TranslationRequest(texts=[text], request_id=request_id, source_language="en", target_language="de")


def document_until(is_cancelled: threading.Event) -> Behaviour:
    """Send one sentence, then wait until the caller cancels, which sets `is_cancelled`."""

    def translate(request: Any, context: Any) -> Iterator[pb.TranslatedSentence]:
        context.add_callback(is_cancelled.set)
        yield pb.TranslatedSentence(index=0, text="Eins. ")
        is_cancelled.wait()

    return translate


def stream_that_rejects(request_id: str) -> Behaviour:
    """Answer each request of a stream, the one with this id with an error."""
    status = status_of(grpc.StatusCode.INVALID_ARGUMENT)

    def translate(requests: Any, context: Any) -> Iterator[pb.TranslateResponse]:
        for request in requests:
            error = status if request.request_id == request_id else None
            yield pb.TranslateResponse(request_id=request.request_id, error=error)

    return translate


@contextmanager
def running(service: ScriptedService, credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    """Serve on a free port, encrypted if there are credentials, and yield the target."""
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


class BlockingClient:
    """Runs the calls of an asynchronous client in an event loop of its own, so that one test covers both kinds."""

    def __init__(self, client_class: Any, *arguments: Any, **options: Any) -> None:
        async def create() -> Any:
            return client_class(*arguments, **options)

        with ExitStack() as stack:
            self._runner = stack.enter_context(asyncio.Runner())
            self._client = self._runner.run(create())
            self._stack = stack.pop_all()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            async def invoke() -> Any:
                result = getattr(self._client, name)(*arguments, **options)
                return await result if inspect.isawaitable(result) else result

            result = self._runner.run(invoke())
            return self._items(result) if inspect.isasyncgen(result) else result

        return call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self._runner.run(self._client.close())

    def _items(self, generator: AsyncGenerator[Any, Any]) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(generator, None)

        try:
            while (item := self._runner.run(following())) is not None:
                yield item
        finally:
            self._runner.run(generator.aclose())


BLOCKING_CLIENTS: dict[str, Connect] = {
    "sync": TranslationClient,
    "async": partial(BlockingClient, AsyncTranslationClient),
}
BLOCKING_ADMINS: dict[str, Connect] = {
    "sync": ModelAdminClient,
    "async": partial(BlockingClient, AsyncModelAdminClient),
}
