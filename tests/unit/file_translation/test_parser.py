import asyncio
import io
import json
import os
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dragoman_service.file_translation.parser import DocumentError, FileParser
from dragoman_service.file_translation.parser_process import Command
from dragoman_service.file_translation.settings import DocumentSettings

MIB = 1024 * 1024
ENTITIES = "".join(f'<!ENTITY e{level} "{f"&e{level - 1};" * 10}">' for level in range(1, 10))
BILLION_LAUGHS = f'<!DOCTYPE x [<!ENTITY e0 "ha">{ENTITIES}]><xliff>&e9;</xliff>'.encode()
SLOW = b"**a" * 400_000  # Markdown that takes many seconds


async def read(path: Path, content: bytes, suffix: str, **settings: Any) -> list[str]:
    path.write_bytes(content)
    segments = await FileParser(DocumentSettings.model_validate(settings)).read(path, suffix, "de")
    return [segment.text for segment in segments]


def zip_bomb() -> bytes:
    with zipfile.ZipFile(content := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr("word/document.xml", bytes(20 * MIB))
    return content.getvalue()


async def test_file_is_read_and_written(tmp_path: Path) -> None:
    source, result = tmp_path / "source", tmp_path / "result"
    parser = FileParser(DocumentSettings())

    assert await read(source, b"<p>One <b>two</b>.</p><p>Three</p>", ".html") == ["One <b>two</b>.", "Three"]
    assert await parser.write(source, ".html", "de", ["Eins <b>zwei</b>.", None], result, max_bytes=1000) == []
    assert result.read_bytes() == b"<p>Eins <b>zwei</b>.</p><p>Three</p>"


async def test_translation_without_its_markup_keeps_the_source(tmp_path: Path) -> None:
    source, result = tmp_path / "source", tmp_path / "result"
    source.write_bytes(b"One **two**.\n")

    kept = await FileParser(DocumentSettings()).write(source, ".md", "de", ["Eins zwei."], result, max_bytes=1000)

    assert [place for place, _ in kept] == ["line 1"]
    assert result.read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    ("suffix", "content", "settings", "cause"),
    [
        (".docx", b"garbage", {}, "not DOCX"),
        (".docx", zip_bomb(), {}, "unpacked size"),
        (".txt", b"\xff\xfe", {}, "UTF-8"),
        (".json", b"[" * 100_000, {}, "not JSON"),
        (".xlf", BILLION_LAUGHS, {}, "cannot be translated"),
        (".html", b"<i>" * 1_000_000, {"parser_memory_bytes": 64 * MIB}, "64 MiB"),
        (".md", SLOW, {"parser_timeout_s": 0.3}, "documents.parser_timeout_s"),
        (".html", b"<p>a</p><p>b</p>", {"max_segments": 1}, "at most 1"),
        (".txt", b"abc", {"max_characters": 2}, "at most 2"),
    ],
)
async def test_hostile_file_is_an_error(
    tmp_path: Path, suffix: str, content: bytes, settings: dict[str, Any], cause: str
) -> None:
    with pytest.raises(DocumentError, match=cause):
        await read(tmp_path / "source", content, suffix, **settings)


async def test_size_of_the_result_is_limited(tmp_path: Path) -> None:
    source, result = tmp_path / "source", tmp_path / "result"
    source.write_bytes(b"One.")

    with pytest.raises(DocumentError, match="cannot be stored"):
        await FileParser(DocumentSettings()).write(source, ".txt", "de", ["Eins. " * 1000], result, max_bytes=100)

    assert not result.exists()


async def test_cancellation_kills_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def started(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        processes.append(await start(*args, **options))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    reading = asyncio.create_task(read(tmp_path / "source", SLOW, ".md"))
    while not processes:
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait((reading,))

    assert processes[0].returncode == -9


async def test_process_does_not_inherit_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: dict[str, str] = {}

    async def started(*_: Any, env: dict[str, str], **__: Any) -> None:
        passed.update(env)
        raise OSError

    monkeypatch.setenv("DRAGOMAN_SECRET", "x")
    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    with pytest.raises(OSError):  # noqa: PT011
        await read(tmp_path / "source", b"", ".txt")

    assert "PYTHONPATH" in passed
    assert "DRAGOMAN_SECRET" not in passed


async def test_process_ends_after_its_time_limit(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(SLOW)
    command = Command(
        source=str(source),
        suffix=".md",
        target_language="de",
        max_segments=1,
        max_characters=10**9,
        memory_bytes=512 * MIB,
        timeout_s=0.1,
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dragoman_service.file_translation.parser_process"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    await process.communicate(json.dumps(asdict(command)).encode() + b"\n")

    assert process.returncode is not None
    assert process.returncode < 0
