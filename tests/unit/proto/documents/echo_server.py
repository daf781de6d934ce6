"""A server whose translations are the results of a function, for tests of files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.rpc import error_details_pb2

from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import ScriptedService, refuses_for, running


class EchoService(ScriptedService):
    """Answers `Translate` and records the texts."""

    def __init__(self, translate: Callable[[str], str] = str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.translate = translate

    def Translate(self, request: pb.TranslateRequest, context: Any) -> Any:  # noqa: N802 - name of the method in the contract
        self.texts += request.texts
        return pb.TranslateResponse(
            translations=[
                pb.Translation(hypotheses=[pb.Hypothesis(text=self.translate(text))]) for text in request.texts
            ]
        )


@contextmanager
def echo_server(translate: Callable[[str], str] = str) -> Iterator[tuple[str, EchoService]]:
    """Serve on a free port; yield the target and the service."""
    service = EchoService(translate)
    with running(service) as target:
        yield target, service


def refuse_text(request: pb.TranslateRequest, context: Any, index: int) -> None:
    """End a call like a server that rejects one of the texts."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=f"texts[{index}]", description="is refused")
    details = error_details_pb2.BadRequest(field_violations=[violation])
    refuses_for(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", details)(request, context)
