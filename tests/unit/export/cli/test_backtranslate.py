"""`dragoman export backtranslate`; a fake takes the place of `dragoman translate-dataset`, which needs Ray."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dragoman_export.__main__ import main
from dragoman_export.data.translate_dataset import LineTranslation, Row

TRANSLATIONS: dict[str, Row | None] = {
    "eins": {"translation": "one\ttwo\n", "warnings": ["SOURCE_SPLIT: in 2 parts"]},
    "zwei": None,
    "drei vier": {"translation": " ", "warnings": []},
    "fünf": {"translation": "five", "warnings": ["TRUNCATED: at 512 tokens"]},
    "sechs": {"translation": "six", "warnings": []},
}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    def fake(translation: LineTranslation, lines: Iterable[str]) -> Iterator[tuple[str, Row | None]]:
        translation.directory.mkdir()
        return iter([(line, TRANSLATIONS[line]) for line in lines])

    monkeypatch.setattr(LineTranslation, "run", fake)
    monkeypatch.setattr(LineTranslation, "settings", {"model": "de-en/1"})
    (tmp_path / "a.txt").write_bytes("eins\r\n\n zwei \ndrei\tvier\n\xff\n".encode("latin-1"))
    (tmp_path / "b.txt").write_text("fünf\nsechs")
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    return ["backtranslate", "--bundle", "de-en/1", "--data", *files, "--output", str(tmp_path / "out.tsv")]


@pytest.mark.parametrize(("flags", "prefix"), [([], ""), (["--tag", "<BT>"], "<BT> ")])
def test_translations_become_sources_and_dropped_lines_are_counted(
    command: list[str], flags: list[str], prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *flags]) == 0

    assert (tmp_path / "out.tsv").read_text() == f"{prefix}one two\teins\n{prefix}six\tsechs\n"
    report = json.loads((tmp_path / "out.tsv.json").read_text())
    assert (report["lines"], report["kept"], report["translation"]) == (7, 2, {"model": "de-en/1"})
    reasons = ("encoding", "empty", "rejected", "untranslated", "truncated")
    assert report["dropped"] == dict.fromkeys(reasons, 1)
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["2", "of", "7"]
    assert not (tmp_path / "out.tsv.parts").exists()
    assert main([*command, *flags]) == 1  # the output exists


@pytest.mark.parametrize("tag", ["", " ", "<B T>"])
def test_tag_of_other_than_one_word_is_rejected(
    command: list[str], tag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--tag", tag]) == 1

    assert f"--tag is {tag!r}" in capsys.readouterr().err


def test_missing_text_is_named(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.txt").unlink()

    assert main(command) == 1

    assert "b.txt" in capsys.readouterr().err
    assert not (tmp_path / "out.tsv").exists()
