"""First messages of rejected streams, and request ids of unparsable messages."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest
from prometheus_client import CollectorRegistry

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.calls import flow_control
from dragoman_service.calls.flow_control import (
    ConcurrencyLimiter,
    RequestReader,
    ResourceLimits,
    wait_for_first_message,
)
from dragoman_service.calls.pipeline import Call, RequestPipeline
from dragoman_service.calls.policy import TRANSLATE_STREAM
from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.grpc_api.streaming import RequestStream, readable_id
from dragoman_service.observability.metrics import Metrics
from dragoman_service.observability.usage import Tracing
from dragoman_service.security.authentication import Access
from dragoman_service.security.settings import AccessSettings


class Caller:
    """Sends its requests and half-closes, or sends nothing if `requests` is None."""

    def __init__(self, requests: list[bytes] | None) -> None:
        self._requests = requests
        self.num_reads = 0

    async def read(self) -> Any:
        self.num_reads += 1
        if self._requests is None:
            await asyncio.Event().wait()
        return self._requests.pop(0) if self._requests else grpc.aio.EOF


def stream_of(caller: Caller) -> RequestStream:
    metrics = Metrics(CollectorRegistry())
    pipeline = RequestPipeline(
        limiter=ConcurrencyLimiter(max_concurrent=1),
        bounds=ResourceLimits(GrpcSettings(), metrics),
        metrics=metrics,
        access=Access(AccessSettings(), metrics),
        tracing=Tracing(),
    )
    call = Call(
        policy=TRANSLATE_STREAM, transport=cast("Any", caller), request_id="", peer="", caller="", started_s=0.0
    )
    return RequestStream(call, pipeline, fail)


def receiver() -> RequestReader:
    return ResourceLimits(GrpcSettings(), Metrics(CollectorRegistry())).anonymous_receiver


async def fail(*_: Any) -> pb.TranslateResponse:
    raise AssertionError("no request is answered")


@pytest.mark.parametrize("requests", [[b"first", b"second"], [b"first"], []])
async def test_rejection_follows_the_first_message(requests: list[bytes]) -> None:
    caller = Caller(requests)

    await asyncio.wait_for(receiver().read_before_rejection(caller), timeout=10)

    assert caller.num_reads == 1


async def test_stream_records_that_reading_has_begun() -> None:
    stream = stream_of(Caller([b"first", b"second"]))
    has_begun = stream.has_begun

    await stream.read()

    assert (has_begun, stream.has_begun) == (False, True)


async def test_few_messages_of_rejected_streams_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "_FIRST_MESSAGE_TIMEOUT_S", 0.05)
    callers, taken_by = [Caller(None) for _ in range(20)], receiver()

    await asyncio.gather(*(taken_by.read_before_rejection(caller) for caller in callers))

    assert sum(caller.num_reads for caller in callers) == 4


async def test_silent_caller_is_rejected_after_a_short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "_FIRST_MESSAGE_TIMEOUT_S", 0.001)

    caller = Caller(None)

    await asyncio.wait_for(receiver().read_before_rejection(caller), timeout=10)

    assert caller.num_reads == 1


async def test_receive_error_does_not_prevent_rejection() -> None:
    was_asked = []

    async def broken() -> AsyncIterator[bytes]:
        was_asked.append(True)
        raise grpc.aio.UsageError("the call is over")
        yield b""

    await wait_for_first_message(anext(broken()))

    assert was_asked


NAMED = pb.TranslateRequest(request_id="r1").SerializeToString()


@pytest.mark.parametrize(
    "rest",
    [b"", b"\x0a\x02\xff\xfe", b"\x2a\x01\xff", b"\x38\x01", b"\xfa\x3e\x01x", b"\x0a\x01a" * 100_000],
    ids=["nothing", "no UTF-8", "broken options", "a number in its place", "an unknown field", "a lot"],
)
def test_request_id_is_read_from_unparsable_messages(rest: bytes) -> None:
    assert readable_id(NAMED + rest) == readable_id(rest + NAMED) == "r1"


@pytest.mark.parametrize("raw_request", [b"", b"\x0a\x7fshort", b"\xff" * 20, NAMED[:-1], NAMED + b"\x3c" * 1000])
def test_truncated_message_has_no_readable_id(raw_request: bytes) -> None:
    assert readable_id(raw_request) == ""


def test_request_id_that_is_not_utf8_is_replaced_for_the_response() -> None:
    assert readable_id(b"\x3a\x02\xff\xfe") == "\ufffd\ufffd"
