import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from dragoman_service.file_translation.upload import DocumentUpload


class SlowStore:
    """Store whose `begin` waits in its thread."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.removed: list[str] = []

    def begin(self, owner: str, num_bytes: int) -> Any:
        self.has_begun.set()
        assert self.may_end.wait(10)
        return SimpleNamespace(document_id="id")

    def remove(self, document_id: str) -> None:
        self.removed.append(document_id)


async def test_document_is_removed_if_the_client_leaves_while_it_is_created() -> None:
    store = SlowStore()
    source: Any = SimpleNamespace(
        header=lambda name: "multipart/form-data; boundary=b" if name == "content-type" else "", chunks=lambda: None
    )
    jobs: Any = SimpleNamespace(store=store, settings=SimpleNamespace(max_file_bytes=1024))
    upload = asyncio.create_task(DocumentUpload(source, jobs).store("shop"))
    await asyncio.to_thread(store.has_begun.wait, 10)

    upload.cancel()
    asyncio.get_running_loop().call_soon(store.may_end.set)
    await asyncio.wait((upload,))

    assert upload.cancelled()
    assert store.removed == ["id"]
