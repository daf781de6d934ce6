import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman_service.vendor_apis.document_files import _FileResponse


@pytest.mark.parametrize(
    ("method", "is_broken", "is_counted"), [("GET", False, True), ("POST", True, False), ("HEAD", False, False)]
)
async def test_only_a_complete_download_counts(
    tmp_path: Path, method: str, *, is_broken: bool, is_counted: bool
) -> None:
    file, sent, completed = tmp_path / "result", [], []
    file.write_bytes(b"abc")
    disconnected = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if is_broken:
            disconnected.set()

    response = _FileResponse(file.open("rb"), "a.txt", lambda: completed.append(True))

    async def receive() -> Any:
        raise AssertionError("the request has no body")

    scope = {"method": method, "state": {"connection": SimpleNamespace(disconnected=disconnected)}}
    await response(scope, receive, send)

    assert (b"".join(sent), bool(completed)) == (b"" if method == "HEAD" else b"abc", is_counted)
