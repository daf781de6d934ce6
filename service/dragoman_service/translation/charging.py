"""Charges the source tokens and the decode cost of segments to their caller, and queues the segments."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from dragoman_service.datatypes import Segment
from dragoman_service.models.model import Futures, SegmentQueue
from dragoman_service.request import RequestRecord
from dragoman_service.translation.interfaces import Quota
from dragoman_service.translation.text_work import num_source_tokens


class Submit(Protocol):
    """Charges and queues segments."""

    async def __call__(
        self, queue: SegmentQueue, segments: Sequence[Segment], record: RequestRecord, num_characters: int, /
    ) -> Futures:
        """Queue all segments or none, as `SegmentQueue.submit`; RateLimitedError if the caller exceeds its quota."""


async def charge(
    quota: Quota | None, caller: str, num_tokens: int, decode_cost: Callable[[], int] | None = None
) -> Callable[[], None]:
    """Charge as `Quota.take_tokens`; without a quota or tokens, charge nothing."""
    if quota is None or not num_tokens:
        return lambda: None
    return await quota.take_tokens(caller, num_tokens, decode_cost=decode_cost)


async def submit_charged(
    quota: Quota | None, queue: SegmentQueue, segments: Sequence[Segment], record: RequestRecord, num_characters: int
) -> Futures:
    """Charge segments and submit them to a queue; a rejection refunds the charge."""
    decode_cost = partial(queue.expected_decode_cost, segments)
    refund = await charge(quota, record.caller, num_source_tokens(segments), decode_cost)
    try:
        return queue.submit(segments, record, num_characters=num_characters)
    except BaseException:
        refund()
        raise
