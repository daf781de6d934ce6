"""Fake server: a gRPC server on a free port of this machine, for tests of a program with its real client."""

import threading
from collections.abc import Iterator
from concurrent import futures
from functools import partialmethod
from types import TracebackType
from typing import Any, Self

import grpc

from dragoman.testing.translator import FakeTranslator, Outcome
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

_NUM_THREADS = 16  # calls at the same time


class FakeServer(pb_grpc.TranslationServiceServicer, pb_grpc.ModelServiceServicer):
    """A server whose `translator` answers synchronous and asynchronous clients; a context manager.

    with FakeServer() as server, TranslationClient(server.target) as client:
        server.translator.fail_next("overloaded 0.1 x2")  # the client retries
        client.translate(["Hello."], source_language="en", target_language="de")
    """

    def __init__(self, translator: FakeTranslator | None = None) -> None:
        """Listen on a free port of the loopback address without encryption."""
        self.translator = translator or FakeTranslator()
        self._is_stopped = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="fake-server"))
        pb_grpc.add_TranslationServiceServicer_to_server(self, self._server)
        pb_grpc.add_ModelServiceServicer_to_server(self, self._server)
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        """Address for clients."""

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_stopped.set()
        self._server.stop(grace=None).wait()

    def _outcome(self, method: str, request: Any, context: Any) -> Outcome:
        outcome = self.translator.outcome(
            method, request, timeout_s=context.time_remaining(), metadata=dict(context.invocation_metadata())
        )
        self._is_stopped.wait(outcome.delay_s)
        return outcome

    def _response(self, method: str, request: Any, context: Any) -> Any:
        return next(self._responses(method, request, context))

    def _responses(self, method: str, request: Any, context: Any) -> Iterator[Any]:
        outcome = self._outcome(method, request, context)
        if outcome.status is not None:
            context.set_trailing_metadata(outcome.trailing_metadata)
            context.abort(outcome.code, outcome.message)
        yield from outcome.responses

    def _stream(self, method: str, requests: Any, context: Any) -> Iterator[Any]:
        for request in requests:
            yield from self._outcome(method, request, context).in_stream(request)


for _service in ("TranslationService", "ModelService"):
    for _method in pb.DESCRIPTOR.services_by_name[_service].methods:
        _one_response = FakeServer._response if not _method.server_streaming else FakeServer._responses
        _handler = FakeServer._stream if _method.client_streaming else _one_response
        setattr(FakeServer, _method.name, partialmethod(_handler, _method.name))
