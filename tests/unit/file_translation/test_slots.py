import asyncio

import pytest

from dragoman_service.file_translation.jobs import FairSlots


class Document:
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


async def running(*documents: Document) -> list[bool]:
    await settle()
    return [document.is_running for document in documents]


async def test_slots_are_limited_in_all_and_per_caller() -> None:
    slots = FairSlots(total=3, per_caller=2)
    documents = [Document(slots, caller) for caller in ("a", "a", "a", "b", "c")]

    assert await running(*documents) == [True, True, False, True, False]
    await documents[3].end()
    assert await running(*documents) == [True, True, False, False, True]
    await documents[0].end()
    assert await running(*documents) == [False, True, True, False, True]
    for document in documents:
        await document.end()


async def test_caller_with_fewer_documents_goes_first() -> None:
    slots = FairSlots(total=2, per_caller=2)
    documents = [Document(slots, caller) for caller in ("a", "a", "a", "b")]
    assert await running(*documents) == [True, True, False, False]

    await documents[0].end()

    assert await running(*documents) == [False, True, False, True]
    for document in documents:
        await document.end()


@pytest.mark.parametrize("cancelled", [(0, 1), (1, 0)], ids=["running first", "waiting first"])
async def test_cancelled_documents_free_their_places(cancelled: tuple[int, int]) -> None:
    slots = FairSlots(total=1, per_caller=1)
    documents = [Document(slots, caller) for caller in "abc"]
    assert await running(*documents) == [True, False, False]

    for index in cancelled:
        documents[index].task.cancel()

    assert await running(*documents) == [True, False, True]
    await documents[2].end()
    ended = await asyncio.gather(*(documents[index].task for index in cancelled), return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError] * 2
