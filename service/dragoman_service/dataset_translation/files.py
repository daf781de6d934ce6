"""Input files, split into blocks of rows, and the rows of a block.

A row that cannot be translated or written is rejected with a reason and does not stop the run.
"""

import csv
import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dragoman_service.dataset_translation.settings import FORMATS, Columns, DatasetError

MAX_ROW_BYTES: Final = 8 << 20
_MAX_BLOCK_BYTES: Final = 8 << 20  # unless one row is larger; bounds the memory of a process
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input file."""

    path: Path
    name: str  # relative to the input directory
    sha256: str
    num_bytes: int
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A range of rows of one file, which one process translates at a time."""

    index: int
    path: str
    name: str  # of the file
    size_and_time: tuple[int, int]  # of the file, in bytes and ns
    start: int  # byte offset of the first row; index of the row group of a Parquet file
    num_skipped: int  # rows of the row group before the block
    first_row: int  # number of the first row in the file, from 1
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of a block that can be translated, and the ids and reasons of the others."""

    ids: list[str]
    texts: list[str]
    rows: Any  # a list of dictionaries, or a `pyarrow.Table` if input and output are Parquet
    rejects: list[tuple[str, str]]


def find_files(path: Path) -> tuple[str, list[tuple[Path, str]]]:
    """Return the format of a file or directory, and its files with their names; hidden files are ignored."""
    if not path.exists():
        raise DatasetError("INPUT", path, "a file or directory that exists")
    if path.is_dir():
        found = [(file, file.relative_to(path)) for file in sorted(path.rglob("*")) if file.is_file()]
        files = [(file, str(name)) for file, name in found if not any(part[0] in "._" for part in name.parts)]
    elif path.is_file():
        files = [(path, path.name)]
    else:
        raise DatasetError("INPUT", path, "a regular file or a directory")  # reading a named pipe might never end
    for file, name in files:
        if not name.isprintable():
            raise DatasetError("INPUT", ascii(str(file)), "a printable name in UTF-8, for the row ids")
    formats = {file: FORMATS.get(file.suffix.lower()) for file, _ in files}
    for file, format_ in formats.items():
        if format_ is None:
            raise DatasetError("INPUT", file, f"a file with one of the extensions {', '.join(FORMATS)}")
    distinct = sorted({str(format_) for format_ in formats.values()})
    if len(distinct) != 1:
        raise DatasetError("INPUT", f"{path} ({', '.join(distinct) or 'no files'})", "files of one format")
    return distinct[0], files


def read_header(files: Iterable[tuple[Path, str]], columns: Columns) -> tuple[str, ...]:
    """Return the columns that all files have, empty for JSONL; DatasetError if the files do not fit."""
    if columns.input_format in ("text", "jsonl"):
        return (columns.text,) if columns.input_format == "text" else ()
    first: Any = None
    for path, _ in files:
        header = _csv_header(path) if columns.input_format == "csv" else _parquet_schema(path)
        if first is not None and header != first:
            raise DatasetError("INPUT", path, "a file with the columns and types of the other files")
        first = header
    names = tuple(first) if columns.input_format == "csv" else tuple(first.names)
    if columns.text not in names:
        raise DatasetError("--text-column", repr(columns.text), f"one of the columns {', '.join(names)}")
    if columns.input_format == "parquet":
        type_ = first.field(columns.text).type
        if not (pa.types.is_string(type_) or pa.types.is_large_string(type_)):
            raise DatasetError("--text-column", f"{columns.text!r} of type {type_}", "a column of type string")
    for name in columns.added:
        if name in names:
            flag = "--column" if name == columns.translation else "INPUT"
            raise DatasetError(flag, f"a dataset with the column {name!r}", "columns that the output does not add")
    return names


def split(
    path: Path, name: str, input_format: str, *, first_index: int, block_rows: int
) -> tuple[InputFile, list[Block]]:
    """Return a file with its checksum, and its blocks of at most `block_rows` rows."""
    status = path.stat()
    ranges = list(
        _parquet_ranges(path, block_rows) if input_format == "parquet" else _ranges(path, input_format, block_rows)
    )
    blocks, first_row = [], 1
    for index, (start, num_skipped, num_rows) in enumerate(ranges, start=first_index):
        blocks.append(
            Block(
                index=index,
                path=str(path.resolve()),
                name=name,
                size_and_time=(status.st_size, status.st_mtime_ns),
                start=start,
                num_skipped=num_skipped,
                first_row=first_row,
                num_rows=num_rows,
            )
        )
        first_row += num_rows
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    described = InputFile(path=path, name=name, sha256=digest, num_bytes=status.st_size, num_rows=first_row - 1)
    return described, blocks


def infer_schema(block: Block, columns: Columns) -> Any:
    """Return the schema of Parquet output: strings, or for JSONL the types of the rows of a block.

    Raises:
        DatasetError: if the types of the rows differ.
    """
    if columns.header:
        return pa.schema([(name, pa.string()) for name in columns.header])
    records = [record for _, record in _read_records(block, columns)]
    rows = [row for row in records if isinstance(row, dict) and _text_fault(row, columns) is None]
    try:
        schema = pa.Table.from_pylist(rows).schema
    except (ValueError, TypeError, OverflowError) as error:
        raise DatasetError("--format", f"parquet for {block.name}", f"columns of one type each ({error})") from error
    if not rows:
        raise DatasetError("INPUT", block.name, f"a text in one of the first {block.num_rows} rows")
    fields = [field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in schema]
    return pa.schema([field for field in fields if field.name not in columns.added])


def read_block(block: Block, columns: Columns) -> Rows:
    """Read the rows of a block; DatasetError if the file has changed since it was split."""
    status = Path(block.path).stat()
    if (status.st_size, status.st_mtime_ns) != block.size_and_time:
        raise DatasetError("INPUT", block.path, "an unchanged file until the end of the run")
    table: Any = _read_table(block) if columns.input_format == "parquet" else None
    is_table = table is not None and columns.output_format == "parquet"
    if is_table:
        # The rows stay in the table; only the texts are converted.
        records: Iterable[tuple[int, Any]] = _checked_texts(table, block, columns)
    elif table is not None:
        records = ((block.first_row + index, row) for index, row in enumerate(_table_rows(table)))
    else:
        records = _read_records(block, columns)
    accepted, rejects = [], []
    for number, record in records:
        row_id = f"{block.name}:{number}"
        reason = record if isinstance(record, str) else _text_fault(record, columns)
        if reason is None and not is_table:
            reason = _row_fault(record, columns)
        if reason is None:
            accepted.append((number, row_id, record))
        else:
            rejects.append((row_id, reason))
    rows: Any = [record for _, _, record in accepted]
    texts = [record[columns.text] for record in rows]
    if is_table:
        rows = table.take(pa.array([number - block.first_row for number, _, _ in accepted], pa.int64()))
    return Rows(ids=[row_id for _, row_id, _ in accepted], texts=texts, rows=rows, rejects=rejects)


def json_line(row: dict[str, Any]) -> bytes:
    """Return a row as a line of JSONL; bytes are in base64, dates and decimals are strings."""

    def text(value: object) -> str:
        return b64encode(value).decode() if isinstance(value, bytes) else str(value)

    return json.dumps(row, ensure_ascii=False, allow_nan=False, default=text).encode() + b"\n"


def _text_fault(row: dict[str, Any], columns: Columns) -> str | None:
    text = row.get(columns.text)
    if text is None:
        return f"column {columns.text!r} is missing"
    if not isinstance(text, str):
        return f"column {columns.text!r} has type {type(text).__name__}, must be a string"
    if columns.max_characters is not None and len(text) > columns.max_characters:
        return f"text has {len(text)} characters, at most {columns.max_characters}"
    return None


def _row_fault(row: dict[str, Any], columns: Columns) -> str | None:
    if added := row.keys() & set(columns.added):
        return f"column {min(added)!r} is one that the output adds"
    try:
        if columns.output_format == "jsonl":
            json_line(row)
        elif unknown := row.keys() - set(columns.schema.names):
            return f"column {min(unknown)!r} is not in the first rows, which determine the columns of Parquet output"
        else:
            pa.Table.from_pylist([row], schema=columns.schema)
    except (ValueError, TypeError, OverflowError) as error:
        return f"cannot be written as {columns.output_format}: {error}"
    return None


class _Lines:
    """Lines of a file; a longer line than `MAX_ROW_BYTES` is cut."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.offset = file.tell()  # of the next line
        self.is_cut = False  # whether a line has been cut since this was last reset

    def __iter__(self) -> Iterator[bytes]:
        while line := self._file.readline(MAX_ROW_BYTES):
            self.offset += len(line)
            rest = line
            while len(rest) == MAX_ROW_BYTES and not rest.endswith(b"\n"):
                self.is_cut = True
                rest = self._file.readline(MAX_ROW_BYTES)
                self.offset += len(rest)
            yield line


def _records(lines: _Lines, input_format: str) -> Iterator[bytes | list[str] | str]:
    # Lines, or the fields of CSV records, without blank lines of JSONL and CSV; a string is the reason of a rejection.
    if input_format == "csv":
        csv.field_size_limit(MAX_ROW_BYTES)
        reader = csv.reader(line.decode(errors="surrogateescape") for line in lines)
        source: Iterator[Any] = _csv_records(reader)
    else:
        source = iter(lines)
    for record in source:
        if lines.is_cut:
            lines.is_cut = False
            yield f"row has more than {MAX_ROW_BYTES} bytes"
        elif record and (input_format != "jsonl" or record.strip()):
            yield record


def _csv_records(reader: Iterator[list[str]]) -> Iterator[list[str] | str]:
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield f"not valid CSV: {error}"


def _read_records(block: Block, columns: Columns) -> Iterator[tuple[int, dict[str, Any] | str]]:
    # The number of each row with its columns, or the reason of its rejection.
    with Path(block.path).open("rb") as file:
        file.seek(block.start)
        records = _records(_Lines(file), columns.input_format)
        for number, record in zip(range(block.first_row, block.first_row + block.num_rows), records, strict=False):
            yield number, record if isinstance(record, str) else _parsed(record, columns)


def _parsed(record: bytes | list[str], columns: Columns) -> dict[str, Any] | str:
    try:
        if isinstance(record, list):
            if len(record) != len(columns.header):
                return f"row has {len(record)} fields, the header has {len(columns.header)}"
            fields = [field.encode(errors="surrogateescape").decode() for field in record]
            return dict(zip(columns.header, fields, strict=True))
        line = record.decode()
        if columns.input_format == "text":
            return {columns.text: line.removesuffix("\n").removesuffix("\r")}
        row = json.loads(line)
    except UnicodeDecodeError as error:
        return f"not valid UTF-8: {error.reason} at byte {error.start}"
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}"
    return row if isinstance(row, dict) else "not a JSON object"


def _ranges(path: Path, input_format: str, block_rows: int) -> Iterator[tuple[int, int, int]]:
    # Start, 0 and number of rows of each block.
    with _open(path) as file:
        lines, start = _Lines(file), file.tell()
        records = _records(lines, input_format)
        if input_format == "csv":
            next(records)  # the header
            start = lines.offset
        num_rows = 0
        for _ in records:
            num_rows += 1
            if num_rows == block_rows or lines.offset - start >= _MAX_BLOCK_BYTES:
                yield start, 0, num_rows
                start, num_rows = lines.offset, 0
        if num_rows:
            yield start, 0, num_rows


def _parquet_schema(path: Path) -> Any:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError("INPUT", path, f"a Parquet file ({error})") from error


def _open(path: Path) -> BinaryIO:
    # After the byte order mark, if there is one.
    file = path.open("rb")
    file.seek(len(_BYTE_ORDER_MARK) if file.read(len(_BYTE_ORDER_MARK)) == _BYTE_ORDER_MARK else 0)
    return file


def _csv_header(path: Path) -> tuple[str, ...]:
    with _open(path) as file:
        record = next(_records(_Lines(file), "csv"), "")
    names = [] if isinstance(record, str) else [str(name) for name in record]
    if not names or len(set(names)) < len(names) or not all(name and name.isprintable() for name in names):
        raise DatasetError("INPUT", path, "a CSV file in UTF-8 whose first row has distinct column names")
    return tuple(names)


def _parquet_ranges(path: Path, block_rows: int) -> Iterator[tuple[int, int, int]]:
    # Row group, first row in it and number of rows of each block.
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            metadata = file.metadata.row_group(group)
            row_bytes = max(1, metadata.total_byte_size // max(1, metadata.num_rows))
            step = max(1, min(block_rows, _MAX_BLOCK_BYTES // row_bytes))
            for start in range(0, metadata.num_rows, step):
                yield group, start, min(step, metadata.num_rows - start)


def _read_table(block: Block) -> Any:
    pieces, num_read, end = [], 0, block.num_skipped + block.num_rows
    with pq.ParquetFile(block.path, pre_buffer=False) as file:
        for batch in file.iter_batches(block.num_rows, row_groups=[block.start], use_threads=False):
            start = max(0, block.num_skipped - num_read)
            pieces.append(batch.slice(start, max(0, min(batch.num_rows, end - num_read) - start)))
            num_read += batch.num_rows
            if num_read >= end:
                break
        return pa.Table.from_batches(pieces, schema=file.schema_arrow)


def _table_rows(table: Any) -> Iterator[dict[str, Any] | str]:
    # Strings may not be UTF-8, because Arrow does not check them when it reads them.
    for index in range(table.num_rows):
        try:
            (row,) = table.slice(index, 1).to_pylist()
        except (ValueError, OverflowError) as error:
            row = f"cannot be read: {error}"
        yield row


def _checked_texts(table: Any, block: Block, columns: Columns) -> Iterator[tuple[int, dict[str, str | None] | str]]:
    only_text = table.select([columns.text])
    try:
        table.validate(full=True)
        is_valid = True
    except pa.ArrowInvalid:
        is_valid = False
    for index, row in enumerate(_table_rows(only_text)):
        if not is_valid and not isinstance(row, str):
            try:
                table.take([index]).validate(full=True)
            except pa.ArrowInvalid as error:
                row = f"not valid: {error}"  # noqa: PLW2901 - replaced by the reason
        yield block.first_row + index, row
