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


def test_tsv_line_is_a_pair(tmp_path: Path) -> None:
    corpus = read_tsv(tmp_path / "a.tsv", "Hello.\tHallo.\r\n Good day! \tGrüß Gott!\n".encode())

    assert texts(corpus) == [("Hello.", "Hallo."), ("Good day!", "Grüß Gott!")]
    assert [pair.location for pair in corpus.pairs] == [f"{tmp_path}/a.tsv:1", f"{tmp_path}/a.tsv:2"]


def test_gzip_is_detected_by_content(tmp_path: Path) -> None:
    corpus = read_tsv(tmp_path / "a.tsv", gzip.compress(b"Hello.\tHallo.\n"))

    assert texts(corpus) == [("Hello.", "Hallo.")]


def test_lines_of_two_files_correspond(tmp_path: Path) -> None:
    source, target = tmp_path / "a.en", tmp_path / "a.de.gz"
    source.write_bytes(b"one\ntwo\n")
    target.write_bytes(gzip.compress(b"eins\nzwei\n"))

    corpus = read_corpus([ParallelFiles(source=source, target=target)], max_malformed=0.0)

    assert texts(corpus) == [("one", "eins"), ("two", "zwei")]


def test_files_are_read_in_order(tmp_path: Path) -> None:
    files = []
    for name in ("b", "a"):
        path = tmp_path / name
        path.write_text(f"{name}\t{name.upper()}\n")
        files.append(ParallelFiles(source=path))

    corpus = read_corpus(files, max_malformed=0.0)

    assert texts(corpus) == [("b", "B"), ("a", "A")]


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


def test_malformed_lines_within_the_limit_are_accepted(tmp_path: Path) -> None:
    corpus = read_tsv(tmp_path / "a.tsv", b"a\tb\nc\n", max_malformed=0.5)

    assert (len(corpus.pairs), len(corpus.malformed)) == (1, 1)


def test_too_many_malformed_lines_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"2 of 3 lines are malformed, .* 50.00% .*a\.tsv:2: 1 columns"):
        read_tsv(tmp_path / "a.tsv", b"a\tb\nc\nd\n", max_malformed=0.5)


def test_files_of_different_lengths_are_rejected(tmp_path: Path) -> None:
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("one\ntwo\n")
    target.write_text("eins\n")

    with pytest.raises(CorpusError, match=r"a\.de has fewer lines.* 2"):
        read_corpus([ParallelFiles(source=source, target=target)], max_malformed=1.0)


def test_files_without_pairs_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no pairs"):
        read_tsv(tmp_path / "a.tsv", b"")


def damage(content: bytes, how: str) -> bytes:
    middle = len(content) // 2
    return {
        "cut off": content[:middle],
        "overwritten": content[:10] + b"\xff" * 64 + content[74:],
        "wrong checksum": content[:-8] + bytes(8),
    }[how]


@pytest.mark.parametrize("how", ["cut off", "overwritten", "wrong checksum"])
def test_damaged_gzip_is_rejected(tmp_path: Path, how: str) -> None:
    whole = gzip.compress("".join(f"{number}\t{number * number}\n" for number in range(999)).encode())

    with pytest.raises(CorpusError, match=r"cannot read .*a\.gz: \S"):
        read_tsv(tmp_path / "a.gz", damage(whole, how))


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"cannot read .*absent\.tsv: No such file"):
        read_corpus([ParallelFiles(source=tmp_path / "absent.tsv")], max_malformed=1.0)


@pytest.mark.parametrize("num_pairs", [1, 3, 4, 5, 7, 8, 9, 100, 1023])
def test_pairs_are_spread_evenly(tmp_path: Path, num_pairs: int) -> None:
    files: list[ParallelFiles] = []
    for number in range(num_pairs):
        path = tmp_path / str(number * 3 // num_pairs)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{number}\tx\n")
        files = files if files and files[-1].source == path else [*files, ParallelFiles(source=path)]

    pairs = read_spread(files, count=4, max_malformed=0.0)

    places = [int(pair.source) / num_pairs for pair in pairs]
    assert len(places) == min(4, num_pairs)
    assert places[0] == 0
    gaps = [after - before for before, after in itertools.pairwise([*places, 1.0])]
    assert min(gaps) > 0
    assert max(gaps) <= 0.5 or num_pairs == 1


@pytest.mark.parametrize(("max_malformed", "is_taken"), [(0.2, True), (0.1, False)])
def test_skipped_malformed_lines_count(tmp_path: Path, max_malformed: float, *, is_taken: bool) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("one\teins\ntwo\tzwei\nthree\tdrei\nfour\tvier\nfive\n", encoding="utf-8")
    files = [ParallelFiles(source=path)]

    if is_taken:
        assert len(read_spread(files, count=2, max_malformed=max_malformed)) == 2
    else:
        with pytest.raises(CorpusError, match=r"1 of 5 lines are malformed.*a\.tsv:5: 1 columns"):
            read_spread(files, count=2, max_malformed=max_malformed)


def test_files_can_be_read_repeatedly(tmp_path: Path) -> None:
    corpus = read_tsv(tmp_path / "a.tsv", b"a\tA\nno tab\nb\tB\nc\tC\n")

    files = PairFiles.scan([ParallelFiles(source=tmp_path / "a.tsv")], max_malformed=0.5)
    chosen = dataclasses.replace(files, kept=np.array([True, False, True]))

    assert tuple(files) == tuple(files) == corpus.pairs
    assert (files.num_pairs, files.malformed) == (3, corpus.malformed)
    assert [pair.source for pair in chosen] == ["a", "c"]


def test_changed_files_are_detected(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    read_tsv(path, b"a\tA\nb\tB\n")
    files = PairFiles.scan([ParallelFiles(source=path)], max_malformed=0.0)

    path.write_bytes(b"a\tA\n")

    with pytest.raises(CorpusError, match="2 pairs before, 1 now"):
        list(files)
