import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc
import pytest
from prometheus_client import CollectorRegistry

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.calls.error_mapping import NEUTRAL_MESSAGE
from dragoman_service.calls.flow_control import ConcurrencyLimiter, ResourceLimits
from dragoman_service.calls.pipeline import RequestPipeline
from dragoman_service.calls.policy import TRANSLATE
from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.errors import InvalidFieldError
from dragoman_service.grpc_api.servicer import Servicer, UnaryMethod
from dragoman_service.observability.metrics import Metrics
from dragoman_service.observability.usage import Tracing
from dragoman_service.security.authentication import Access
from dragoman_service.security.settings import AccessSettings
from tests.captured_logs import capture_logs
from tests.fakes import ManualClock

REQUEST = pb.TranslateRequest(texts=["a secret"], request_id="r1").SerializeToString()

Method = Callable[[pb.TranslateRequest, Any], Awaitable[pb.TranslateResponse]]


class AbortedError(Exception):
    """Raised by `abort` to end the handler."""


class FakeContext:
    """Context of one call; records its status."""

    def __init__(self, *metadata: tuple[str, str], remaining_s: float | None = None) -> None:
        self.code: grpc.StatusCode | None = None
        self.message = ""
        self.trailing: dict[str, str | bytes] = {}
        self.raw_request: Any = REQUEST
        self._metadata = metadata
        self._remaining_s = remaining_s

    async def read(self) -> Any:
        return self.raw_request

    def peer(self) -> str:
        return "ipv4:127.0.0.1:40000"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def time_remaining(self) -> float | None:
        return self._remaining_s

    def set_trailing_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self.trailing = dict(metadata)

    async def abort(self, code: grpc.StatusCode, message: str, metadata: tuple[tuple[str, str | bytes], ...]) -> None:
        self.code, self.message, self.trailing = code, message, dict(metadata)
        raise AbortedError


class Around:
    """The behavior of one method in a pipeline, with its metrics."""

    def __init__(self, method: Method, *, max_concurrent: int = 8, settings: GrpcSettings | None = None) -> None:
        self.limiter = ConcurrencyLimiter(max_concurrent=max_concurrent)
        self.limiter.open()
        self.clock = ManualClock()
        self.metrics = Metrics(CollectorRegistry())
        pipeline = RequestPipeline(
            limiter=self.limiter,
            bounds=ResourceLimits(settings or GrpcSettings(), self.metrics),
            metrics=self.metrics,
            access=Access(AccessSettings(), self.metrics),
            tracing=Tracing(),
            clock=self.clock,
        )
        unary = UnaryMethod(policy=TRANSLATE, handler=method, request=pb.TranslateRequest)
        self._handler = Servicer(cast("Any", None), pipeline).unary_handler(unary)

    async def call(self, context: FakeContext, raw_request: bytes = REQUEST) -> pb.TranslateResponse:
        context.raw_request = raw_request
        raw_response = await self._handler.stream_unary(None, context)
        return pb.TranslateResponse.FromString(raw_response)

    async def rejected(self, context: FakeContext, raw_request: bytes = REQUEST) -> FakeContext:
        with pytest.raises(AbortedError):
            await self.call(context, raw_request)
        return context

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


async def echo(request: pb.TranslateRequest, _context: object) -> pb.TranslateResponse:
    return pb.TranslateResponse(request_id=request.request_id)


def failing(error: Exception) -> Method:
    async def fail(_request: object, _context: object) -> pb.TranslateResponse:
        raise error

    return fail


@pytest.mark.parametrize(
    ("metadata", "raw_request", "expected"),
    [
        ("m1", REQUEST, "r1"),
        ("m1", b"", "m1"),
        *((invalid, b"", "[0-9a-f]{32}") for invalid in (None, "", "x" * 129)),
    ],
)
async def test_request_id_is_from_the_message_or_metadata_or_random(
    metadata: str | None, raw_request: bytes, expected: str
) -> None:
    context = FakeContext(*([] if metadata is None else [("x-request-id", metadata)]))

    response = await Around(echo).call(context, raw_request)

    assert re.fullmatch(expected, response.request_id)
    assert context.trailing["x-request-id"] == response.request_id


@pytest.mark.parametrize("request_id", ["r" * 129, "zwölf", "a\nb"])
async def test_request_id_that_cannot_be_returned_is_rejected(request_id: str) -> None:
    raw_request = pb.TranslateRequest(request_id=request_id).SerializeToString()

    context = await Around(echo).rejected(FakeContext(), raw_request)

    assert context.code is grpc.StatusCode.INVALID_ARGUMENT
    assert context.message.startswith("request_id: ")


async def test_service_error_becomes_status_with_request_id() -> None:
    context = await Around(failing(InvalidFieldError("texts", 0, "1 to 3"))).rejected(FakeContext())

    assert (context.code, context.message) == (grpc.StatusCode.INVALID_ARGUMENT, "texts: is 0, must be 1 to 3")
    assert context.trailing["x-request-id"] == "r1"


async def test_unexpected_error_is_logged_and_has_neutral_message() -> None:
    error = ZeroDivisionError("in the third layer")

    with capture_logs() as records:
        context = await Around(failing(error)).rejected(FakeContext())

    assert (context.code, context.message) == (grpc.StatusCode.INTERNAL, NEUTRAL_MESSAGE)
    assert [record["exc_info"] for record in records if record["event"] == "request failed"] == [error]


async def test_invalid_protobuf_is_an_invalid_argument() -> None:
    context = await Around(echo).rejected(FakeContext(), b"\x0a\x02\xff\xfe")

    assert context.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("remaining_s", "status"), [(None, "CANCELLED"), (9.0, "CANCELLED"), (0.0, "DEADLINE_EXCEEDED")]
)
async def test_cancellation_after_deadline_is_deadline_exceeded(remaining_s: float | None, status: str) -> None:
    async def leave(_request: object, _context: object) -> pb.TranslateResponse:
        raise asyncio.CancelledError

    around = Around(leave)

    with pytest.raises(asyncio.CancelledError):
        await around.call(FakeContext(remaining_s=remaining_s))

    assert around.sample("dragoman_requests_total", method="Translate", status=status) == 1


async def test_call_is_counted_timed_and_logged_without_texts() -> None:
    async def work(_request: object, _context: object) -> pb.TranslateResponse:
        assert around.sample("dragoman_requests_in_flight", method="Translate") == 1
        around.clock.advance(2.0)
        return pb.TranslateResponse(model_name="m")

    around = Around(work)

    with capture_logs() as records:
        await around.call(FakeContext())
        assert not records  # the answer goes first
        await asyncio.sleep(0)

    assert around.sample("dragoman_requests_in_flight", method="Translate") == 0
    assert around.sample("dragoman_requests_total", method="Translate", status="OK") == 1
    assert around.sample("dragoman_request_duration_seconds_sum", method="Translate") == 2.0
    (record,) = records
    assert record == {
        "event": "request",
        "log_level": "info",
        "method": "Translate",
        "status": "OK",
        "duration_s": 2.0,
        "caller": "ipv4:127.0.0.1",
        "peer": "ipv4:127.0.0.1:40000",
        "request_bytes": len(REQUEST),
        "response_bytes": 3,
    }


async def test_rejected_call_is_logged_with_reason_and_field_but_not_value() -> None:
    around = Around(failing(InvalidFieldError("model", "a secret", "a name")))

    with capture_logs() as records:
        await around.rejected(FakeContext())
        await asyncio.sleep(0)

    (record,) = records
    assert (record["status"], record["reason"], record["field"]) == ("INVALID_ARGUMENT", "INVALID_FIELD", "model")
    assert "a secret" not in str(record)


async def test_full_limiter_rejects_calls() -> None:
    around = Around(echo, max_concurrent=1)

    with around.limiter.admitted():
        full = await around.rejected(FakeContext())
    admitted = await around.call(FakeContext())

    assert (full.code, admitted.request_id) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "r1")
    assert around.sample("dragoman_rejected_requests_total", reason="overloaded") == 1
