import dataclasses
import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest

from dragoman_export.data.reader import Corpus, PairFiles, ParallelFiles, read_corpus, read_spread
from dragoman_export.errors import CorpusError


def read_tsv(path: Path, content: bytes, *, max_malformed: float = 1.0) -> Corpus:
    path.write_bytes(content)
    return read_corpus([ParallelFiles(source=path)], max_malformed=max_malformed)


def texts(corpus: Corpus) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in corpus.pairs]


@pytest.mark.parametrize("is_compressed", [False, True])
def test_tsv_line_is_a_pair(tmp_path: Path, *, is_compressed: bool) -> None:
    content = "Hello.\tHallo.\r\n Good day! \tGrüß Gott!\n".encode()

    corpus = read_tsv(tmp_path / "a.tsv", gzip.compress(content) if is_compressed else content)

    assert texts(corpus) == [("Hello.", "Hallo."), ("Good day!", "Grüß Gott!")]
    assert [pair.location for pair in corpus.pairs] == [f"{tmp_path}/a.tsv:1", f"{tmp_path}/a.tsv:2"]


def test_files_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.tsv").write_text("zero\tnull\n")
    (tmp_path / "a.en").write_bytes(b"one\ntwo\n")
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(b"eins\nzwei\n"))
    two_files = ParallelFiles(source=tmp_path / "a.en", target=tmp_path / "a.de.gz")

    corpus = read_corpus([ParallelFiles(source=tmp_path / "b.tsv"), two_files], max_malformed=0.0)

    assert texts(corpus) == [("zero", "null"), ("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"no tab", "1 columns, expected 2"),
        (b"", "1 columns, expected 2"),
        (b"one\ttwo\tthree", "3 columns, expected 2"),
        (b"  \tHallo.", "empty source"),
        (b"Hello.\t", "empty target"),
        (b"\xff\tHallo.", "source is not UTF-8: invalid start byte at byte 0"),
        (b"Hello.\tGr\xc3", "target is not UTF-8: unexpected end of data at byte 2"),
    ],
)
def test_malformed_line_has_location_and_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    corpus = read_tsv(tmp_path / "a.tsv", b"Hello.\tHallo.\n" + line + b"\nBye.\tTsch\xc3\xbcss.\n")

    assert [str(malformed) for malformed in corpus.malformed] == [f"{tmp_path}/a.tsv:2: {reason}"]
    assert len(corpus.pairs) == 2


def test_malformed_lines_are_limited(tmp_path: Path) -> None:
    corpus = read_tsv(tmp_path / "a.tsv", b"a\tb\nc\n", max_malformed=0.5)

    assert (len(corpus.pairs), len(corpus.malformed)) == (1, 1)
    with pytest.raises(CorpusError, match=r"2 of 3 lines are malformed, .* 50.00% .*a\.tsv:2: 1 columns"):
        read_tsv(tmp_path / "a.tsv", b"a\tb\nc\nd\n", max_malformed=0.5)


_GZIP = gzip.compress("".join(f"{number}\t{number * number}\n" for number in range(999)).encode())


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"one\ntwo\n", b"eins\n", r"target has fewer lines.* 2"),
        (b"", None, "no pairs"),
        (None, None, r"cannot read .*source: No such file"),
        (_GZIP[: len(_GZIP) // 2], None, r"cannot read .*source: \S"),
        (_GZIP[:10] + b"\xff" * 64 + _GZIP[74:], None, r"cannot read .*source: \S"),
        (_GZIP[:-8] + bytes(8), None, r"cannot read .*source: \S"),  # another checksum
    ],
)
def test_unusable_file_is_rejected(tmp_path: Path, source: bytes | None, target: bytes | None, message: str) -> None:
    for name, content in (("source", source), ("target", target)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    files = ParallelFiles(source=tmp_path / "source", target=tmp_path / "target" if target else None)

    with pytest.raises(CorpusError, match=message):
        read_corpus([files], max_malformed=1.0)


@pytest.mark.parametrize("num_pairs", [1, 3, 4, 5, 7, 8, 9, 100, 1023])
def test_pairs_are_spread_evenly(tmp_path: Path, num_pairs: int) -> None:
    lines = [f"{number}\tx\n" for number in range(num_pairs)]
    files = []
    for number in range(3):
        part = lines[number * num_pairs // 3 : (number + 1) * num_pairs // 3]
        (tmp_path / str(number)).write_text("".join(part), encoding="utf-8")
        files.append(ParallelFiles(source=tmp_path / str(number)))

    places = [int(pair.source) / num_pairs for pair in read_spread(files, count=4, max_malformed=0.0)]

    assert len(places) == min(4, num_pairs)
    assert places[0] == 0
    gaps = [after - before for before, after in itertools.pairwise([*places, 1.0])]
    assert min(gaps) > 0
    assert max(gaps) <= 0.5 or num_pairs == 1


def test_skipped_malformed_lines_count(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\teins\ntwo\tzwei\nthree\tdrei\nfour\tvier\nfive\n", encoding="utf-8")
    files = [ParallelFiles(source=tmp_path / "a.tsv")]

    assert len(read_spread(files, count=2, max_malformed=0.2)) == 2
    with pytest.raises(CorpusError, match=r"1 of 5 lines are malformed.*a\.tsv:5: 1 columns"):
        read_spread(files, count=2, max_malformed=0.1)


def test_files_can_be_read_repeatedly_until_they_change(tmp_path: Path) -> None:
    corpus = read_tsv(tmp_path / "a.tsv", b"a\tA\nno tab\nb\tB\nc\tC\n")
    files = PairFiles.scan([ParallelFiles(source=tmp_path / "a.tsv")], max_malformed=0.5)

    assert tuple(files) == tuple(files) == corpus.pairs
    assert (files.num_pairs, files.malformed) == (3, corpus.malformed)
    chosen = dataclasses.replace(files, kept=np.array([True, False, True]))
    assert [pair.source for pair in chosen] == ["a", "c"]
    (tmp_path / "a.tsv").write_bytes(b"a\tA\n")
    with pytest.raises(CorpusError, match="3 pairs before, 1 now"):
        list(files)
