from pathlib import Path

import pytest

from dragoman_export.__main__ import main
from dragoman_service.bundle.files import Bundle, load_manifest, open_bundle
from dragoman_service.runtimes.shortlist import open_shortlist
from dragoman_service.text.tokenizer import open_tokenizer
from tests.tiny_bundle import SENTENCES

HALF = len(SENTENCES) // 2
PAIRS = list(zip(SENTENCES[:HALF], SENTENCES[HALF:], strict=True))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    return path


def shortlist(bundle: Path, output: Path, data: Path, *flags: str) -> Bundle:
    paths = ["--bundle", str(bundle), "--output", str(output), "--data", str(data)]
    assert main(["shortlist", *paths, "--mean-size", "100", *flags]) == 0
    return open_bundle(output)


def test_copy_has_a_shortlist_and_is_otherwise_unchanged(
    tmp_path: Path, fp32_bundle: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = shortlist(fp32_bundle, tmp_path / "new", data).manifest

    size = (tmp_path / "new" / "shortlist.bin").stat().st_size
    assert f"tiny/1 with a shortlist of {size:,} bytes" in capsys.readouterr().out
    before = load_manifest(fp32_bundle)
    changes = {"shortlist": "shortlist.bin", "files": {**before.files, "shortlist.bin": after.files["shortlist.bin"]}}
    assert after == before.model_copy(update=changes)
    assert before.shortlist is None
    replaced = shortlist(tmp_path / "new", tmp_path / "newer", data, "--max-size", "128")
    assert open_shortlist(replaced).max_size == 128


def test_lists_contain_learned_copied_and_permanent_tokens(tmp_path: Path, fp32_bundle: Path, data: Path) -> None:
    bundle = shortlist(fp32_bundle, tmp_path / "new", data, "--max-size", "190")
    lists, tokenizer = open_shortlist(bundle), open_tokenizer(bundle)
    source, target = PAIRS[0]

    listed = set(lists.of(tokenizer.encode(source)).tolist())

    assert lists.max_size == 192
    assert len(listed) < tokenizer.vocabulary_size
    assert listed >= {*tokenizer.encode(source), *tokenizer.encode(target), tokenizer.eos_id, *tokenizer.encode(".")}


def test_copies_ignore_white_space(tmp_path: Path, fp32_bundle: Path, data: Path) -> None:
    bundle = shortlist(fp32_bundle, tmp_path / "new", data)
    lists, tokenizer = open_shortlist(bundle), open_tokenizer(bundle)
    pieces = {piece: token for token, piece in enumerate(tokenizer.pieces(range(tokenizer.vocabulary_size)))}
    twins = [(pieces[f"▁{piece}"], token) for piece, token in pieces.items() if f"▁{piece}" in pieces]

    assert twins
    for one, other in twins:
        assert min(lists.scores([one])[other], lists.scores([other])[one]) >= 1


def test_coverage_of_held_out_text_is_reported(
    tmp_path: Path, fp32_bundle: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = tmp_path / "dev.tsv"
    held_out.write_text(f"{PAIRS[0][0]}\t{PAIRS[0][1]}\n{PAIRS[1][0]}\t日本\n", encoding="utf-8")

    shortlist(fp32_bundle, tmp_path / "new", data, "--held-out", str(held_out))

    assert "50.00% of the targets" in capsys.readouterr().out


def test_lines_are_spread_evenly(tmp_path: Path, fp32_bundle: Path, data: Path) -> None:
    few = tmp_path / "few.tsv"
    few.write_text("".join(data.read_text(encoding="utf-8").splitlines(keepends=True)[::2]), encoding="utf-8")

    shortlist(fp32_bundle, tmp_path / "one", data, "--sentences", "2")
    shortlist(fp32_bundle, tmp_path / "other", few)

    one, other = ((tmp_path / name / "shortlist.bin").read_bytes() for name in ("one", "other"))
    assert one == other
