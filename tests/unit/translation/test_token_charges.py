"""Charges of requests and documents to the quota of their caller."""

from collections.abc import Callable
from typing import Any

import pytest

from dragoman_service.datatypes import WarningKind
from dragoman_service.errors import InvalidFieldError, OverloadedError, RateLimitedError
from dragoman_service.request import RequestContext
from dragoman_service.security.api_keys import Caller, Permission
from dragoman_service.security.rate_limits import RateLimiter
from dragoman_service.translation.settings import TranslationLimits
from dragoman_service.translation.translator import Translator
from tests.fakes import ManualClock
from tests.unit.text.text_fakes import FakeModel, FakeQueue, encipher, make_request, make_translator

SHOP = RequestContext(caller="shop")


class Account:
    """Quota of one caller, which records the charges."""

    def __init__(self, clock: ManualClock, *, tokens_per_min: float = 6.0) -> None:
        self.charges: list[tuple[str, int]] = []
        self._limiter = RateLimiter(clock)
        self._caller = Caller(
            name="shop", certificates=("shop",), permissions=frozenset(Permission), tokens_per_min=tokens_per_min
        )

    async def take_tokens(
        self, caller: str, num_tokens: int, decode_cost: Callable[[], int] | None = None
    ) -> Callable[[], None]:
        self.charges.append((caller, num_tokens))
        charges = self._limiter.take_tokens(caller, self._caller, num_tokens, decode_cost=decode_cost)

        def refund() -> None:
            self.charges.append((caller, -num_tokens))
            self._limiter.refund(charges)

        return refund


class FullQueue(FakeQueue):
    def submit(self, *_: Any, **__: Any) -> Any:
        raise OverloadedError(queued=9, limit=10, unit="segments", retry_after_s=1.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def account(clock: ManualClock) -> Account:
    return Account(clock)


def charged_translator(account: Account, clock: ManualClock, queue: FakeQueue | None = None, **rest: Any) -> Translator:
    return make_translator(FakeModel(queue or FakeQueue()), clock=clock, take_tokens=account.take_tokens, **rest)


@pytest.mark.parametrize("text", ["One two. Three.", "One two three four. " * 200], ids=["short", "long"])
async def test_request_costs_its_source_tokens(account: Account, clock: ManualClock, text: str) -> None:
    result = await charged_translator(account, clock, FakeQueue(encipher)).translate(make_request(text), SHOP)

    assert {caller for caller, _ in account.charges} == {"shop"}
    assert sum(num_tokens for _, num_tokens in account.charges) == result.num_source_tokens
    assert result.num_source_tokens > 0


async def test_second_searches_are_charged(clock: ManualClock) -> None:
    account, queue = Account(clock, tokens_per_min=600.0), FakeQueue()  # whose translation is a copy
    result = await charged_translator(account, clock, queue).translate(make_request("Now."), SHOP)

    assert len(queue.segments) == 2
    assert sum(num_tokens for _, num_tokens in account.charges) == 2 * result.num_source_tokens


async def test_second_search_beyond_the_quota_is_skipped(account: Account, clock: ManualClock) -> None:
    queue = FakeQueue()

    result = await charged_translator(account, clock, queue).translate(make_request("One two three."), SHOP)

    assert len(queue.segments) == 1
    assert [warning.kind for warning in result.translations[0].warnings] == [WarningKind.REPAIR_SKIPPED]


async def test_request_beyond_the_quota_is_not_queued(account: Account, clock: ManualClock) -> None:
    queue = FakeQueue()
    translator = charged_translator(account, clock, queue)
    await translator.translate(make_request("One two three four five six seven."), SHOP)
    num_queued = len(queue.segments)

    with pytest.raises(RateLimitedError):
        await translator.translate(make_request("One."), SHOP)

    assert len(queue.segments) == num_queued


async def test_rejected_long_text_is_charged_without_refund(account: Account, clock: ManualClock) -> None:
    translator = charged_translator(account, clock, limits=TranslationLimits(max_request_sentences=1))

    with pytest.raises(InvalidFieldError):
        await translator.translate(make_request("One two three four. " * 200), SHOP)

    assert account.charges == [("shop", 500)]
    with pytest.raises(RateLimitedError):
        await translator.translate(make_request("One two."), SHOP)


async def test_request_rejected_by_the_queue_costs_nothing(account: Account, clock: ManualClock) -> None:
    with pytest.raises(OverloadedError):
        await charged_translator(account, clock, FullQueue()).translate(make_request("One two three."), SHOP)

    await charged_translator(account, clock).translate(make_request("One two three."), SHOP)


async def test_document_beyond_the_quota_continues_at_its_rate(account: Account, clock: ManualClock) -> None:
    slept: list[float] = []

    async def sleep(delay: float) -> None:
        slept.append(delay)
        clock.advance(delay)

    translator = charged_translator(account, clock, limits=TranslationLimits(document_window_segments=1), sleep=sleep)
    sentences = translator.translate_document(make_request("One. Two. Three. Four. Five. Six."), SHOP)

    assert len([sentence.text async for sentence in sentences]) == 6
    assert sum(slept) > 0


async def test_document_is_rejected_if_its_first_sentence_exceeds_the_quota(
    account: Account, clock: ManualClock
) -> None:
    await account.take_tokens("shop", 100)

    with pytest.raises(RateLimitedError):
        await anext(charged_translator(account, clock).translate_document(make_request("One."), SHOP))
