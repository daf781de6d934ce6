"""Reads parallel text and reports malformed lines with file and line number."""

import gzip
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman_export.errors import CorpusError

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A source sentence and its translation."""

    source: str
    target: str
    location: str  # `file:line`


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedLine:
    """A line that is not a pair."""

    location: str  # `file:line`, lines counted from 1
    reason: str

    def __str__(self) -> str:
        return f"{self.location}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelFiles:
    """One TSV file, or two files with corresponding lines; plain or gzip."""

    source: Path  # `source<TAB>target` lines if `target` is None, else source lines
    target: Path | None = None


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
    num_pairs: int
    malformed: tuple[MalformedLine, ...] = ()
    kept: NDArray[np.bool_] | None = None  # mask of the pairs that iteration yields; None: all

    @classmethod
    def scan(cls, files: Iterable[ParallelFiles], *, max_malformed: float) -> "PairFiles":
        """Read the files once and check them; arguments and errors as of `read_corpus`."""
        listed = tuple(files)
        num_pairs, malformed = _sift(listed, lambda _: None, max_malformed)
        return cls(files=listed, num_pairs=num_pairs, malformed=malformed)

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


def _sift(
    files: Iterable[ParallelFiles], take: Callable[[Pair], object], max_malformed: float
) -> tuple[int, tuple[MalformedLine, ...]]:
    # Passes every pair to `take`; returns the number of pairs and the malformed lines.
    num_pairs, malformed = 0, list[MalformedLine]()
    for line in itertools.chain.from_iterable(_read(parallel) for parallel in files):
        if isinstance(line, Pair):
            num_pairs += 1
            take(line)
        else:
            malformed.append(line)
    _check_share(num_pairs, len(malformed), max_malformed, first=malformed[0] if malformed else None)
    return num_pairs, tuple(malformed)


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


def _check_share(num_pairs: int, num_malformed: int, max_malformed: float, *, first: MalformedLine | None) -> None:
    total = num_pairs + num_malformed
    if num_malformed > max_malformed * total:
        raise CorpusError(
            f"{num_malformed} of {total} lines are malformed, more than the {max_malformed:.2%} allowed; first: {first}"
        )
    if not num_pairs:
        raise CorpusError("the files contain no pairs")


def _read(files: ParallelFiles) -> Iterator[Pair | MalformedLine]:
    if files.target is None:
        for number, line in enumerate(_lines(files.source), start=1):
            yield _pair(line.split(b"\t"), f"{files.source}:{number}")
        return
    lines = itertools.zip_longest(_lines(files.source), _lines(files.target))
    for number, (source_line, target_line) in enumerate(lines, start=1):
        if source_line is None or target_line is None:
            shorter = files.source if source_line is None else files.target
            raise CorpusError(f"{shorter} has fewer lines than the other file: no line {number}")
        yield _pair([source_line, target_line], f"{files.source}:{number}")


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == _GZIP_MAGIC
        with gzip.open(path) if is_gzip else path.open("rb") as file:
            for line in file:
                yield line.rstrip(b"\r\n")
    except (OSError, EOFError, zlib.error) as error:  # the last two and BadGzipFile: damaged gzip
        raise CorpusError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _pair(columns: Sequence[bytes], location: str) -> Pair | MalformedLine:
    if len(columns) != 2:
        return MalformedLine(location=location, reason=f"{len(columns)} columns, expected 2")
    sides = []
    for side, column in zip(("source", "target"), columns, strict=True):
        try:
            sides.append(column.decode("utf-8").strip())
        except UnicodeDecodeError as error:
            return MalformedLine(location=location, reason=f"{side} is not UTF-8: {error.reason} at byte {error.start}")
        if not sides[-1]:
            return MalformedLine(location=location, reason=f"empty {side}")
    return Pair(source=sides[0], target=sides[1], location=location)
