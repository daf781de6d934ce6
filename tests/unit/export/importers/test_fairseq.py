import argparse
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.fairseq import read_fairseq
from dragoman_service.bundle.manifest import SpecialIds
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from tests.foreign_models import SOURCES, pieces, trained
from tests.tiny_bundle import SENTENCES
from tests.unit.export.importers.rewriting import rewrite


def test_all_formats_of_options_are_equal(fairseq: Path) -> None:
    expected = read_fairseq(fairseq).config

    def as_args(content: dict[str, Any]) -> None:
        cfg = content.pop("cfg")
        content["args"] = argparse.Namespace(**{**vars(cfg["model"]), "source_lang": "en", "target_lang": "de"})

    def as_hydra(content: dict[str, Any]) -> None:
        options = vars(content.pop("args"))
        parts = {
            stack: {key.removeprefix(f"{stack}_"): options.pop(key) for key in list(options) if key.startswith(stack)}
            for stack in ("encoder", "decoder")
        }
        flat = {key: value for key, value in options.items() if key not in ("arch", "task")}
        task = {"_name": "translation", "source_lang": "en", "target_lang": "de"}
        content["cfg"] = {"model": {"_name": "transformer", **flat, **parts}, "task": task}

    for alter in (as_args, as_hydra):
        rewrite(fairseq / "checkpoint_best.pt", alter)

        assert read_fairseq(fairseq).config == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("▁again", r"dict\.de\.txt, line 98: '▁again'"),
        ("▁again many", "expected a piece"),
        ("madeupword0000 1", "duplicate piece"),
        ("<s> 1", "duplicate piece"),
        ("▁a 1 #fairseq:overwrite", "expected a piece"),
    ],
)
def test_invalid_dictionary_line_is_rejected(fairseq: Path, line: str, message: str) -> None:
    with (fairseq / "dict.de.txt").open("a", encoding="utf-8") as file:
        file.write(line + "\n")

    with pytest.raises(ImportFormatError, match=message):
        read_fairseq(fairseq)


def test_two_dictionaries_cannot_share_a_table(fairseq: Path) -> None:
    lines = (fairseq / "dict.en.txt").read_text(encoding="utf-8").splitlines()
    (fairseq / "dict.en.txt").write_text("\n".join(lines[::-1]) + "\n", encoding="utf-8")

    with pytest.raises(ImportFormatError, match="share_all_embeddings is True, but the dictionaries differ"):
        read_fairseq(fairseq)


def test_token_ids_equal_the_dictionary(fairseq: Path, tmp_path: Path) -> None:
    imported = read_fairseq(fairseq)
    imported.tokenizer.write(tmp_path)
    ids = SpecialIds(pad=1, bos=2, eos=2, unk=3)
    tokenizer = SentencePieceTokenizer(tmp_path / "target.spm", imported.tokenizer.description.tokenization, ids)
    processor = SentencePieceProcessor(model_file=str(fairseq / "spm.model"))
    words = ["<s>", "<pad>", "</s>", "<unk>", *pieces(trained(SENTENCES, size=70))[3:]]

    for text in SOURCES:
        expected = [words.index(piece) if piece in words else 3 for piece in processor.EncodeAsPieces(text)]
        assert tokenizer.encode_pair(text, "")[0] == [*expected, 2]


def test_sentencepiece_models_are_found_by_language(fairseq: Path, tmp_path: Path) -> None:
    (fairseq / "spm.model").rename(tmp_path / "elsewhere.model")
    with pytest.raises(ImportFormatError, match=r"has no SentencePiece model .*subword-nmt or fastBPE"):
        read_fairseq(fairseq)
    given = dict.fromkeys(("source_spm", "target_spm"), tmp_path / "elsewhere.model")
    expected = read_fairseq(fairseq, **given).tokenizer
    for name in ("spm.en.model", "spm.de.model"):
        (fairseq / name).write_bytes(given["source_spm"].read_bytes())
    assert read_fairseq(fairseq).tokenizer == expected
    (fairseq / "spm.de.model").rename(fairseq / "other.model")
    with pytest.raises(ImportFormatError, match=r"de \(other\.model, spm\.en\.model\)"):
        read_fairseq(fairseq)

    (fairseq / "checkpoint_best.pt").rename(tmp_path / "average.pt")
    with pytest.raises(ImportFormatError, match=r"has no model\.pt, checkpoint_best\.pt"):
        read_fairseq(fairseq)
    assert read_fairseq(tmp_path / "average.pt", text=fairseq, **given).tokenizer == expected
