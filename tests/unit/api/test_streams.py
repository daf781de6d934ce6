"""What happens to the first message of a stream that is refused."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from service.api import streams
from service.api.calls import Call
from service.api.rate_limits import ConcurrencyLimiter
from service.api.streams import RequestStream, StreamedRequest, wait_for_first_message
from service.telemetry.access_record import AccessRecord
from service.telemetry.tracing import RequestTrace


class Caller:
    """Sends its requests, then half-closes; one of `None` stays silent."""

    def __init__(self, requests: list[bytes] | None) -> None:
        self._requests = requests
        self.num_reads = 0

    async def read(self) -> Any:
        self.num_reads += 1
        if self._requests is None:
            await asyncio.Event().wait()
        return self._requests.pop(0) if self._requests else grpc.aio.EOF


def stream_of(caller: Caller) -> RequestStream:
    call = Call(
        grpc_context=caller,
        path="/s/TranslateStream",
        request_id="r",
        caller="",
        trace=RequestTrace(),
        access_record=AccessRecord(),
        started_s=0.0,
        is_limited=True,
    )
    limiter = ConcurrencyLimiter(max_concurrent=1)
    return RequestStream(call, limiter, lambda raw: StreamedRequest(message=raw, answered=refuse))


async def refuse(_respond: Any) -> bytes:
    raise AssertionError("nothing is answered here")


@pytest.mark.parametrize("requests", [[b"first", b"second"], [b"first"], []])
async def test_a_refusal_follows_the_first_message_and_waits_for_no_other(requests: list[bytes]) -> None:
    caller = Caller(requests)

    await asyncio.wait_for(stream_of(caller).before_refusal(), timeout=10)

    assert caller.num_reads == 1


async def test_a_refusal_does_not_read_beside_what_reads_already() -> None:
    caller = Caller([b"first", b"second"])
    stream = stream_of(caller)
    await stream.read()

    await stream.before_refusal()

    assert caller.num_reads == 1


async def test_who_sends_nothing_is_refused_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_FIRST_MESSAGE_PATIENCE_S", 0.001)

    caller = Caller(None)

    await asyncio.wait_for(stream_of(caller).before_refusal(), timeout=10)

    assert caller.num_reads == 1


async def test_an_error_while_receiving_is_no_error_of_the_refusal() -> None:
    was_asked = []

    async def broken() -> AsyncIterator[bytes]:
        was_asked.append(True)
        raise grpc.aio.UsageError("the call is over")
        yield b""

    await wait_for_first_message(anext(broken()))

    assert was_asked
