"""A fake translation server whose methods are functions of the test."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from dragoman.v1 import translation_pb2 as pb

ANSWER = pb.TranslateResponse(num_source_tokens=3, num_target_tokens=4, translations=[pb.Translation()])

Answering = Callable[[Any, grpc.ServicerContext], Any]


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, answers: Mapping[str, Answering]) -> None:
        self._answers = answers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Find the handler of a method by its name without the service."""
        name = handler_call_details.method.rpartition("/")[2]
        answer = self._answers.get(name)
        if answer is None:
            return None
        kinds = {"TranslateStream": "stream_stream", "TranslateDocument": "unary_stream"}
        return getattr(grpc, f"{kinds.get(name, 'unary_unary')}_rpc_method_handler")(answer)


@contextmanager
def fake_translator(answers: Mapping[str, Answering], *, num_threads: int = 4) -> Iterator[str]:
    """Serve methods by their names without the service; requests and answers are bytes. Yields the address."""
    server = grpc.server(ThreadPoolExecutor(num_threads))
    server.add_generic_rpc_handlers((_Handler(answers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"localhost:{port}"
    finally:
        server.stop(grace=None).wait()
