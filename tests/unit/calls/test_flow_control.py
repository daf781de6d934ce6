"""Concurrent reception of messages."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.calls import flow_control
from dragoman_service.calls.flow_control import (
    FairSemaphore,
    RequestReader,
    ResourceLimits,
)
from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.errors import (
    DeadlineExceededError,
    IdleError,
    OverloadedError,
    RateLimitedError,
    RequestError,
)
from dragoman_service.observability.metrics import Metrics


class Sender:
    """Sends a message when `may_send` is set."""

    def __init__(self, message: Any = b"message") -> None:
        self.is_read = False
        self.may_send = asyncio.Event()
        self._message = message

    async def read(self) -> Any:
        self.is_read = True
        await self.may_send.wait()
        return self._message


def make_reader(
    counts: Counter[str] | None = None, *, num_reads: int = 2, max_unread: int = 8, timeout_s: float = 60.0
) -> RequestReader:
    """Return a reader that counts rejected and late calls."""
    events = Counter() if counts is None else counts
    return RequestReader(
        unread=semaphore(max_unread, max_unread // 2, events),
        num_reads=num_reads,
        caller_share=0.5,
        timeout_s=timeout_s,
        on_timeout=lambda: events.update(["late"]),
    )


def semaphore(total: int, per_caller: int, events: Counter[str]) -> FairSemaphore:
    return FairSemaphore("calls", total=total, per_caller=per_caller, on_rejection=lambda: events.update(["rejected"]))


async def cancel(calls: Sequence[asyncio.Future[bytes]]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def quick_sender() -> Sender:
    sender = Sender()
    sender.may_send.set()
    return sender


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_reads_of_one_caller_are_limited_to_its_share() -> None:
    reader = make_reader()
    greedy, fair = [Sender() for _ in range(3)], Sender()
    calls = [asyncio.ensure_future(reader.receive(sender, "greedy")) for sender in greedy]
    calls.append(asyncio.ensure_future(reader.receive(fair, "fair")))
    await settle()

    assert [sender.is_read for sender in (*greedy, fair)] == [True, False, False, True]
    assert reader.unread.num_held == 4

    for sender in (*greedy, fair):
        sender.may_send.set()
    assert await asyncio.gather(*calls) == [b"message"] * 4
    assert reader.unread.num_held == 0


async def test_slow_senders_do_not_block_complete_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "_CONTENTION_TIMEOUT_S", 0.01)
    counts: Counter[str] = Counter()
    reader = make_reader(counts, num_reads=4, max_unread=100)
    slow = [asyncio.ensure_future(reader.receive(Sender(), "host")) for _ in range(40)]
    quick = quick_sender()
    await settle()

    assert await asyncio.wait_for(reader.receive(quick, "host"), timeout=10) == b"message"

    ended, _ = await asyncio.wait(slow, return_when=asyncio.FIRST_EXCEPTION)
    assert {type(call.exception()) for call in ended} == {OverloadedError}
    assert counts["late"] == len(ended) < len(slow)
    await cancel(slow)


async def test_new_call_replaces_the_oldest_silent_call() -> None:
    counts: Counter[str] = Counter()
    reader = make_reader(counts, max_unread=4)
    silent = [asyncio.ensure_future(reader.receive(Sender(), caller)) for caller in "aabb"]
    await settle()
    for unread in reader._readers:
        unread.created_s -= 10

    answers = await asyncio.gather(*(reader.receive(quick_sender(), caller) for caller in "bc"))

    assert answers == [b"message"] * 2
    await asyncio.wait((silent[0], silent[2]))
    assert {type(silent[number].exception()) for number in (0, 2)} == {OverloadedError}
    assert reader.unread.num_held == 2
    await cancel(silent)
    assert reader.unread.num_held == 0


async def test_deadline_is_not_shortened_while_slots_are_free() -> None:
    reader = make_reader(num_reads=4)
    slow = Sender()
    call = asyncio.ensure_future(reader.receive(slow, "a"))
    await settle()

    await reader.receive(quick_sender(), "a")

    assert not any(reading.is_shortened for reading in reader._reading)
    slow.may_send.set()
    assert await call == b"message"


async def test_calls_above_the_share_or_the_total_are_rejected() -> None:
    counts: Counter[str] = Counter()
    reader = make_reader(counts, max_unread=4)
    waiting = [asyncio.ensure_future(reader.receive(Sender(), caller)) for caller in "aabb"]
    await settle()

    with pytest.raises(RateLimitedError) as limited:
        await reader.receive(Sender(), "a")
    with pytest.raises(OverloadedError):
        await reader.receive(Sender(), "c")

    assert limited.value.retry_after_s > 0
    assert counts["rejected"] == 2
    await cancel(waiting)
    assert reader.unread.num_held == 0


async def test_late_message_exceeds_the_deadline() -> None:
    counts: Counter[str] = Counter()
    reader = make_reader(counts, timeout_s=0.01)

    with pytest.raises(DeadlineExceededError) as error:
        await reader.receive(Sender(), "a")

    assert error.value.stage == IdleError().stage == "stream"
    assert (counts["late"], reader.unread.num_held) == (1, 0)


async def test_stream_closed_without_message_is_rejected() -> None:
    sender = Sender(grpc.aio.EOF)
    sender.may_send.set()

    with pytest.raises(RequestError, match="request"):
        await make_reader().receive(sender, "a")


def test_released_amounts_are_available_again() -> None:
    limit = semaphore(10, 6, Counter())

    with limit.held("a", 6), limit.held("b", 4):
        assert limit.num_held == 10
        with pytest.raises(OverloadedError), limit.held("b", 1):
            pass

    assert limit.num_held == 0


def test_share_of_a_caller_must_fit_the_largest_message() -> None:
    with pytest.raises(ValueError, match="max_received_bytes"):
        GrpcSettings(max_message_bytes=1_000_000, max_received_bytes=3_000_000)

    assert GrpcSettings(max_message_bytes=1_000_000, max_received_bytes=4_000_000).max_caller_share == 0.5


def test_rejection_counters_exist_before_the_first_rejection() -> None:
    metrics = Metrics(CollectorRegistry())

    ResourceLimits(GrpcSettings(), metrics)

    limits = {sample.labels["limit"] for family in metrics.limit_rejections.collect() for sample in family.samples}
    assert limits < GrpcSettings.model_fields.keys()
    assert {"max_streams", "max_watchers", "max_received_bytes", "stream_idle_timeout_s"} < limits
