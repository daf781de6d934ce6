"""A server whose translations are the results of a function, for tests of files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.rpc import error_details_pb2

from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import Behaviour, ScriptedService, refuses, running


class EchoService(ScriptedService):
    """Answers `Translate` and records the texts."""

    def __init__(self, translate: Callable[[str], str], before: Behaviour) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._translate = translate
        self._before = before

    def Translate(self, request: pb.TranslateRequest, context: Any) -> Any:  # noqa: N802 - name of the method in the contract
        self._before(request, context)
        self.texts += request.texts
        hypotheses = [pb.Hypothesis(text=self._translate(text)) for text in request.texts]
        return pb.TranslateResponse(translations=[pb.Translation(hypotheses=[each]) for each in hypotheses])


@contextmanager
def echo_server(
    translate: Callable[[str], str] = str, before: Behaviour = lambda request, context: None
) -> Iterator[tuple[str, EchoService]]:
    """Serve on a free port; yield the target and the service. `before` is called first and may end a call."""
    service = EchoService(translate, before)
    with running(service) as target:
        yield target, service


def refuses_text_with(
    part: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT, reason: str = "INVALID_FIELD"
) -> Behaviour:
    """End each call with a text that contains `part` with an error of this text."""

    def refuse(request: pb.TranslateRequest, context: Any) -> None:
        for index, text in enumerate(request.texts):
            if part in text:
                violation = error_details_pb2.BadRequest.FieldViolation(field=f"texts[{index}]", description="refused")
                details = error_details_pb2.BadRequest(field_violations=[violation])
                refuses(code, reason, details)(request, context)

    return refuse
