"""A server that answers each text with what a function makes of it, for tests of files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.rpc import error_details_pb2

from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import ScriptedService, refuses_for, running


class EchoService(ScriptedService):
    """Answers `Translate` and keeps what it was asked for."""

    def __init__(self, translate: Callable[[str], str] = str) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.translate = translate

    def Translate(self, request: pb.TranslateRequest, context: Any) -> Any:  # noqa: N802 - the wire names it
        self.asked += request.texts
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
    """End a call as our server does that refuses one of its texts."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=f"texts[{index}]", description="is refused")
    details = error_details_pb2.BadRequest(field_violations=[violation])
    refuses_for(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", details)(request, context)
