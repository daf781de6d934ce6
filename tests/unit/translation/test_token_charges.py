"""What a request or a document costs its caller, and when."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.errors import InvalidFieldError, OverloadedError, RateLimitedError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestRecord, TranslationRequest
from dragoman_service.security.api_keys import Caller, Permission
from dragoman_service.security.rate_limits import RateLimiter
from dragoman_service.translation.options import TranslationLimits
from dragoman_service.translation.translator import Translator
from tests.fakes import ManualClock
from tests.unit.text.text_fakes import FakeModel, FakeQueue

PER_MIN = 6.0


class Account:
    """Of one caller, with what it was asked for."""

    def __init__(self, clock: ManualClock) -> None:
        self.asked: list[tuple[str, int]] = []
        self._limiter = RateLimiter(clock)
        self._caller = Caller(
            name="shop", certificates=("shop",), permissions=frozenset(Permission), tokens_per_min=PER_MIN
        )

    async def take_tokens(
        self, caller: str, num_tokens: int, *, work: Callable[[], int] | None = None
    ) -> Callable[[], None]:
        self.asked.append((caller, num_tokens))
        charges = self._limiter.take_tokens(caller, self._caller, num_tokens, work=work)

        def give_back() -> None:
            self.asked.append((caller, -num_tokens))
            self._limiter.give_back(charges)

        return give_back


class FullQueue(FakeQueue):
    def submit(self, segments: Any, *_: Any, **__: Any) -> Any:
        raise OverloadedError(queued=1, limit=1, unit="segments", retry_after_s=1.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def account(clock: ManualClock) -> Account:
    return Account(clock)


def request(text: str) -> TranslationRequest:
    return TranslationRequest(texts=(text,), source_language="en", target_language="de", model="toy")


def translator(queue: FakeQueue, account: Account, clock: ManualClock) -> Translator:
    metrics = Metrics(CollectorRegistry())
    return Translator(FakeModel(queue), metrics=metrics, clock=clock, quota=account)


async def test_request_costs_its_source_tokens(account: Account, clock: ManualClock) -> None:
    result = await translator(FakeQueue(), account, clock).translate(
        request("One two. Three."), RequestRecord(caller="shop")
    )

    assert {caller for caller, _ in account.asked} == {"shop"}
    assert sum(num_tokens for _, num_tokens in account.asked) == result.num_source_tokens
    assert result.num_source_tokens > 0


async def test_request_beyond_the_quota_is_not_queued(account: Account, clock: ManualClock) -> None:
    queue = FakeQueue()
    one = translator(queue, account, clock)
    await one.translate(request("One two three four five six seven."), RequestRecord(caller="shop"))
    num_queued = len(queue.segments)

    with pytest.raises(RateLimitedError):
        await one.translate(request("One."), RequestRecord(caller="shop"))

    assert len(queue.segments) == num_queued


async def test_rejected_long_text_is_charged_without_refund(account: Account, clock: ManualClock) -> None:
    limits = TranslationLimits(max_request_sentences=1)
    one = Translator(FakeModel(FakeQueue()), metrics=Metrics(CollectorRegistry()), limits=limits, quota=account)

    with pytest.raises(InvalidFieldError):
        await one.translate(request("One two three four. " * 200), RequestRecord(caller="shop"))

    assert account.asked == [("shop", 500)]
    with pytest.raises(RateLimitedError):
        await one.translate(request("One two."), RequestRecord(caller="shop"))


async def test_request_rejected_by_the_queue_costs_nothing(account: Account, clock: ManualClock) -> None:
    with pytest.raises(OverloadedError):
        await translator(FullQueue(), account, clock).translate(request("One two three."), RequestRecord())

    await translator(FakeQueue(), account, clock).translate(request("One two three."), RequestRecord())


async def test_document_beyond_the_quota_continues_at_its_rate(account: Account, clock: ManualClock) -> None:
    slept: list[float] = []

    async def sleep(delay: float) -> None:
        slept.append(delay)
        clock.advance(delay)

    documents = Translator(
        FakeModel(FakeQueue()),
        metrics=Metrics(CollectorRegistry()),
        limits=TranslationLimits(document_window_segments=1),
        clock=clock,
        sleep=sleep,
        quota=account,
    )
    sentences = documents.translate_document(request("One. Two. Three. Four. Five. Six."), RequestRecord(caller="shop"))

    assert len([sentence.text async for sentence in sentences]) == 6
    assert sum(slept) > 0


async def test_document_is_rejected_if_its_first_sentence_exceeds_the_quota(
    account: Account, clock: ManualClock
) -> None:
    await account.take_tokens("shop", 100)
    documents = Translator(
        FakeModel(FakeQueue()),
        metrics=Metrics(CollectorRegistry()),
        clock=clock,
        quota=account,
    )

    with pytest.raises(RateLimitedError):
        await anext(documents.translate_document(request("One."), RequestRecord(caller="shop")))
