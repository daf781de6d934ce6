import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman_service.file_translation.upload import DocumentUpload


class SlowStore:
    """Store whose `begin` waits in its thread."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.is_removed = threading.Event()

    def begin(self, owner: str, num_bytes: int) -> Any:
        self.has_begun.set()
        assert self.may_end.wait(10)
        return SimpleNamespace(document_id="id")

    def remove(self, document_id: str) -> None:
        assert document_id == "id"
        self.is_removed.set()


@pytest.mark.parametrize("num_cancellations", [1, 2])  # a client that leaves ends the body and the task
async def test_document_is_removed_if_the_client_leaves_while_it_is_created(num_cancellations: int) -> None:
    store = SlowStore()
    source: Any = SimpleNamespace(
        header=lambda name: "multipart/form-data; boundary=b" if name == "content-type" else "", chunks=lambda: None
    )
    jobs: Any = SimpleNamespace(store=store, settings=SimpleNamespace(max_file_bytes=1024))
    upload = asyncio.create_task(DocumentUpload(source, jobs).store("shop"))
    await asyncio.to_thread(store.has_begun.wait, 10)

    for _ in range(num_cancellations):
        upload.cancel()
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(store.may_end.set)
    await asyncio.wait((upload,))

    assert upload.cancelled()
    assert await asyncio.to_thread(store.is_removed.wait, 10)
