"""A front end and its owner, connected by a pair of sockets in one process."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.bundle.manifest import Languages
from dragoman_service.config import Settings
from dragoman_service.datatypes import Hypothesis, Priority, Segment, SegmentResult, StageTimings
from dragoman_service.errors import DrainingError, EngineError, OverloadedError, RateLimitedError
from dragoman_service.models.model import LoadedModel, ModelState
from dragoman_service.models.registry import ModelRegistry, ModelVersionEntry
from dragoman_service.observability.metrics import Metrics
from dragoman_service.processes.messages import Drained, Listening, StartCommand
from dragoman_service.processes.remote import Owner, RemoteAccess, RemoteModels, submit_remotely
from dragoman_service.processes.session import FrontEndSession, ModelNumbers
from dragoman_service.request import RequestRecord
from dragoman_service.security.api_keys import new_key
from tests.fakes import make_segment
from tests.integration.running_server import caller_entry

SEGMENTS = (make_segment(1, 2), make_segment(3))
RECORD = RequestRecord(caller="shop", deadline_s=12.5, priority=Priority.BULK)
FULL = OverloadedError(queued=1, limit=1, unit="segments", retry_after_s=2.0)


def result_of(score: float) -> SegmentResult:
    hypothesis = Hypothesis(token_ids=(7, 2), token_log_probs=(-1.0, -2.0), log_prob=-3, score=score, is_finished=True)
    return SegmentResult(hypotheses=(hypothesis,), num_steps=2, timings=StageTimings(queue_s=0.5))


class FakeQueue:
    """A queue of the owner whose segments the test resolves."""

    def __init__(self) -> None:
        self.calls: list[tuple[Sequence[Segment], RequestRecord, int]] = []
        self.futures: list[Future[SegmentResult]] = []
        self.rejection: Exception | None = None
        self.arrived = asyncio.Event()

    def expected_decode_cost(self, segments: Sequence[Segment]) -> int:
        return 10 * len(segments)

    def submit(
        self, segments: Sequence[Segment], context: RequestRecord, *, num_characters: int = 0
    ) -> list[Future[SegmentResult]]:
        self.arrived.set()
        if self.rejection:
            raise self.rejection
        self.calls.append((segments, context, num_characters))
        futures = [Future[SegmentResult]() for _ in segments]
        self.futures += futures
        return futures


class FakeServices:
    """Quota and answers of the owner."""

    def __init__(self) -> None:
        self.questions: list[tuple[Any, ...]] = []
        self.charged: list[tuple[str, int, int | None]] = []
        self.num_refunds = 0
        self.error: Exception | None = None

    @property
    def quota(self) -> "FakeServices":
        return self

    async def take_tokens(
        self, caller: str, num_tokens: int, *, decode_cost: Callable[[], int] | None = None
    ) -> Callable[[], None]:
        if self.error:
            raise self.error
        self.charged.append((caller, num_tokens, decode_cost() if decode_cost else None))
        return self.refund

    def refund(self) -> None:
        self.num_refunds += 1

    async def answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        self.questions.append((method, *arguments))
        return await self.take_tokens(*arguments) if method == "take_tokens" else None


class Pair:
    """Both ends, with one model."""

    def __init__(self) -> None:
        self.services, self.queue = FakeServices(), FakeQueue()
        start = StartCommand(settings=Settings(), index=1)
        self.session = FrontEndSession(start, self.services, ModelNumbers())
        self.owner = Owner()
        self.models = RemoteModels(self.owner)

    async def open(self) -> None:
        ours, theirs = socket.socketpair()
        await self.session.connect(ours)
        await self.owner.open(theirs)
        assert (await self.owner.started).index == 1
        self.session.announce(registry(loaded(self.queue)), 1)
        await until(lambda: self.session.published == 1)

    async def submit(self, *, num_characters: int = 9) -> Sequence[Future[SegmentResult]]:
        queue = self.models.resolve("", "en", "de").scheduler
        futures = await submit_remotely(queue, SEGMENTS, RECORD, num_characters)
        await asyncio.wait_for(self.queue.arrived.wait(), 10)
        return futures


def loaded(queue: FakeQueue, version: str = "1") -> LoadedModel:
    return LoadedModel(
        name="tiny",
        version=version,
        tokenizer=cast("Any", f"tokenizer {version}"),
        scheduler=cast("Any", queue),
        source_language="en",
        target_language="de",
        max_source_tokens=9,
        max_target_tokens=9,
        has_attention=False,
        confidence=None,
    )


class FakeManifest:
    """The languages of a model."""

    def languages(self) -> Any:
        return Languages.model_construct(sources={"en": "en"}, targets={"de": "de"}, pairs=None)


def registry(*models: LoadedModel) -> ModelRegistry:
    return ModelRegistry().with_entries(
        *(
            ModelVersionEntry(
                name=model.name,
                version=model.version,
                directory=Path("models"),
                state=ModelState.READY,
                manifest=cast("Any", FakeManifest()),
                model=model,
            )
            for model in models
        )
    )


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    await pair.open()
    yield pair
    pair.session.is_expected_to_end = True
    pair.session._connection.close()
    await pair.owner.has_ended.wait()
    await pair.session.has_ended.wait()


async def test_segments_are_charged_queued_and_answered(pair: Pair) -> None:
    futures = await pair.submit()

    ((segments, context, num_characters),) = pair.queue.calls
    assert (segments, num_characters) == (SEGMENTS, 9)
    assert (context.caller, context.deadline_s, context.priority) == ("shop", 12.5, Priority.BULK)
    assert pair.services.charged == [("shop", sum(len(one.source_ids) for one in SEGMENTS), 20)]
    for number, future in enumerate(pair.queue.futures):
        future.set_result(result_of(number))
    await until(lambda: all(future.done() for future in futures))
    assert [future.result() for future in futures] == [result_of(0), result_of(1)]


async def test_results_of_a_document_arrive_one_by_one(pair: Pair) -> None:
    futures = await pair.submit(num_characters=0)

    pair.queue.futures[1].set_result(result_of(1))
    await until(futures[1].done)

    assert futures[1].result() == result_of(1)
    assert not futures[0].done()


async def test_rejection_of_a_document_is_raised_by_the_submission(pair: Pair) -> None:
    pair.queue.rejection = FULL

    with pytest.raises(OverloadedError) as caught:
        await pair.submit(num_characters=0)

    assert vars(caught.value) == vars(FULL)
    assert pair.services.num_refunds == 1


async def test_rejection_of_a_request_is_the_error_of_its_futures(pair: Pair) -> None:
    pair.services.error = RateLimitedError(caller="shop", limit=1, unit="tokens", retry_after_s=1.0)

    queue = pair.models.resolve("", "en", "de").scheduler
    futures = await submit_remotely(queue, SEGMENTS, RECORD, 9)
    await until(lambda: all(future.done() for future in futures))

    assert {type(future.exception()) for future in futures} == {RateLimitedError}
    assert pair.queue.calls == []


async def test_error_of_a_segment_is_sent_at_once(pair: Pair) -> None:
    futures = await pair.submit()

    pair.queue.futures[0].set_exception(EngineError("decoding failed"))
    await until(futures[0].done)

    assert str(futures[0].exception()) == "decoding failed"


async def test_unexpected_error_becomes_an_engine_error(pair: Pair) -> None:
    pair.queue.rejection = ValueError("a defect")

    with pytest.raises(EngineError):
        await pair.submit(num_characters=0)


async def test_cancelled_call_cancels_its_segments_in_the_owner(pair: Pair) -> None:
    futures = await pair.submit()

    for future in futures:
        future.cancel()

    await until(lambda: all(future.cancelled() for future in pair.queue.futures))


async def test_end_of_a_front_end_cancels_its_segments_and_refunds_its_charges(pair: Pair) -> None:
    await pair.submit()
    number, _ = await pair.owner.ask("take_tokens", "shop", 5)
    assert number in pair.session._charges

    pair.owner._connection.close()
    await pair.session.has_ended.wait()

    assert all(future.cancelled() for future in pair.queue.futures)
    assert pair.services.num_refunds == 1
    assert not await pair.session.drained


async def test_end_of_the_owner_fails_calls_and_questions(pair: Pair) -> None:
    futures = await pair.submit()
    document = asyncio.ensure_future(pair.submit(num_characters=0))
    await until(lambda: len(pair.queue.calls) == 2)

    pair.session.is_expected_to_end = True
    pair.session._connection.close()
    await pair.owner.has_ended.wait()

    assert {type(future.exception()) for future in futures} == {DrainingError}
    for future in await document:
        assert isinstance(future.exception(), DrainingError)
    with pytest.raises(DrainingError):
        await submit_remotely(pair.models.resolve("", "en", "de").scheduler, SEGMENTS, RECORD, 9)


async def test_charge_in_advance_is_refunded_or_forgotten(pair: Pair, tmp_path: Path) -> None:
    callers = tmp_path / "callers.toml"
    callers.write_text(caller_entry("shop", new_key()), encoding="utf-8")
    settings = Settings().access.model_copy(update={"callers_file": callers})
    access = RemoteAccess(pair.owner, settings, Metrics(CollectorRegistry()))

    refund = await access.take_tokens("shop", 5)
    refund()
    await until(lambda: pair.services.num_refunds == 1)
    kept = await access.take_tokens("shop", 6)
    assert len(pair.session._charges) == 1
    del kept, refund
    gc.collect()
    await until(lambda: not pair.session._charges)

    assert pair.services.num_refunds == 1
    assert [charged[1] for charged in pair.services.charged] == [5, 6]


async def test_model_is_kept_until_the_front_end_has_released_it(pair: Pair) -> None:
    request = pair.models.resolve("", "en", "de")
    other = FakeQueue()

    pair.session.announce(registry(loaded(other, "2")), 2)
    await until(lambda: pair.session.published == 2)

    assert pair.models.resolve("tiny", "en", "de").version == "2"
    assert len(pair.session._models) == 2
    futures = await submit_remotely(request.scheduler, SEGMENTS, RECORD, 9)
    await until(lambda: len(pair.queue.futures) == 2)
    for future in pair.queue.futures:
        future.set_result(result_of(1))
    await until(lambda: all(future.done() for future in futures))
    del request
    gc.collect()
    await until(lambda: len(pair.session._models) == 1)


async def test_front_end_reports_its_start_and_its_drain(pair: Pair) -> None:
    assert not pair.session.is_listening
    pair.owner.send(Listening())
    await pair.session.listening
    assert pair.session.is_listening

    pair.session.drain()
    await pair.owner.must_drain.wait()
    pair.owner.send(Drained(is_complete=True))

    assert await pair.session.drained
