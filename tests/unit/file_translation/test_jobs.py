import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.calls.flow_control import ConcurrencyLimiter
from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.datatypes import TextHypothesis, Translation
from dragoman_service.errors import RateLimitedError, RetryableError
from dragoman_service.file_translation.jobs import DocumentJobs, DocumentRequest, FairSlots
from dragoman_service.file_translation.settings import DocumentSettings
from dragoman_service.file_translation.store import DocumentState, DocumentStatus, DocumentStore, StorageFullError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestContext, TranslationRequest
from tests.fakes import ManualClock


class UpperCase:
    """Translator into upper case."""

    async def translate(self, request: TranslationRequest, _record: RequestContext) -> Any:
        class Result:
            translations = tuple(
                Translation(hypotheses=(TextHypothesis(text=text.upper(), score=0.0),), sentences=())
                for text in request.texts
            )

        return Result


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DocumentStore]:
    store = DocumentStore(DocumentSettings(directory=tmp_path), clock=ManualClock(1000.0))
    yield store
    store.close()


async def finished_state(store: DocumentStore) -> DocumentState:
    """Translate a document with two characters; return its final state."""
    settings = DocumentSettings()
    limiter = ConcurrencyLimiter(max_concurrent=1)
    limiter.open()
    translator: Any = UpperCase()
    jobs = DocumentJobs(
        settings,
        store,
        translator=translator,
        limiter=limiter,
        grpc=GrpcSettings(),
        metrics=Metrics(CollectorRegistry()),
    )
    document_id = store.begin("shop", 2).document_id
    store.source_path(document_id).write_bytes(b"a.")
    state, key = store.complete(document_id, file_name="a.txt", num_bytes=2)
    template = TranslationRequest(texts=(), source_language="en", target_language="de")
    await jobs.submit(state, DocumentRequest(suffix=".txt", template=template, request_id="r"))
    return store.get(document_id, key)


async def test_document_is_translated(store: DocumentStore) -> None:
    state = await finished_state(store)

    assert state.status is DocumentStatus.DONE
    assert store.result_path(state.document_id).read_bytes() == b"A."


@pytest.mark.parametrize(
    ("method", "error", "is_about_space"),
    [
        ("reserve", StorageFullError(limit=1, unit="bytes of stored documents"), True),
        ("reserve", RateLimitedError(caller="shop", limit=1, unit="bytes", retry_after_s=1.0), True),
        ("reserve", RetryableError("directory is locked", retry_after_s=1.0), False),
        ("finish", RetryableError("directory is locked", retry_after_s=1.0), False),
    ],
)
async def test_only_a_storage_limit_is_reported_as_lack_of_disk_space(
    store: DocumentStore, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, is_about_space: bool
) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise error

    monkeypatch.setattr(store, method, fail)
    state = await finished_state(store)

    assert state.status is DocumentStatus.ERROR
    assert str(error) in state.message
    assert ("disk space" in state.message) == is_about_space


class RunningDocument:
    """Holds a slot until `end` is called."""

    def __init__(self, slots: FairSlots, caller: str) -> None:
        self.is_running = False
        self._may_end = asyncio.Event()
        self.task = asyncio.create_task(self._run(slots, caller))

    async def _run(self, slots: FairSlots, caller: str) -> None:
        async with slots.taken(caller):
            self.is_running = True
            await self._may_end.wait()
        self.is_running = False

    async def end(self) -> None:
        self._may_end.set()
        await self.task


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def running(*documents: RunningDocument) -> list[bool]:
    await settle()
    return [document.is_running for document in documents]


async def test_slots_are_limited_in_all_and_per_caller() -> None:
    slots = FairSlots(total=3, per_caller=2)
    documents = [RunningDocument(slots, caller) for caller in ("a", "a", "a", "b", "c")]

    assert await running(*documents) == [True, True, False, True, False]
    await documents[3].end()
    assert await running(*documents) == [True, True, False, False, True]
    await documents[0].end()
    assert await running(*documents) == [False, True, True, False, True]
    for document in documents:
        await document.end()


async def test_caller_with_fewer_documents_goes_first() -> None:
    slots = FairSlots(total=2, per_caller=2)
    documents = [RunningDocument(slots, caller) for caller in ("a", "a", "a", "b")]
    assert await running(*documents) == [True, True, False, False]

    await documents[0].end()

    assert await running(*documents) == [False, True, False, True]
    for document in documents:
        await document.end()


@pytest.mark.parametrize("cancelled", [(0, 1), (1, 0)], ids=["running first", "waiting first"])
async def test_cancelled_documents_free_their_slots(cancelled: tuple[int, int]) -> None:
    slots = FairSlots(total=1, per_caller=1)
    documents = [RunningDocument(slots, caller) for caller in "abc"]
    assert await running(*documents) == [True, False, False]

    for index in cancelled:
        documents[index].task.cancel()

    assert await running(*documents) == [True, False, True]
    await documents[2].end()
    ended = await asyncio.gather(*(documents[index].task for index in cancelled), return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError] * 2
