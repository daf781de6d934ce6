"""Public test sets that `dragoman export evaluate` recognises."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman_export.__main__ import main
from dragoman_export.data.reader import Pair
from dragoman_export.evaluation import test_sets

PAIRS = [("A  man\u00a0sleeps.", "Ein Mann schläft."), ("It rains.", "Es regnet.")]


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [Pair(source=source, target=target, location="") for source, target in PAIRS]
    one = replace(test_sets.PUBLIC_TEST_SETS[0], name="small", paths="small[0-9]", sha256=test_sets.pairs_sha256(pairs))
    monkeypatch.setattr(test_sets, "PUBLIC_TEST_SETS", (one,))


def evaluate(data: Path, *flags: str) -> int:
    translations = data.with_name("translations")
    translations.write_text("Ein Mann schläft.\nEs regnet.\n", encoding="utf-8")
    return main(["evaluate", "--data", str(data), "--translations", str(translations), *flags])


@pytest.mark.parametrize(("suffix", "languages"), [("tsv", "en-de"), ("jsonl", "en-de"), ("tsv", "de-en")])
def test_set_is_named_in_any_format_and_direction(
    tmp_path: Path, suffix: str, languages: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / f"data.{suffix}"
    rows = [row if languages == "en-de" else row[::-1] for row in (("A man sleeps.", PAIRS[0][1]), PAIRS[1])]
    lines = [
        "\t".join(row) if suffix == "tsv" else json.dumps(dict(zip(("source", "target"), row, strict=True)))
        for row in rows
    ]
    data.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    assert evaluate(data, "--html", str(tmp_path / "page.html")) == 0

    printed = capsys.readouterr()
    assert printed.out.startswith(f"test set small {languages}: Bojar")
    assert f"|test:small|lang:{languages}|" in printed.out
    assert f"/data.{suffix} (small {languages})" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not printed.err


def test_part_of_a_set_does_not_have_its_signature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data.tsv"
    data.write_text("".join("\t".join(row) + "\n" for row in PAIRS), encoding="utf-8")
    data.with_name("one").write_text("Ein Mann\n")

    assert main(["evaluate", "--data", str(data), "--translations", str(data.with_name("one")), "--limit", "1"]) == 0

    assert "test:small" not in capsys.readouterr().out


def test_other_pairs_under_the_name_of_a_set_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "small1.tsv"
    data.write_text("A man.\tEin Mann.\nIt rains.\tEs regnet.\n", encoding="utf-8")

    assert evaluate(data) == 0

    printed = capsys.readouterr()
    assert printed.err.startswith(f"warning: {data} is named like small")
    assert "test:small" not in printed.out


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("newstest2013-en-de/test.tsv.gz", "newstest2013"),
        ("multi30k/test_2016_flickr.tsv.gz", "multi30k-test_2016_flickr"),
        ("tatoeba-en-de/test.tsv.gz", "tatoeba-test-v2021-08-07"),
        ("data/tatoeba-test-v2021-08-07.tsv", "tatoeba-test-v2021-08-07"),
        ("tatoeba-en-de/dev.tsv.gz", None),
        ("multi30k-en-de/val.tsv.gz", None),
        ("software-docs-en-de/test.tsv.gz", None),
    ],
)
def test_sets_have_distinct_names(path: str, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real table

    found = test_sets.named_test_set(Path(path))

    assert (found and found.name) == name
