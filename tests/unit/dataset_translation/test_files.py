"""Splitting of input files, rejected rows, output parts and manifests. No process of Ray is started."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")  # not `ray`, which changes the log records of the process

import pyarrow as pa
import pyarrow.parquet as pq

from dragoman_service.__main__ import main
from dragoman_service.dataset_translation import files, output
from dragoman_service.dataset_translation.execution import BlockTranslator
from dragoman_service.dataset_translation.settings import Columns, DatasetError

COLUMNS = Columns(
    text="text", translation="translation", input_format="jsonl", output_format="jsonl", max_characters=20
)


class Upper:
    """A translator that needs no model; rejects the text `bad`."""

    def open(self) -> "Upper":
        return self

    def translate(self, texts: Sequence[str]) -> list[output.TranslatedRow]:
        return [
            output.TranslatedRow(reason="is bad")
            if text == "bad"
            else output.TranslatedRow(text=text.upper(), score=-1.0)
            for text in texts
        ]


def translated(
    path: Path, directory: Path, *, block_rows: int = 2, **changes: Any
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Translate a file without Ray; return the rows of the parts in order, and the reasons of the rejects."""
    input_format, found = files.find_files(path)
    columns = replace(COLUMNS, input_format=input_format, **changes)
    columns = replace(columns, header=files.read_header(found, columns))
    blocks: list[files.Block] = []
    for file, name in found:
        blocks += files.split(file, name, input_format, first_index=len(blocks), block_rows=block_rows)[1]
    if columns.output_format == "parquet" and input_format != "parquet":
        columns = replace(columns, schema=files.infer_schema(blocks[0], columns))
    directory.mkdir()
    spec: Any = Upper()
    translator = BlockTranslator(spec, columns, directory)
    results = [translator.process(block) for block in blocks]
    assert [result.error for result in results] == [""] * len(blocks)
    rows: list[dict[str, Any]] = []
    for part in sorted(directory.iterdir()):
        if columns.output_format == "parquet":
            rows += pq.read_table(part).to_pylist()
        else:
            rows += map(json.loads, part.read_text().splitlines())
    assert len(rows) == sum(result.num_translated for result in results)
    return rows, dict(reject for result in results for reject in result.rejects)


def added(name: str, number: int, translation: str) -> dict[str, Any]:
    return {"row_id": f"{name}:{number}", "translation": translation, "score": -1.0, "warnings": []}


@pytest.mark.parametrize("output_format", ["jsonl", "parquet"])
def test_jsonl_keeps_other_columns_and_rejects_bad_rows(tmp_path: Path, output_format: str) -> None:
    lines = [
        b'{"text": "one", "n": 1}',
        b"",
        b'{"text": "two\\nlines", "n": 2}',
        b'{"n": 3}',
        b'{"text": 4}',
        b'{"text": "\xff"}',
        b'{"text": "\\ud800", "n": 6}',
        b"[7]",
        b"{",
        b'{"text": "a text of more characters than the limit"}',
        b'{"text": "x", "score": 1}',
        b'{"text": "bad", "n": 11}',
        b'{"text": "last", "n": 12}',
    ]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))

    rows, rejects = translated(tmp_path / "in.jsonl", tmp_path / "out", output_format=output_format)

    assert rows == [
        {"text": "one", "n": 1, **added("in.jsonl", 1, "ONE")},
        {"text": "two\nlines", "n": 2, **added("in.jsonl", 2, "TWO\nLINES")},
        {"text": "last", "n": 12, **added("in.jsonl", 12, "LAST")},
    ]
    assert sorted(rejects, key=lambda row_id: int(row_id.split(":")[1])) == [f"in.jsonl:{n}" for n in range(3, 12)]
    assert rejects["in.jsonl:3"] == "column 'text' is missing"
    assert "type int" in rejects["in.jsonl:4"]
    assert "UTF-8" in rejects["in.jsonl:5"]
    assert "40 characters, at most 20" in rejects["in.jsonl:9"]
    assert "'score'" in rejects["in.jsonl:10"]
    assert rejects["in.jsonl:11"] == "is bad"


def test_parquet_output_of_jsonl_rejects_values_of_other_types_and_new_columns(tmp_path: Path) -> None:
    rows = [{"text": "a", "n": 1, "none": None}, {"text": "b"}, {"text": "c", "n": "x"}, {"text": "d", "more": 1}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))

    written, rejects = translated(tmp_path / "in.jsonl", tmp_path / "out", output_format="parquet")

    assert [(row["n"], row["none"]) for row in written] == [(1, None), (None, None)]
    assert list(rejects) == ["in.jsonl:3", "in.jsonl:4"]


def test_csv_keeps_quoted_newlines_across_blocks_and_rejects_wrong_rows(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf"id",text\r\n1,"a ""b"",\r\nc"\r\n\r\n2\r\n3,\xff\r\n4,d\r\n5,"e\n'
    (tmp_path / "in.csv").write_bytes(content)

    rows, rejects = translated(tmp_path / "in.csv", tmp_path / "out", block_rows=1)

    assert rows == [
        {"id": "1", "text": 'a "b",\r\nc', **added("in.csv", 1, 'A "B",\r\nC')},
        {"id": "4", "text": "d", **added("in.csv", 4, "D")},
        {"id": "5", "text": "e\n", **added("in.csv", 5, "E\n")},
    ]
    assert "1 fields, the header has 2" in rejects["in.csv:2"]
    assert "UTF-8" in rejects["in.csv:3"]


def test_text_files_have_one_row_per_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_ROW_BYTES", 16)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"one\r\n\n" + b"x" * 40 + b"\n\xff\ntwo")
    (tmp_path / "in" / "b.txt").write_bytes(b"three\n")

    rows, rejects = translated(tmp_path / "in", tmp_path / "out")

    assert [(row["row_id"], row["text"]) for row in rows] == [
        ("a.txt:1", "one"),
        ("a.txt:2", ""),
        ("a.txt:5", "two"),
        ("b.txt:1", "three"),
    ]
    assert rejects["a.txt:3"] == "row has more than 16 bytes"
    assert "UTF-8" in rejects["a.txt:4"]


@pytest.mark.parametrize("output_format", ["jsonl", "parquet"])
def test_parquet_is_split_within_row_groups_and_rejects_invalid_strings(tmp_path: Path, output_format: str) -> None:
    data = [b"a", b"b", None, b"\xff", b"e", b"f", b"bad"]
    texts = pa.Array.from_buffers(pa.string(), 7, pa.array(data, pa.binary()).buffers())
    other = pa.Array.from_buffers(pa.string(), 7, pa.array([b"x"] * 5 + [b"\xff", b"x"], pa.binary()).buffers())
    table = pa.table({"text": texts, "other": other, "n": pa.array(range(7), pa.int16())})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=5)

    rows, rejects = translated(tmp_path / "in.parquet", tmp_path / "out", output_format=output_format)

    assert rows == [
        {"text": text, "other": "x", "n": n, **added("in.parquet", n + 1, text.upper())}
        for n, text in ((0, "a"), (1, "b"), (4, "e"))
    ]
    assert sorted(rejects) == [f"in.parquet:{n}" for n in (3, 4, 6, 7)]


def test_named_pipe_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "in.csv")

    with pytest.raises(DatasetError, match=r"in\.csv.*expected a regular file or a directory"):
        files.find_files(tmp_path / "in.csv")


@pytest.mark.parametrize(
    ("name", "content", "changes", "message"),
    [
        ("in.xml", b"", {}, "in.xml: expected a file with one of the extensions"),
        ("in.csv", b"a,b\n1,2\n", {}, "--text-column is 'text'"),
        ("in.csv", b"text,text\n", {}, "distinct column names"),
        ("in.csv", b"text,score\n", {}, "INPUT is a dataset with the column 'score'"),
        ("in.csv", b"text,de\n", {"translation": "de"}, "--column is a dataset with the column 'de'"),
        ("in.parquet", b"PAR1", {}, "expected a Parquet file"),
    ],
)
def test_unusable_input_is_rejected(
    tmp_path: Path, name: str, content: bytes, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DatasetError) as rejected:
        translated(tmp_path / name, tmp_path / "out", **changes)

    assert message in str(rejected.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workers", "0"], "--workers is 0: expected 1 to 1024"),
        (["--beam-size", "17"], "--beam-size is 17: expected 1 to 16"),
        (["--batch-size", "129", "--target", "x:1"], "--batch-size is 129: expected 1 to 128"),
        (["--models", "m", "--target", "x:1"], "--models is m: expected absent with --target"),
        (["--target-language", "xx"], "--target-language: en to xx is not served here"),
        (["--column", "text"], "--column is 'text'"),
    ],
)
def test_invalid_flags_are_named(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("A man.\n")

    assert main(["translate-dataset", str(tmp_path / "in.txt"), str(tmp_path / "out"), *flags]) == 2

    assert message in capsys.readouterr().err


def opened(directory: Path, *, beam_size: int = 4, sha256: str = "1") -> Any:
    file = files.InputFile(path=directory / "in.txt", name="in.txt", sha256=sha256, num_bytes=9, num_rows=4)
    return output.opened(directory, {"beam_size": beam_size, "format": "jsonl"}, [file], 2)


def test_resumed_run_continues_from_the_last_manifest(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.add(output.BlockResult(index=1, rejects=(("in.txt:3", "a"), ("in.txt:4", "b"))))
        run.save()
        manifest = (tmp_path / output.MANIFEST).read_bytes()
        run.add(output.BlockResult(index=0, rejects=(("in.txt:1", "c"),)))
    (tmp_path / output.MANIFEST).write_bytes(manifest)  # as if the process had been killed before it saved
    with (tmp_path / output.REJECTS).open("ab") as rejects_file:
        rejects_file.write(b'{"row_id": "in.t')

    with opened(tmp_path) as run:
        assert (list(run.manifest.blocks), run.manifest.count("rejected")) == ([1], 2)
        run.add(output.BlockResult(index=0, rejects=(("in.txt:1", "c"),)))

    rejects = [json.loads(line)["row_id"] for line in (tmp_path / output.REJECTS).read_text().splitlines()]
    assert rejects == ["in.txt:3", "in.txt:4", "in.txt:1"]
    assert json.loads((tmp_path / output.MANIFEST).read_bytes())["is_complete"]


def test_resume_names_what_differs(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.add(output.BlockResult(index=0, num_translated=2))
        with pytest.raises(DatasetError, match="no other run"), opened(tmp_path):
            pass

    with pytest.raises(DatasetError, match=r"part-000000\.jsonl"), opened(tmp_path):
        pass
    (tmp_path / "part-000000.jsonl").touch()
    with pytest.raises(DatasetError, match="--beam-size is 1: expected 4"), opened(tmp_path, beam_size=1):
        pass
    with pytest.raises(DatasetError, match=r"INPUT is in\.txt \(changed\)"), opened(tmp_path, sha256="2"):
        pass
    (tmp_path / output.MANIFEST).unlink()
    with pytest.raises(DatasetError, match="an empty directory"), opened(tmp_path):
        pass
