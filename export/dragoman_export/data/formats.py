"""Rows of JSON Lines, Parquet, TMX and directories of Hugging Face datasets; compressed files."""

import bz2
import gzip
import importlib
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any, BinaryIO

from lxml import etree

from dragoman_export.errors import CorpusError

COMPRESSED = {".gz", ".bz2", ".xz"}
DEFAULT_COLUMNS = ("source", "target")
_MAGIC = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""Errors of `open_compressed` and of reading its file."""

_BATCH_ROWS = 4096
_LANGUAGES = re.compile(r"(.+)@([A-Za-z0-9-]+),([A-Za-z0-9-]+)")
_TAG = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")  # as in a manifest

Row = tuple[int, object, object]
"""Number of the row, counted from 1, and its two values; None for a missing value."""


def split_languages(path: Path) -> tuple[Path, tuple[str, str] | None]:
    """Split `PATH@SOURCE,TARGET` into the path and its languages; None if no languages are named.

    CorpusError if a tag is invalid or both are equal.
    """
    match = _LANGUAGES.fullmatch(path.name)
    if match is None:
        return path, None
    source, target = match[2], match[3]
    if source.lower() == target.lower() or not (_TAG.fullmatch(source) and _TAG.fullmatch(target)):
        raise CorpusError(f"{path}: languages are {source!r} and {target!r}: expected two BCP-47 tags, such as en,de")
    return path.with_name(match[1]), (source, target)


def split_columns(path: Path) -> tuple[Path, tuple[str, str] | None]:
    """Split `FILE:SOURCE,TARGET` into the file and the names of its columns; None if no columns are named.

    The languages of `FILE:SOURCE,TARGET@SOURCE,TARGET` are left out.
    """
    path, _ = split_languages(path)
    file, _, names = path.name.rpartition(":")
    source, comma, target = names.partition(",")
    return (path.with_name(file), (source, target)) if file and comma else (path, None)


def kind_of(path: Path) -> str | None:
    """Return `jsonl`, `parquet`, `tmx` or `dataset`; None for plain text and TSV."""
    if path.is_dir():
        return "dataset"
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED]
    kinds = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".tmx": "tmx"}
    return kinds.get(suffixes[-1]) if suffixes else None


def files_of(path: Path) -> list[Path]:
    """Return the files of a path that may name columns or be a directory."""
    file, _ = split_columns(path)
    return sorted(one for one in file.rglob("*") if one.is_file()) if file.is_dir() else [file]


def open_compressed(path: Path) -> BinaryIO:
    """Open a file that may be compressed, which its first bytes show."""
    with path.open("rb") as file:
        opener = _MAGIC.get(file.read(2))
    return opener(path) if opener else path.open("rb")  # type: ignore[operator]


def read_rows(path: Path, kind: str, columns: tuple[str, str]) -> Iterator[Row]:
    """Yield the rows of a file or directory; a column can name a nested field, as `translation.en`.

    CorpusError if it cannot be read, is damaged or lacks a column.
    """
    readers = {"jsonl": _json_rows, "parquet": _parquet_rows, "dataset": _dataset_rows, "tmx": _tmx_rows}
    try:
        yield from readers[kind](path, columns)
    except DAMAGE as error:
        raise CorpusError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _json_rows(path: Path, columns: tuple[str, str]) -> Iterator[Row]:
    with open_compressed(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                fields = json.loads(line)
            except ValueError as error:  # also invalid UTF-8
                raise CorpusError(f"{path}:{number} is not JSON: {error}") from error
            if not isinstance(fields, dict):
                raise CorpusError(f"{path}:{number} is not a JSON object: {line[:80]!r}")
            yield number, *_values(fields, columns)


def _values(fields: Any, columns: tuple[str, str]) -> tuple[Any, Any]:
    source, target = (reduce(_field, column.split("."), fields) for column in columns)
    return source, target


def _field(values: Any, name: str) -> Any:
    return values.get(name) if isinstance(values, dict) else None


def _parquet_rows(path: Path, columns: tuple[str, str]) -> Iterator[Row]:
    parquet = _arrow("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        batches = file.iter_batches(batch_size=_BATCH_ROWS, columns=_top_columns(path, columns, names))
        yield from _arrow_rows(batches, columns)
    except _arrow("pyarrow").ArrowException as error:
        raise CorpusError(f"cannot read {path}: {error}") from error


def _dataset_rows(path: Path, columns: tuple[str, str]) -> Iterator[Row]:
    # A directory that `datasets.Dataset.save_to_disk` wrote: Arrow streams, listed in state.json.
    arrow, ipc = _arrow("pyarrow"), _arrow("pyarrow.ipc")
    try:
        state = json.loads((path / "state.json").read_text("utf-8"))
        names = [path / entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorpusError(
            f"{path} is not a dataset that `save_to_disk` of Hugging Face datasets wrote (one split): {error!r}"
        ) from error

    def batches() -> Iterator[Any]:
        for name in names:
            with ipc.open_stream(arrow.memory_map(str(name))) as stream:
                yield from (batch.select(_top_columns(name, columns, batch.schema.names)) for batch in stream)

    try:
        yield from _arrow_rows(batches(), columns)
    except arrow.ArrowException as error:
        raise CorpusError(f"cannot read {path}: {error}") from error


def _arrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CorpusError("Parquet and Hugging Face datasets need pyarrow: pip install pyarrow") from error


def _top_columns(path: Path, columns: tuple[str, str], names: list[str]) -> list[str]:
    top = list(dict.fromkeys(column.partition(".")[0] for column in columns))
    if missing := [column for column in top if column not in names]:
        raise CorpusError(f"{path} has no column {missing[0]!r}, only {', '.join(names)}: name two, as {path}:en,de")
    return top


def _arrow_rows(batches: Iterator[Any], columns: tuple[str, str]) -> Iterator[Row]:
    rows = (fields for batch in batches for fields in batch.to_pylist())
    for number, fields in enumerate(rows, start=1):
        yield number, *_values(fields, columns)


def _tmx_rows(path: Path, languages: tuple[str, str]) -> Iterator[Row]:
    with open_compressed(path) as file:
        units = etree.iterparse(file, tag="tu", resolve_entities=False, load_dtd=False, no_network=True)
        try:
            for number, (_, unit) in enumerate(units, start=1):
                texts = {_language(variant): _text(variant.find("seg"), path) for variant in unit.iter("tuv")}
                source, target = (_of_language(texts, wanted.lower()) for wanted in languages)
                yield number, source, target
                unit.clear()
                while unit.getprevious() is not None:  # free the units before
                    del unit.getparent()[0]
        except etree.XMLSyntaxError as error:
            raise CorpusError(f"{path} is not valid XML: {error}") from error


def _language(variant: Any) -> str:
    return str(variant.get("{http://www.w3.org/XML/1998/namespace}lang") or variant.get("lang") or "").lower()


def _text(segment: Any, path: Path) -> str:
    # Without inline elements, which contain codes of the tool; <hi> marks ordinary text.
    if segment is None:
        return ""
    pieces = [segment.text or ""]
    for element in segment:
        if element.tag is etree.Entity:
            raise CorpusError(f"{path} has the XML entity {element.text}, which is not read")
        pieces += [_text(element, path) if element.tag == "hi" else "", element.tail or ""]
    return "".join(pieces)


def _of_language(texts: dict[str, str], wanted: str) -> str | None:
    # `en` also finds `en-US`.
    return next((text for tag, text in texts.items() if tag == wanted or tag.startswith(f"{wanted}-")), None)
