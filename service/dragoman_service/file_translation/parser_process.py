"""Process that reads or writes one uploaded file with limits of memory and time.

    python -m dragoman_service.file_translation.parser_process

`file_translation.parser` starts one process for each file, because files of callers are not trusted. The first line of
standard input is a `Command` in JSON. To write a file, one line per segment follows: its translation in JSON, or null.
Standard output has one line per segment that was read, `[text, format, place]`, or one per segment that keeps its
source when the file is written, `[place, reason]`. The last line is an object, with `error` if the file failed.
"""

import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dragoman.documents.content import FileContent, FileFormatError, MarkupLostError
from dragoman.documents.formats import FORMATS, ReadOptions

_MAX_OPEN_FILES = 64
_NICENESS = 10
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Command of the process."""

    source: str  # path of the file
    suffix: str  # extension, which determines the format
    target_language: str
    max_segments: int
    max_characters: int
    memory_bytes: int
    timeout_s: float
    result: str | None = None  # path of the file to write; None: only read
    max_result_bytes: int = 0


class _LimitError(Exception):
    """The file exceeds a limit."""


def main() -> int:
    """Read or write one file; return the exit code."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    silent = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):  # libraries must not write between the lines
        os.dup2(silent, descriptor)
    lines = sys.stdin.buffer
    command = Command(**json.loads(lines.readline()))
    _limit(command)
    try:
        content = _read(command)
        if command.result is None:
            _put(output, *([segment.text, int(segment.format), segment.place] for segment in content.segments))
        else:
            _put(output, *_write(content, [json.loads(line) for line in lines], Path(command.result)))
        _put(output, {})
    except MemoryError:
        _put(output, {"error": f"reading it needs more than {command.memory_bytes // _MIB} MiB of memory"})
    except RecursionError:
        _put(output, {"error": "it is nested too deeply"})
    except (FileFormatError, _LimitError) as error:
        _put(output, {"error": str(error)})
    except Exception as error:  # noqa: BLE001 - hostile files cause any error
        _put(output, {"error": f"it cannot be read ({type(error).__name__})"})
    return 0


def _limit(command: Command) -> None:
    """Limit the resources of this process, including those of native code."""
    seconds = max(1, round(command.timeout_s))
    limits = {
        resource.RLIMIT_AS: command.memory_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: seconds + 1,
        resource.RLIMIT_FSIZE: command.max_result_bytes,
        resource.RLIMIT_NOFILE: _MAX_OPEN_FILES,
        resource.RLIMIT_NPROC: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    signal.alarm(seconds + 1)  # ends the process if the server has died
    os.nice(_NICENESS)


def _read(command: Command) -> FileContent:
    options = ReadOptions(target_language=command.target_language)
    content = FORMATS[command.suffix].read(Path(command.source).read_bytes(), options)
    num_segments = len(content.segments)
    if num_segments > command.max_segments:
        raise _LimitError(f"it has {num_segments} texts (limit: at most {command.max_segments})")
    num_characters = sum(len(segment.text) for segment in content.segments)
    if num_characters > command.max_characters:
        raise _LimitError(f"it has {num_characters} characters (limit: at most {command.max_characters})")
    return content


def _write(content: FileContent, translations: list[str | None], result: Path) -> Iterator[list[str]]:
    """Write the translated file; yield the segments that keep their source."""
    for index, translation in enumerate(translations):
        if translation is not None:
            try:
                content.check(index, translation)
            except MarkupLostError as error:
                translations[index] = None
                yield [content.segments[index].place, str(error)]
    try:
        result.write_bytes(content.written(translations))
    except OSError as error:
        with contextlib.suppress(OSError):
            result.unlink(missing_ok=True)
        raise _LimitError(f"the translated file cannot be stored ({error.strerror})") from None


def _put(output: BinaryIO, *lines: Any) -> None:
    for line in lines:
        output.write(json.dumps(line).encode() + b"\n")
    output.flush()


if __name__ == "__main__":
    os._exit(main())  # skip destructors of objects from a hostile file
