"""Reads and writes uploaded files in child processes with limits of memory and time."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, cast

from dragoman.client.enums import TextFormat
from dragoman.documents.content import FileSegment
from dragoman_service.file_translation.parser_process import Command
from dragoman_service.file_translation.settings import DocumentSettings

_MODULE: Final = "dragoman_service.file_translation.parser_process"
# Environment variables of the child process; others may contain secrets.
_INHERITED: Final = ("PATH", "LD_LIBRARY_PATH", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", "LANG")

_CHUNK_BYTES: Final = 256 * 1024
_CHARACTER_BYTES: Final = 12  # maximum of a character in JSON
_LINE_BYTES: Final = 1024  # maximum of a line without its text

_MIB: Final = 1024 * 1024


class DocumentError(Exception):
    """The document cannot be translated; the message is for its owner."""


class FileParser:
    """Starts one process per file."""

    def __init__(self, settings: DocumentSettings) -> None:
        self._settings = settings

    async def read(self, source: Path, suffix: str, target_language: str) -> list[FileSegment]:
        """Return the segments of a file; DocumentError if it cannot be translated."""
        return await asyncio.to_thread(_segments, await self._run(self._command(source, suffix, target_language)))

    async def write(
        self,
        source: Path,
        suffix: str,
        target_language: str,
        translations: Sequence[str | None],
        result: Path,
        *,
        max_bytes: int,
    ) -> list[tuple[str, str]]:
        """Write the translated file; return place and reason of each segment that keeps its source.

        Raises:
            DocumentError: if the file cannot be written.
        """
        command = self._command(source, suffix, target_language, result=str(result), max_result_bytes=max_bytes)
        return [(place, reason) for place, reason in await self._run(command, translations)]

    def _command(self, source: Path, suffix: str, target_language: str, **more: Any) -> Command:
        return Command(
            source=str(source),
            suffix=suffix,
            target_language=target_language,
            max_segments=self._settings.max_segments,
            max_characters=self._settings.max_characters,
            memory_bytes=self._settings.parser_memory_bytes,
            timeout_s=self._settings.parser_timeout_s,
            **more,
        )

    async def _run(self, command: Command, translations: Sequence[str | None] = ()) -> list[Any]:
        # Returns the parsed output lines of a process, without the last, which is its result.
        lines = [asdict(command), *translations]
        sent = await asyncio.to_thread(lambda: b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", _MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={
                **{name: os.environ[name] for name in _INHERITED if name in os.environ},
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "MALLOC_ARENA_MAX": "1",
            },
            process_group=0,  # do not forward signals to the group of the server
        )
        try:
            async with asyncio.timeout(self._settings.parser_timeout_s):
                output, _ = await asyncio.gather(
                    self._output(process, cast("asyncio.StreamReader", process.stdout)),
                    _feed(cast("asyncio.StreamWriter", process.stdin), sent),
                )
                await process.wait()
        except TimeoutError:
            limit = f"{self._settings.parser_timeout_s:g} s (documents.parser_timeout_s)"
            raise DocumentError(f"processing the file exceeds {limit}") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        received = await asyncio.to_thread(lambda: [json.loads(line) for line in output.split(b"\n")[:-1]])
        if received and isinstance(received[-1], dict):
            error = received.pop().get("error")
        else:
            limits = f"{self._settings.parser_timeout_s:g} s and {self._settings.parser_memory_bytes // _MIB} MiB"
            error = f"the parser exited with code {process.returncode} (limits: {limits})"
        if error is not None:
            raise DocumentError(f"the file cannot be translated: {error}")
        return received

    async def _output(self, process: asyncio.subprocess.Process, stdout: asyncio.StreamReader) -> bytes:
        # Returns the output of a process; kills the process if the output exceeds the limits.
        limit = self._settings.max_characters * _CHARACTER_BYTES + self._settings.max_segments * _LINE_BYTES
        chunks: list[bytes] = []
        while limit > 0 and (chunk := await stdout.read(_CHUNK_BYTES)):
            chunks.append(chunk)
            limit -= len(chunk)
        if limit <= 0:
            process.kill()
        return b"".join(chunks)


async def _feed(stdin: asyncio.StreamWriter, sent: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the process has exited
        for start in range(0, len(sent), _CHUNK_BYTES):
            stdin.write(sent[start : start + _CHUNK_BYTES])
            await stdin.drain()
        stdin.close()
        await stdin.wait_closed()


def _segments(lines: Sequence[Any]) -> list[FileSegment]:
    return [FileSegment(text=text, format=TextFormat(text_format), place=place) for text, text_format, place in lines]
