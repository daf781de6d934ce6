"""Uploaded documents: DeepL's own client for Python, LibreTranslate's requests, and servers that share a directory."""

import asyncio
import contextlib
import errno
import io
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepl
import docx
import httpx
import pytest

from dragoman_service.errors import ConfigError
from dragoman_service.file_translation.store import INTERRUPTED, REPEAT_S, DocumentStatus, DocumentStore
from dragoman_service.security.api_keys import new_key
from tests.integration.running_server import (
    TEST_TIMEOUT_S,
    RunningServer,
    bearer,
    http_client,
    running_server,
    write_callers,
)
from tests.integration.vendors.vendor_clients import TEXTS, translated, with_deepl
from tests.waiting import until

FORM = {"source_lang": "EN", "target_lang": "DE"}
LIBRE_FORM = {"source": "en", "target": "de"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "documents").mkdir()
    return tmp_path / "documents"


@pytest.fixture
async def server(tiny_model: Path, directory: Path) -> AsyncIterator[RunningServer]:
    async with running_server(tiny_model, documents__directory=directory) as server:
        yield server


def client_of(server: RunningServer, key: str = "any") -> contextlib.AbstractAsyncContextManager[httpx.AsyncClient]:
    return http_client(server, headers={"authorization": f"DeepL-Auth-Key {key}"})


@pytest.fixture
async def http(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(server) as client:
        yield client


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepL's client waits for 5 s between two requests for a status."""
    clock = SimpleNamespace(time=time.time, sleep=lambda _: time.sleep(0.01))
    monkeypatch.setattr("deepl.translator.time", clock)


async def uploaded(
    http: httpx.AsyncClient, content: bytes | str = "A man rides a bicycle.", name: str = "a.txt", **fields: str
) -> dict[str, str]:
    response = await http.post("/v2/document", data={**FORM, **fields}, files={"file": (name, content)})
    assert response.status_code == 200, response.text
    handle: dict[str, str] = response.json()
    return handle


async def asked(http: httpx.AsyncClient, handle: dict[str, str], result: str = "") -> httpx.Response:
    return await http.post(
        f"/v2/document/{handle['document_id']}{result}", json={"document_key": handle["document_key"]}
    )


async def ended(http: httpx.AsyncClient, handle: dict[str, str]) -> dict[str, Any]:
    """Wait until a document is done or failed; return the last status response."""
    async with asyncio.timeout(TEST_TIMEOUT_S):
        while (status := (await asked(http, handle)).json())["status"] not in ("done", "error"):
            await asyncio.sleep(0.01)
    answer: dict[str, Any] = status
    return answer


def documents(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if not path.name.startswith(".")]


def word_document() -> bytes:
    document = docx.Document()
    for sentence in TEXTS:
        document.add_paragraph(sentence)
    written = io.BytesIO()
    document.save(written)
    return written.getvalue()


def paragraphs(content: bytes) -> list[str]:
    return [paragraph.text for paragraph in docx.Document(io.BytesIO(content)).paragraphs]


@pytest.mark.usefixtures("quick_polls")
@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("a.docx", word_document(), paragraphs),
        ("a.txt", "{}\n\n{}".format(*TEXTS).encode(), lambda content: content.decode().split("\n\n")),
    ],
)
async def test_deepl_client_gets_the_translated_file(
    server: RunningServer, tmp_path: Path, name: str, content: bytes, read: Callable[[bytes], list[str]]
) -> None:
    source, output = tmp_path / name, tmp_path / f"out-{name}"
    source.write_bytes(content)

    status = await with_deepl(
        server,
        lambda client: client.translate_document_from_filepath(source, output, source_lang="EN", target_lang="DE"),
    )

    assert (status.done, status.error_message) == (True, None)
    assert status.billed_characters == sum(map(len, TEXTS))
    assert read(output.read_bytes()) == await translated(server, *TEXTS)


def seconds_to_expiry(directory: Path) -> float:
    (document,) = documents(directory)
    return float(json.loads((directory / document / "state.json").read_bytes())["expires_s"]) - time.time()


async def test_download_can_be_repeated_for_a_minute(
    server: RunningServer, http: httpx.AsyncClient, directory: Path
) -> None:
    handle = await uploaded(http)
    await ended(http, handle)

    first = await asked(http, handle, "/result")
    second, status = await asked(http, handle, "/result"), await asked(http, handle)

    assert (first.status_code, first.text) == (200, (await translated(server, "A man rides a bicycle."))[0])
    assert first.headers["content-disposition"] == "attachment; filename*=UTF-8''a.txt"
    assert (second.text, status.json()["status"]) == (first.text, "done")
    await until(lambda: seconds_to_expiry(directory) <= REPEAT_S)  # set after the response is sent
    usage = (await http.get("/v2/usage")).json()
    assert usage["character_count"] == len("A man rides a bicycle.")


async def test_head_does_not_count_as_a_download(server: RunningServer, directory: Path) -> None:
    async with http_client(server) as http:
        response = await http.post("/translate_file", data=LIBRE_FORM, files={"file": ("a.txt", TEXTS[0])})
        address = response.json()["translatedFileUrl"]
        head = await http.head(address)
        unread = [await http.head(path) for path in ("/languages", "/v2/usage", "/v1/models", "/openapi.json")]

        assert (head.status_code, head.content, int(head.headers["content-length"]) > 0) == (200, b"", True)
        assert [each.status_code for each in unread] == [200] * 4
        assert seconds_to_expiry(directory) > REPEAT_S
        assert (await http.get(address)).status_code == 200
        await until(lambda: seconds_to_expiry(directory) <= REPEAT_S)  # set after the response is sent


async def test_wrong_key_or_id_is_not_found(http: httpx.AsyncClient) -> None:
    handle = await uploaded(http)
    wrong = [{**handle, "document_key": "0" * 64}, {**handle, "document_id": "0" * 32}, {**handle, "document_id": ".."}]

    assert [(await asked(http, each)).status_code for each in wrong] == [404, 404, 404]
    assert (await http.post(f"/v2/document/{handle['document_id']}", json={})).status_code == 400


@pytest.mark.parametrize(
    ("name", "fields", "named"),
    [
        ("a.pdf", {}, "file"),
        ("a", {}, "file"),
        ("a.txt", {"output_format": "docx"}, "output_format"),
        ("a.txt", {"target_lang": "XX"}, "target_lang"),
        ("a.txt", {"formality": "more"}, "formality"),
        ("a.txt", {"glossary_id": "none"}, "glossary_id"),
        ("a.txt", {"other": "x"}, "other"),
    ],
)
async def test_invalid_upload_is_rejected(
    http: httpx.AsyncClient, directory: Path, name: str, fields: dict[str, str], named: str
) -> None:
    response = await http.post("/v2/document", data={**FORM, **fields}, files={"file": (name, b"A man.")})

    assert response.status_code in (400, 404)
    assert response.json()["message"].startswith(f"{named}: ")
    assert documents(directory) == []


async def test_file_with_a_wrong_extension_fails(http: httpx.AsyncClient) -> None:
    status = await ended(http, await uploaded(http, b"garbage", "a.docx"))

    assert status["status"] == "error"
    assert "DOCX" in status["error_message"]


async def test_too_large_files_and_too_many_documents_are_rejected(tiny_model: Path, directory: Path) -> None:
    async def content() -> AsyncIterator[bytes]:  # without a Content-Length
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
        for _ in range(4):
            yield b"a" * 1024

    limits = {"documents__max_file_bytes": 2048, "documents__max_caller_documents": 1}
    async with (
        running_server(tiny_model, documents__directory=directory, **limits) as server,
        client_of(server) as http,
    ):
        declared = await http.post("/v2/document", data=FORM, files={"file": ("a.txt", b"a" * 3000)})
        headers = {"content-type": "multipart/form-data; boundary=b"}
        streamed = await http.post("/v2/document", content=content(), headers=headers)
        assert documents(directory) == []
        await uploaded(http)
        second = await http.post("/v2/document", data=FORM, files={"file": ("a.txt", b"a")})

    assert [response.status_code for response in (declared, streamed, second)] == [413, 413, 429]


@pytest.mark.parametrize(("path", "form"), [("/v2/document", FORM), ("/translate_file", LIBRE_FORM)])
async def test_compressed_upload_is_rejected_with_the_header(
    http: httpx.AsyncClient, directory: Path, path: str, form: dict[str, str]
) -> None:
    files, headers = {"file": ("a.txt", b"A man.")}, {"content-encoding": "gzip"}

    rejected = await http.post(path, data=form, files=files, headers=headers)

    assert (rejected.status_code, rejected.headers["accept-encoding"]) == (415, "identity")
    assert "content-encoding" in rejected.text
    assert documents(directory) == []
    assert (await http.post(path, data=form, files=files, headers={"content-encoding": "identity"})).is_success


@pytest.mark.usefixtures("quick_polls")
async def test_full_disk_rejects_uploads_and_fails_documents(
    server: RunningServer, directory: Path, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    server.model.halt()
    handle = await uploaded(http)
    await server.model.halted_step()
    stored = documents(directory)

    with monkeypatch.context() as patched:
        patched.setattr(DocumentStore, "_write", full)
        answers = [
            await http.post("/v2/document", data=FORM, files={"file": ("a.txt", b"a")}),
            await http.post("/translate_file", data=LIBRE_FORM, files={"file": ("a.txt", b"a")}),
        ]
        assert documents(directory) == stored
        server.model.resume()

        def wait(client: deepl.DeepLClient) -> deepl.DocumentStatus:
            deepl_handle = deepl.DocumentHandle(handle["document_id"], handle["document_key"])
            return client.translate_document_wait_until_done(deepl_handle, timeout_s=round(TEST_TIMEOUT_S))

        failed = await with_deepl(server, wait)

    assert (failed.ok, "full" in str(failed.error_message)) == (False, True)

    for answer in answers:
        assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (503, True)
    assert not (directory / handle["document_id"] / "source").exists()


async def test_servers_with_the_same_directory_answer_for_each_other(
    server: RunningServer, http: httpx.AsyncClient, tiny_model: Path, directory: Path
) -> None:
    async with running_server(tiny_model, documents__directory=directory) as other, client_of(other) as other_http:
        handle = await uploaded(http)
        status = await ended(other_http, handle)
        answers = await asyncio.gather(asked(http, handle, "/result"), asked(other_http, handle, "/result"))

    assert status["status"] == "done"
    assert [answer.status_code for answer in answers] == [200, 200]


async def test_document_of_a_stopped_server_fails(tiny_model: Path, directory: Path) -> None:
    async with running_server(tiny_model, documents__directory=directory) as other, client_of(other) as other_http:
        async with running_server(tiny_model, documents__directory=directory) as server, client_of(server) as http:
            server.model.halt()
            handle = await uploaded(http)
            await server.model.halted_step()
            assert (await asked(other_http, handle)).json()["status"] == DocumentStatus.TRANSLATING
            is_early = await asked(other_http, handle, "/result")
            server.model.resume()
        status = (await asked(other_http, handle)).json()

    assert is_early.status_code == 503
    assert (status["status"], status["error_message"]) == ("error", INTERRUPTED)


async def test_work_on_an_expired_document_ends(tiny_model: Path, directory: Path) -> None:
    async with (
        running_server(tiny_model, documents__directory=directory, documents__expiry_s=1) as server,
        client_of(server) as http,
    ):
        server.model.halt()
        await uploaded(http)
        await server.model.halted_step()
        await until(lambda: server.sample("dragoman_documents_total", outcome="expired") == 1)
        await server.until_sample(0, "dragoman_requests_in_flight", method="UploadDocument")
        server.model.resume()

    assert documents(directory) == []


async def test_uploads_are_rejected_without_a_directory(tiny_model: Path) -> None:
    async with running_server(tiny_model) as server, client_of(server) as http:
        for_deepl = await http.post("/v2/document", data=FORM, files={"file": ("a.txt", b"a")})
        for_libretranslate = await http.post("/translate_file", data=LIBRE_FORM, files={"file": ("a.txt", b"a")})

    assert (for_deepl.status_code, [*for_deepl.json()]) == (404, ["message"])
    assert (for_libretranslate.status_code, [*for_libretranslate.json()]) == (403, ["error"])


async def test_libretranslate_returns_a_url_for_the_download(server: RunningServer, http: httpx.AsyncClient) -> None:
    response = await http.post("/translate_file", data=LIBRE_FORM, files={"file": ("a b/ü.txt", TEXTS[0])})
    address = response.json()["translatedFileUrl"]
    async with httpx.AsyncClient(timeout=TEST_TIMEOUT_S, trust_env=False) as without_key:
        first, second = await without_key.get(address), await without_key.get(address)
        other = await without_key.get(f"{address.rpartition('/')[0]}/state.json")

    assert first.text == second.text == (await translated(server, TEXTS[0]))[0]
    assert first.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BC.txt"
    assert (other.status_code, [*other.json()]) == (404, ["error"])


async def test_document_in_the_target_language_is_unchanged(http: httpx.AsyncClient) -> None:
    german = "Das ist ein schöner Tag."
    handles = [await uploaded(http, german, source_lang=source, target_lang="DE") for source in ("DE", "")]
    for handle in handles:
        await ended(http, handle)

    assert [(await asked(http, handle, "/result")).text for handle in handles] == [german] * 2


async def test_options_of_an_upload_may_be_in_the_query(http: httpx.AsyncClient) -> None:
    file = {"file": ("a.txt", TEXTS[0])}
    answers = [
        await http.post("/v2/document", params=FORM, files=file),
        await http.post("/v2/document", params=FORM, data={"target_lang": "xx"}, files=file),
        await http.post("/translate_file", params=LIBRE_FORM, files=file),
    ]

    assert [answer.status_code for answer in answers] == [200, 400, 200]


async def test_download_link_has_the_public_address(tiny_model: Path, directory: Path) -> None:
    settings = {"documents__directory": directory, "http__public_url": "https://mt.example/mt"}
    async with running_server(tiny_model, **settings) as server, client_of(server) as http:
        response = await http.post("/mt/translate_file", data=LIBRE_FORM, files={"file": ("a.txt", TEXTS[0])})
        address = response.json()["translatedFileUrl"]
        download = await http.get(address.removeprefix("https://mt.example"))
        spec = await http.get("/openapi.json")

    assert address.startswith("https://mt.example/mt/download_file/")
    assert download.status_code == 200
    assert spec.json()["servers"] == [{"url": "https://mt.example/mt"}]


@pytest.mark.parametrize(
    ("name", "content", "target"), [("a.docx", b"garbage", "de"), ("a.txt", b"a", "xx")], ids=["file", "language"]
)
async def test_libretranslate_errors_have_its_form(
    http: httpx.AsyncClient, directory: Path, name: str, content: bytes, target: str
) -> None:
    form = {**LIBRE_FORM, "target": target}
    response = await http.post("/translate_file", data=form, files={"file": (name, content)})

    assert (response.status_code, [*response.json()]) == (400, ["error"])
    assert documents(directory) == []


async def test_document_belongs_to_its_caller(tiny_model: Path, directory: Path, tmp_path: Path) -> None:
    keys = {name: new_key() for name in ("owner", "other")}
    settings = {"documents__directory": directory, "access__callers_file": write_callers(tmp_path, keys)}
    async with (
        running_server(tiny_model, **settings) as server,
        client_of(server, keys["owner"]) as owner,
        client_of(server, keys["other"]) as other,
        client_of(server, "wrong") as unknown,
    ):
        handle = await uploaded(owner)
        assert (await ended(owner, handle))["status"] == "done"
        by_other = await asked(other, handle, "/result")
        by_unknown = await unknown.post("/v2/document", data=FORM, files={"file": ("a.txt", b"a")})

    assert (by_other.status_code, by_unknown.status_code) == (404, 403)


async def test_libretranslate_accepts_a_key_before_or_shortly_after_the_file(
    tiny_model: Path, directory: Path, tmp_path: Path
) -> None:
    key = new_key()
    settings = {"documents__directory": directory, "access__callers_file": write_callers(tmp_path, {"shop": key})}
    small: dict[str, Any] = {"file": ("a.txt", b"A man.")}
    after = small | {name: (None, value) for name, value in {**LIBRE_FORM, "api_key": key}.items()}
    after_large = after | {"file": ("a.txt", b"A man.\n" * 100_000)}
    requests: list[dict[str, Any]] = [
        {"params": {"api_key": key}, "data": LIBRE_FORM, "files": small},
        {"headers": dict(bearer(key)), "data": LIBRE_FORM, "files": small},
        {"files": after},
        {"data": LIBRE_FORM, "files": small},
        {"data": {**LIBRE_FORM, "api_key": "wrong"}, "files": small},
        {"files": after_large},
    ]
    async with running_server(tiny_model, **settings) as server, http_client(server) as http:
        responses = [await http.post("/translate_file", **fields) for fields in requests]

    assert [response.status_code for response in responses] == [200, 200, 200, 403, 403, 403]


async def test_work_ends_when_the_libretranslate_client_disconnects(
    server: RunningServer, http: httpx.AsyncClient, directory: Path
) -> None:
    server.model.halt()
    request = asyncio.create_task(http.post("/translate_file", data=LIBRE_FORM, files={"file": ("a.txt", b"A man.")}))
    await server.model.halted_step()
    request.cancel()
    await asyncio.wait((request,))

    await until(lambda: not documents(directory))
    await server.until_sample(1, "dragoman_documents_total", outcome="interrupted")
    await server.until_sample(0, "dragoman_requests_in_flight", method="UploadDocument")


@contextlib.asynccontextmanager
async def unfinished_upload(server: RunningServer) -> AsyncIterator[asyncio.StreamReader]:
    """Send the beginning of a form; yield the reader of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.ports.http_port)
    try:
        writer.write(
            b"POST /v2/document HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nA man'
        )
        yield reader
    finally:
        writer.close()


async def test_slow_upload_is_removed(tiny_model: Path, directory: Path) -> None:
    settings = {"documents__directory": directory, "documents__upload_timeout_s": 0.05}
    async with running_server(tiny_model, **settings) as server, unfinished_upload(server) as answer:
        assert (await answer.readline()).split()[1] == b"504"

    assert documents(directory) == []


async def test_upload_of_a_client_that_disconnects_is_removed(server: RunningServer, directory: Path) -> None:
    async with unfinished_upload(server):
        await until(lambda: len(documents(directory)) == 1)

    await until(lambda: not documents(directory))


async def test_draining_ends_uploads_and_work(server: RunningServer, http: httpx.AsyncClient, directory: Path) -> None:
    server.model.halt()
    await uploaded(http)
    await server.model.halted_step()
    async with unfinished_upload(server) as answer:
        await server.until_sample(1, "dragoman_requests_in_flight", method="UploadDocument")
        await until(lambda: len(documents(directory)) == 2)

        assert await server.app.drain()
        assert (await answer.readline()).split()[1] == b"503"

    assert len(documents(directory)) == 1
    assert server.sample("dragoman_documents_total", outcome="interrupted") == 1


@pytest.mark.parametrize(
    "settings", [{"documents__directory": Path("/nowhere")}, {"documents__directory": Path(), "http__api": False}]
)
async def test_unusable_directory_stops_the_server(tiny_model: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"documents\.directory"):
        async with running_server(tiny_model, **settings):
            pass
