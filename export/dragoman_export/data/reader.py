"""Reads parallel text and reports malformed lines with file and line number."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman_export.data.formats import (
    DAMAGE,
    DEFAULT_COLUMNS,
    kind_of,
    open_compressed,
    read_rows,
    split_columns,
    split_languages,
)
from dragoman_export.errors import CorpusError, SettingError

_Languages = tuple[str, str] | None
SEPARATORS = str.maketrans("\t\r\n", "   ")  # pairs are written as TSV
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A source sentence and its translation."""

    source: str
    target: str
    location: str  # `file:line`
    languages: _Languages = None  # BCP-47 tags of source and target; None: the file does not name them


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedLine:
    """A line that is not a pair."""

    location: str  # `file:line`, lines counted from 1
    reason: str

    def __str__(self) -> str:
        return f"{self.location}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelFiles:
    """One file of pairs, or two files with corresponding lines; plain, gzip, bzip2 or xz."""

    # Source lines, or without `target`: `source<TAB>target` lines, JSON Lines, Parquet, TMX or a directory of a Hugging
    # Face dataset; these may name their columns, as `pairs.jsonl:en,de`. All may name their languages, as
    # `pairs.tsv@en,de`.
    source: Path
    target: Path | None = None

    @property
    def languages(self) -> _Languages:
        """BCP-47 tags of source and target; None: not named."""
        return split_languages(self.source)[1]


def files_of_one_pair(paths: Iterable[Path]) -> tuple[ParallelFiles, ...]:
    """Return files of one language pair; SettingError if one names its languages, which would be ignored."""
    files = tuple(ParallelFiles(source=path) for path in paths)
    for file in files:
        if file.languages is not None:
            raise SettingError("--data", str(file.source), "a file without languages, as this command has one pair")
    return files


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """All pairs of some files, in order, and the malformed lines."""

    pairs: tuple[Pair, ...]
    malformed: tuple[MalformedLine, ...]


def read_corpus(files: Iterable[ParallelFiles], *, max_malformed: float) -> Corpus:
    """Read all files, in order; accept a share of malformed lines, from 0 to 1.

    CorpusError if a file cannot be read, two files differ in lines, pairs are missing, or too many are malformed.
    """
    pairs: list[Pair] = []
    _, malformed = _sift(files, pairs.append, max_malformed)
    return Corpus(pairs=tuple(pairs), malformed=malformed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairFiles:
    """The pairs of some files, read again on each iteration, so that memory use does not depend on their size."""

    files: tuple[ParallelFiles, ...]
    sizes: tuple[int, ...]  # pairs of each file
    malformed: tuple[MalformedLine, ...] = ()
    kept: NDArray[np.bool_] | None = None  # mask of the pairs that iteration yields; None: all

    @classmethod
    def scan(cls, files: Iterable[ParallelFiles], *, max_malformed: float) -> "PairFiles":
        """Read the files once and check them; arguments and errors as of `read_corpus`."""
        listed = tuple(files)
        sizes, malformed = _sift(listed, lambda _: None, max_malformed)
        return cls(files=listed, sizes=sizes, malformed=malformed)

    @property
    def num_pairs(self) -> int:
        """Pairs of all files."""
        return sum(self.sizes)

    @property
    def kept_sizes(self) -> tuple[int, ...]:
        """Pairs of each file that iteration yields."""
        if self.kept is None:
            return self.sizes
        ends = np.cumsum((0, *self.sizes))
        return tuple(int(np.count_nonzero(self.kept[start:end])) for start, end in itertools.pairwise(ends))

    def __iter__(self) -> Iterator[Pair]:
        pairs = self._read()
        return pairs if self.kept is None else itertools.compress(pairs, self.kept)

    def _read(self) -> Iterator[Pair]:
        num_pairs = 0
        for line in itertools.chain.from_iterable(_read(parallel) for parallel in self.files):
            if isinstance(line, Pair):
                num_pairs += 1
                yield line
        if num_pairs != self.num_pairs:
            raise CorpusError(f"the files changed: {self.num_pairs:,} pairs before, {num_pairs:,} now: {self.files}")


def read_pairs(paths: Iterable[Path], limit: int | None) -> tuple[Pair, ...]:
    """Return the first pairs of files; CorpusError if a line is malformed."""
    return read_corpus(files_of_one_pair(paths), max_malformed=0.0).pairs[:limit]


def _sift(
    files: Iterable[ParallelFiles], take: Callable[[Pair], object], max_malformed: float
) -> tuple[tuple[int, ...], tuple[MalformedLine, ...]]:
    # Passes every pair to `take`; returns the number of pairs of each file and the malformed lines.
    sizes, malformed = list[int](), list[MalformedLine]()
    for parallel in files:
        sizes.append(0)
        for line in _read(parallel):
            if isinstance(line, Pair):
                sizes[-1] += 1
                take(line)
            else:
                malformed.append(line)
    _check_share(sum(sizes), len(malformed), max_malformed, first=malformed[0] if malformed else None)
    return tuple(sizes), tuple(malformed)


def read_spread(files: Iterable[ParallelFiles], *, count: int, max_malformed: float) -> tuple[Pair, ...]:
    """Read `count` pairs spread evenly over all lines, or all pairs; errors as of `read_corpus`.

    Keeps one pair per interval; the interval doubles as more lines are read, so memory use does not depend on the
    files.
    """
    kept: list[Pair] = []
    interval, num_pairs, num_malformed, first = 1, 0, 0, None
    for line in itertools.chain.from_iterable(_read(parallel) for parallel in files):
        if isinstance(line, MalformedLine):
            num_malformed, first = num_malformed + 1, first or line
            continue
        if num_pairs % interval == 0:
            kept.append(line)
            if len(kept) == 2 * count:
                kept, interval = kept[::2], 2 * interval
        num_pairs += 1
    _check_share(num_pairs, num_malformed, max_malformed, first=first)
    return tuple(kept[index * len(kept) // count] for index in range(count)) if len(kept) > count else tuple(kept)


def map_chunks(
    pool: Executor, function: Callable[[list[Pair]], _Result], pairs: Iterable[Pair], *, size: int, num_ahead: int
) -> Iterator[tuple[list[Pair], _Result]]:
    """Yield chunks of pairs with the result of a function, in order; at most `num_ahead` are pending."""
    iterator = iter(pairs)
    waiting = deque[tuple[list[Pair], Future[_Result]]]()
    while chunk := list(itertools.islice(iterator, size)):
        waiting.append((chunk, pool.submit(function, chunk)))
        if len(waiting) > num_ahead:
            first, result = waiting.popleft()
            yield first, result.result()
    for first, result in waiting:
        yield first, result.result()


def _check_share(num_pairs: int, num_malformed: int, max_malformed: float, *, first: MalformedLine | None) -> None:
    total = num_pairs + num_malformed
    if num_malformed > max_malformed * total:
        raise CorpusError(
            f"{num_malformed} of {total} lines are malformed, more than the {max_malformed:.2%} allowed; first: {first}"
        )
    if not num_pairs:
        raise CorpusError("the files contain no pairs")


def _read(files: ParallelFiles) -> Iterator[Pair | MalformedLine]:
    path, languages = split_languages(files.source)
    if files.target is not None:
        lines = itertools.zip_longest(read_lines(path), read_lines(files.target))
        for number, (source_line, target_line) in enumerate(lines, start=1):
            if source_line is None or target_line is None:
                shorter = path if source_line is None else files.target
                raise CorpusError(f"{shorter} has fewer lines than the other file: no line {number}")
            yield _pair([source_line, target_line], f"{path}:{number}", languages)
        return
    file, columns = split_columns(path)
    if kind := kind_of(file):
        if kind == "tmx" and not (columns or languages):
            raise CorpusError(f"{file} has no languages: name two, as {file}:en,de")
        names = columns or (languages if kind == "tmx" else None) or DEFAULT_COLUMNS
        for number, *values in read_rows(file, kind, names):
            yield _row(values, names, f"{file}:{number}", languages)
        return
    if columns is not None:
        raise CorpusError(f"{path}: TSV has no named columns; a file with columns ends in .jsonl or .parquet")
    for number, line in enumerate(read_lines(path), start=1):
        yield _pair(line.split(b"\t"), f"{path}:{number}", languages)


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file that may be compressed, without line breaks; CorpusError if it cannot be read."""
    try:
        with open_compressed(path) as file:
            for line in file:
                yield line.rstrip(b"\r\n")
    except DAMAGE as error:
        raise CorpusError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _row(
    values: Sequence[object], columns: Sequence[str], location: str, languages: _Languages
) -> Pair | MalformedLine:
    for column, value in zip(columns, values, strict=True):
        if not isinstance(value, str):
            kind = "missing" if value is None else f"{type(value).__name__}, expected text"
            return MalformedLine(location=location, reason=f"{column} is {kind}")
    return _checked([str(value).translate(SEPARATORS) for value in values], location, languages)


def _pair(columns: Sequence[bytes], location: str, languages: _Languages) -> Pair | MalformedLine:
    if len(columns) != 2:
        return MalformedLine(location=location, reason=f"{len(columns)} columns, expected 2")
    sides = []
    for side, column in zip(("source", "target"), columns, strict=True):
        try:
            sides.append(column.decode("utf-8"))
        except UnicodeDecodeError as error:
            return MalformedLine(location=location, reason=f"{side} is not UTF-8: {error.reason} at byte {error.start}")
    return _checked(sides, location, languages)


def _checked(sides: Sequence[str], location: str, languages: _Languages) -> Pair | MalformedLine:
    source, target = (side.strip() for side in sides)
    if not source or not target:
        return MalformedLine(location=location, reason=f"empty {'target' if source else 'source'}")
    return Pair(source=source, target=target, location=location, languages=languages)
