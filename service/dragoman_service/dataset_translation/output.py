"""Output directory: parts, rejects and the manifest, from which a run resumes.

A part is written under a hidden name and renamed. The manifest lists the completed blocks with the size of their
rejects; a block that it does not list is translated again and replaces its part, and its rejects are removed.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

import dragoman
from dragoman_service.dataset_translation.files import Block, InputFile, Rows, json_line
from dragoman_service.dataset_translation.settings import Columns, DatasetError

MANIFEST: Final = "manifest.json"
REJECTS: Final = "rejects.jsonl"
_TEMPORARY: Final = ".tmp-"
_FORMAT_VERSION: Final = 1
_FLAGS: Final = ("text_column", "column", "format", "block_rows", "source_language", "target_language", "beam_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedRow:
    """Translation of one text; `reason` is set if it was rejected."""

    text: str = ""
    score: float = 0.0
    warnings: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResult:
    """Report of a process about a block that it has written; `error` ends the run."""

    index: int
    num_translated: int = 0
    rejects: tuple[tuple[str, str], ...] = ()  # id and reason
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Manifest:
    """State of a run."""

    settings: Mapping[str, Any]
    inputs: list[dict[str, Any]]
    num_blocks: int
    blocks: dict[int, dict[str, int]] = field(default_factory=dict)  # completed ones

    def count(self, name: str) -> int:
        """Return a sum over the completed blocks: `translated` or `rejected` rows, or `rejects_bytes`."""
        return sum(block[name] for block in self.blocks.values())

    @property
    def is_complete(self) -> bool:
        """True if all blocks are completed."""
        return len(self.blocks) == self.num_blocks

    def to_json(self) -> bytes:
        """Return the content of the file."""
        content = {
            "format_version": _FORMAT_VERSION,
            "dragoman_version": dragoman.__version__,
            "is_complete": self.is_complete,
            "settings": self.settings,
            "inputs": self.inputs,
            "rows": {
                "total": sum(each["rows"] for each in self.inputs),
                "translated": self.count("translated"),
                "rejected": self.count("rejected"),
            },
            "num_blocks": self.num_blocks,
            "blocks": dict(sorted(self.blocks.items())),
        }
        return json.dumps(content, indent=1).encode()


class OutputDirectory:
    """Output of one run, which holds the lock of the directory."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Continue from a manifest; use `opened`."""
        self._path, self.manifest = path, manifest
        self._remove_temporary()
        write_atomically(path / MANIFEST, manifest.to_json())  # first, because a directory with only rejects is refused
        self._rejects = (path / REJECTS).open("ab")
        try:
            self._rejects.truncate(manifest.count("rejects_bytes"))
        except OSError:
            self._rejects.close()
            raise

    def add(self, result: BlockResult) -> None:
        """Record a completed block; `save` makes it durable."""
        lines = b"".join(json_line({"row_id": row_id, "reason": reason}) for row_id, reason in result.rejects)
        self._rejects.write(lines)
        counts = {"translated": result.num_translated, "rejected": len(result.rejects), "rejects_bytes": len(lines)}
        self.manifest.blocks[result.index] = counts  # a signal before this leaves rejects that `close` removes

    def save(self) -> None:
        """Write the rejects, then the manifest atomically."""
        self._rejects.flush()
        os.fsync(self._rejects.fileno())
        write_atomically(self._path / MANIFEST, self.manifest.to_json())

    def close(self) -> None:
        """Save, and remove what unfinished blocks have left, even if the disk is full."""
        with ExitStack() as stack:
            stack.callback(self._remove_temporary)
            stack.callback(self._rejects.close)
            self.save()
            self._rejects.truncate(self.manifest.count("rejects_bytes"))

    def _remove_temporary(self) -> None:
        for path in self._path.glob(f"{_TEMPORARY}*"):
            with suppress(OSError):
                path.unlink()


@contextmanager
def opened(
    path: Path, settings: Mapping[str, Any], files: Sequence[InputFile], num_blocks: int
) -> Iterator[OutputDirectory]:
    """Lock an output directory, and create it or resume its run.

    Raises:
        DatasetError: if another process uses the directory, or it has other content, settings or input.
    """
    inputs = [
        {"path": file.name, "sha256": file.sha256, "bytes": file.num_bytes, "rows": file.num_rows} for file in files
    ]
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetError("OUTPUT", path, "a directory that no other run uses") from None
        manifest = Manifest(settings=settings, inputs=inputs, num_blocks=num_blocks)
        if (path / MANIFEST).exists():
            _resume(path / MANIFEST, manifest)
        elif any(not entry.name.startswith(_TEMPORARY) for entry in path.iterdir()):
            raise DatasetError("OUTPUT", path, f"an empty directory, or one with {MANIFEST} of an earlier run")
        output = OutputDirectory(path, manifest)
        try:
            yield output
        finally:
            output.close()
    finally:
        os.close(descriptor)


def _resume(path: Path, manifest: Manifest) -> None:
    # Takes over the completed blocks of an earlier run with the same settings and input.
    try:
        found = json.loads(path.read_bytes())
        version, settings = found["format_version"], found["settings"]
        inputs = {each["path"]: each["sha256"] for each in found["inputs"]}
        blocks = {int(index): counts for index, counts in found["blocks"].items()}
        rejects_bytes = sum(counts["rejects_bytes"] for counts in blocks.values())
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError("OUTPUT", path, f"a manifest of an earlier run ({error!r})") from error
    hint = "as in the earlier run, or a new directory as OUTPUT"
    if version != _FORMAT_VERSION:
        raise DatasetError("format_version", version, str(_FORMAT_VERSION))
    for name, value in manifest.settings.items():
        if settings.get(name) != value:
            shown = f"--{name.replace('_', '-')}" if name in _FLAGS else name
            raise DatasetError(shown, value, f"{settings.get(name)} {hint}")
    current = {each["path"]: each["sha256"] for each in manifest.inputs}
    for name in sorted({*inputs, *current}):
        if inputs.get(name) != current.get(name):
            change = "new" if name not in inputs else "removed" if name not in current else "changed"
            raise DatasetError("INPUT", f"{name} ({change})", f"the same files {hint}")
    rejects = path.with_name(REJECTS)
    if rejects_bytes > (rejects.stat().st_size if rejects.exists() else 0):
        raise DatasetError("OUTPUT", rejects, f"a file of at least {rejects_bytes} bytes, as in {MANIFEST}")
    for index, counts in blocks.items():
        part = part_path(path.parent, index, manifest.settings["format"])
        if counts["translated"] and not part.exists():
            raise DatasetError("OUTPUT", part, f"a file that exists, as in {MANIFEST}")
    manifest.blocks = blocks


def part_path(directory: Path, index: int, output_format: str) -> Path:
    """Return the file of a block."""
    return directory / f"part-{index:06}.{output_format}"


def write_part(
    directory: Path, block: Block, columns: Columns, rows: Rows, translated: Sequence[TranslatedRow]
) -> None:
    """Write the part of a block atomically; `translated` has one item for each row. No rows: no part."""
    path = part_path(directory, block.index, columns.output_format)
    accepted = [index for index, each in enumerate(translated) if not each.reason]
    if not accepted:
        return
    _, translation, _, _ = columns.added
    added = {
        "row_id": [rows.ids[index] for index in accepted],
        translation: [translated[index].text for index in accepted],
        "score": [translated[index].score for index in accepted],
        "warnings": [list(translated[index].warnings) for index in accepted],
    }
    if columns.output_format == "jsonl":
        values = zip(*added.values(), strict=True)
        lines = (
            json_line({**rows.rows[index], **dict(zip(added, each, strict=True))})
            for index, each in zip(accepted, values, strict=True)
        )
        write_atomically(path, b"".join(lines))
        return
    if isinstance(rows.rows, list):
        table = pa.Table.from_pylist([rows.rows[index] for index in accepted], schema=columns.schema)
    else:
        table = rows.rows.take(pa.array(accepted, pa.int64()))
    types = (pa.string(), pa.string(), pa.float64(), pa.list_(pa.string()))
    for (name, each), type_ in zip(added.items(), types, strict=True):
        table = table.append_column(name, pa.array(each, type_))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_atomically(path, sink.getvalue())


def write_atomically(path: Path, content: Any) -> None:
    """Write a file under a temporary name, and rename it when its content is on the disk."""
    temporary = path.with_name(f"{_TEMPORARY}{path.name}-{uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
