import gzip
import json
from pathlib import Path

import pytest

from dragoman_export.__main__ import main

LINES = [f"Line {number}\tZeile {number}" for number in range(5000)]


def clean(folder: Path, lines: list[str], *flags: str, output: str = "out.tsv.gz") -> int:
    (folder / "in.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = ["--data", str(folder / "in.tsv"), "--output", str(folder / output)]
    return main(["clean", *files, "--processes", "2", *flags])


def test_kept_lines_stay_in_order_and_every_line_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("Line 7\tx\n")
    lines = [*LINES, LINES[0], "Caf\ufffd\tCafé <x>"]

    assert clean(tmp_path, lines, "--held-out", str(tmp_path / "test.tsv"), "--examples", "3") == 0

    kept = gzip.decompress((tmp_path / "out.tsv.gz").read_bytes()).decode().splitlines()
    assert kept == [line for line in LINES if line != LINES[7]]
    report = json.loads((tmp_path / "out.json").read_text())
    dropped = {reason: count for reason, count in report["dropped"].items() if count}
    assert dropped == {"encoding": 1, "held out": 1, "duplicate": 1}
    assert report["kept"] + sum(dropped.values()) == report["pairs"] == len(lines)
    assert len(report["examples"]["kept"]) == 3
    assert "Café &lt;x&gt;" in (tmp_path / "out.html").read_text()


def test_output_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert clean(tmp_path, LINES, output=f"{name}.tsv.gz") == 0

    for kind in ("tsv.gz", "json"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_pairs_below_the_score_are_dropped(tmp_path: Path) -> None:
    scores = tmp_path / "scores.txt"
    scores.write_text("0.9\n0.2\n0.5\n")

    assert clean(tmp_path, LINES[:3], "--scores", str(scores), "--min-score", "0.5", output="out.tsv") == 0

    assert (tmp_path / "out.tsv").read_text().splitlines() == [LINES[0], LINES[2]]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--label-share", "1.5"], "--label-share is 1.5: expected from 0 to 1"),
        (["--max-ratio", "0.5"], "--max-ratio is 0.5: expected at least 1"),
        (["--max-words", "0"], "--max-words is 0: expected at least 1"),
        (["--min-score", "1"], "--scores is None: expected a file, together with --min-score"),
        (["--source-language", "en"], "expected a tag, together with --target-language"),
        (["--scores", "SCORES", "--min-score", "1"], "has 2 scores for 3 pairs"),
        (["--held-out", "absent.tsv"], "absent.tsv"),
    ],
)
def test_invalid_flags_are_rejected(
    tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scores.txt").write_text("1\n2\n")
    given = [str(tmp_path / "scores.txt") if flag == "SCORES" else flag for flag in flags]

    assert clean(tmp_path, LINES[:3], *given) == 1

    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.tsv.gz").exists()


def test_existing_output_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.tsv.gz").write_text("mine")

    assert clean(tmp_path, LINES[:3]) == 1

    assert "already exists" in capsys.readouterr().err
