import bz2
import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_export.data.formats import files_of, split_columns, split_languages
from dragoman_export.data.reader import Corpus, PairFiles, ParallelFiles, read_corpus
from dragoman_export.errors import CorpusError

Fields = dict[str, object]
ROWS: list[Fields] = [{"source": "Hello.", "target": "Hallo."}, {"source": "Good day!", "target": "Grüß Gott!"}]
NESTED: list[Fields] = [{"translation": {"en": row["source"], "de": row["target"]}} for row in ROWS]
PAIRS = [("Hello.", "Hallo."), ("Good day!", "Grüß Gott!")]
TMX = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header segtype="sentence"/><body>
<tu><tuv xml:lang="en-US"><seg>Hello.</seg></tuv><tuv xml:lang="de"><seg>Hallo.</seg></tuv></tu>
<tu><tuv xml:lang="DE"><seg>Grüß <bpt i="1">&lt;b&gt;</bpt><hi>Gott</hi><ept i="1">&lt;/b&gt;</ept>!</seg></tuv>
<tuv lang="en"><seg>Good
day!</seg></tuv></tu>
{more}</body></tmx>"""


def read(spec: Path, *, max_malformed: float = 0.0) -> Corpus:
    return read_corpus([ParallelFiles(source=spec)], max_malformed=max_malformed)


def texts(corpus: Corpus) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in corpus.pairs]


def write_jsonl(path: Path, rows: list[Fields]) -> None:
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")


def write_parquet(path: Path, rows: list[Fields]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_dataset(path: Path, rows: list[Fields]) -> None:
    # The files of `datasets.Dataset.save_to_disk`, two shards.
    path.mkdir()
    names = [f"data-{index:05}-of-00002.arrow" for index in range(2)]
    for name, row in zip(names, rows, strict=True):
        table = pa.Table.from_pylist([row])
        with pa.ipc.new_stream(str(path / name), table.schema) as stream:
            stream.write_table(table)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


@pytest.mark.parametrize(
    ("name", "write"), [("a.jsonl", write_jsonl), ("a.parquet", write_parquet), ("a", write_dataset)]
)
def test_columns_of_structured_files(tmp_path: Path, name: str, write: Callable[[Path, list[Fields]], None]) -> None:
    write(tmp_path / name, ROWS)
    assert texts(read(tmp_path / name)) == PAIRS
    assert [pair.location for pair in read(tmp_path / name).pairs] == [f"{tmp_path / name}:{row}" for row in (1, 2)]

    nested = tmp_path / f"nested-{name}"
    write(nested, NESTED)
    assert texts(read(tmp_path / f"{nested.name}:translation.de,translation.en")) == [pair[::-1] for pair in PAIRS]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    suffix = {gzip.compress: ".gz", bz2.compress: ".bz2", lzma.compress: ".xz"}.get(compress, "")
    contents = {
        "a.tsv": "".join(f"{source}\t{target}\n" for source, target in PAIRS),
        "a.jsonl": "".join(f"{json.dumps(row)}\n" for row in ROWS),
        "a.tmx": TMX.format(more=""),
    }
    for name, content in contents.items():
        (tmp_path / (name + suffix)).write_bytes(compress(content.encode()))
        spec = f"{name}{suffix}:en,de" if name == "a.tmx" else name + suffix
        assert [(source.replace("\n", " "), target) for source, target in texts(read(tmp_path / spec))] == PAIRS


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "Hello.\tHallo.\n"),
        ("a.jsonl", '{"source": "Hello.", "target": "Hallo."}\n'),
        ("a.tmx", TMX.format(more="")),
    ],
)
def test_pairs_have_the_languages_of_their_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")

    pairs = read(tmp_path / f"{name}@en,de").pairs

    assert {(pair.languages, pair.location.split(":")[0]) for pair in pairs} == {(("en", "de"), str(tmp_path / name))}


def test_line_files_have_the_languages_of_the_source_file(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("Hello.\n")
    (tmp_path / "a.de").write_text("Hallo.\n")
    files = ParallelFiles(source=tmp_path / "a.en@en,de", target=tmp_path / "a.de")

    (pair,) = read_corpus([files], max_malformed=0.0).pairs

    assert (pair.source, pair.target, pair.languages) == ("Hello.", "Hallo.", ("en", "de"))


def test_values_that_are_no_text_are_malformed(tmp_path: Path) -> None:
    rows: list[Fields] = [
        *ROWS,
        {"source": "Bye."},
        {"source": 7, "target": "sieben"},
        {"source": "", "target": "x"},
    ]
    write_jsonl(tmp_path / "a.jsonl", rows)

    corpus = read(tmp_path / "a.jsonl", max_malformed=1.0)

    assert texts(corpus) == PAIRS
    reasons = [(malformed.location.rpartition(":")[2], malformed.reason) for malformed in corpus.malformed]
    assert reasons == [("3", "target is missing"), ("4", "source is int, expected text"), ("5", "empty source")]


def test_unit_of_a_memory_without_a_language_is_malformed(tmp_path: Path) -> None:
    more = '<tu><tuv xml:lang="en"><seg>Bye.</seg></tuv><tuv xml:lang="fr"><seg>Salut.</seg></tuv></tu>'
    (tmp_path / "a.tmx").write_text(TMX.format(more=more), encoding="utf-8")

    corpus = read(tmp_path / "a.tmx:en,de", max_malformed=1.0)

    assert len(corpus.pairs) == 2
    assert [str(malformed) for malformed in corpus.malformed] == [f"{tmp_path}/a.tmx:3: de is missing"]


@pytest.mark.parametrize(
    ("name", "content", "spec", "message"),
    [
        ("a.jsonl", b'{"source": \n', "a.jsonl", "a.jsonl:1 is not JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl", "a.jsonl:1 is not a JSON object"),
        ("a.parquet", b"PAR1", "a.parquet", "cannot read"),
        ("a.tmx", b"<tmx><body>", "a.tmx:en,de", "is not valid XML"),
        (
            "a.tmx",
            b'<!DOCTYPE t [<!ENTITY x "y">]><tmx><tu><tuv><seg>&x;</seg></tuv></tu></tmx>',
            "a.tmx:en,de",
            "has the XML entity &x;",
        ),
        ("a.tmx", b"<tmx/>", "a.tmx", "a.tmx has no languages: name two"),
        ("a.tsv", b"a\tb\n", "a.tsv:en,de", "TSV has no named columns"),
        ("a.jsonl.gz", gzip.compress(b'{"source": "a", "target": "b"}', mtime=0)[:-4], "a.jsonl.gz", "cannot read"),
        ("a.jsonl.xz", lzma.compress(b'{"source": "a", "target": "b"}')[:-9], "a.jsonl.xz", "cannot read"),
        ("b", b"", "a.parquet", "cannot read"),
    ],
)
def test_damaged_file_is_an_error(tmp_path: Path, name: str, content: bytes, spec: str, message: str) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(CorpusError, match=message):
        read(tmp_path / spec, max_malformed=1.0)


@pytest.mark.parametrize(("name", "write"), [("a.parquet", write_parquet), ("a", write_dataset)])
def test_missing_column_names_the_columns(
    tmp_path: Path, name: str, write: Callable[[Path, list[Fields]], None]
) -> None:
    write(tmp_path / name, [{"en": row["source"], "de": row["target"]} for row in ROWS])

    with pytest.raises(CorpusError, match="has no column 'source', only en, de"):
        read(tmp_path / name)


def test_directory_without_a_dataset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="is not a dataset that `save_to_disk`"):
        read(tmp_path)


def test_structured_files_are_streamed_again(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ROWS)
    pairs = PairFiles.scan([ParallelFiles(source=tmp_path / "a.parquet")], max_malformed=0.0)

    assert len(list(pairs)) == len(list(pairs)) == 2


def test_files_of_a_path_are_those_that_are_read(tmp_path: Path) -> None:
    write_dataset(tmp_path / "a", ROWS)
    shutil.copy(tmp_path / "a" / "state.json", tmp_path / "b.jsonl")

    assert len(files_of(tmp_path / "a:en,de")) == 3
    assert files_of(tmp_path / "b.jsonl:en,de") == [tmp_path / "b.jsonl"]


@given(st.text(), st.text(alphabet=st.characters(exclude_characters=":,/\0"), min_size=1))
def test_columns_are_split_from_the_name(name: str, column: str) -> None:
    name = f"x{name}".replace("/", "_").replace("\0", "_")

    assert split_columns(Path(f"d/{name}:{column},{column}")) == (Path("d") / name, (column, column))


@pytest.mark.parametrize(
    ("name", "columns", "languages"),
    [
        ("a.tsv@en,zh-Hant", None, ("en", "zh-Hant")),
        ("a.jsonl:x,y@en,de", ("x", "y"), ("en", "de")),
        ("a@b,c@en,de", None, ("en", "de")),
        ("a@home.tsv", None, None),
        ("a.jsonl:@x,@y", ("@x", "@y"), None),
    ],
)
def test_languages_are_split_from_the_name(
    name: str, columns: tuple[str, str] | None, languages: tuple[str, str] | None
) -> None:
    path = Path("d") / name

    assert (split_columns(path)[1], split_languages(path)[1]) == (columns, languages)
    assert files_of(path) == [Path("d") / (name.removesuffix("@en,de").removesuffix("@en,zh-Hant").split(":")[0])]


@pytest.mark.parametrize("languages", ["EN,DE", "en,e", "en,en", "en,EN", "en,de-"])
def test_invalid_languages_are_rejected(languages: str) -> None:
    with pytest.raises(CorpusError, match="expected two BCP-47 tags"):
        split_languages(Path(f"a.tsv@{languages}"))
