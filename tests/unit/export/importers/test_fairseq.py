import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentencepiece import SentencePieceProcessor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers import fairseq
from dragoman_export.importers.fairseq import read_fairseq
from dragoman_service.bundle.manifest import SpecialIds
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from tests.foreign_checkpoints.fairseq import FAIRSEQ, save_fairseq
from tests.foreign_models import SOURCES, pieces, trained
from tests.tiny_bundle import SENTENCES


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_fairseq(tmp_path / "saved", FAIRSEQ["post-norm, shared"])
    return tmp_path / "saved"


def _rewrite(directory: Path, alter: Callable[[dict[str, Any]], object]) -> None:
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(directory / "checkpoint_best.pt", weights_only=True)
    alter(content)
    torch.save(content, directory / "checkpoint_best.pt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "transformer_align"}, "arch is 'transformer_align': expected 'transformer' or"),
        ({"arch": "fconv"}, "arch is 'fconv'"),
        ({"activation_fn": "gelu_accurate"}, "activation_fn is 'gelu_accurate': expected relu, gelu"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads is 4: expected 2"),
        ({"decoder_ffn_embed_dim": 32}, "decoder_ffn_embed_dim is 32: expected 24"),
        ({"decoder_normalize_before": True}, "decoder_normalize_before is True: expected False"),
        ({"decoder_learned_pos": True}, "decoder_learned_pos is True: expected False"),
        ({"encoder_rotary": True}, "encoder_rotary is True"),
        ({"encoder_layers": "2"}, "encoder_layers is '2': expected a value of type int"),
        ({"encoder_layers": 3}, r"missing tensor model\.encoder\.layers\.2"),
        ({"encoder_layers": 1}, r"unknown tensor model\.encoder\.layers\.1"),
        ({"encoder_normalize_before": True, "decoder_normalize_before": True}, r"encoder\.layer_norm"),
        ({"encoder_embed_dim": 1 << 40, "decoder_embed_dim": 1 << 40}, "d_model is 1099511627776"),
    ],
)
def test_unsupported_option_is_rejected(saved: Path, options: dict[str, Any], message: str) -> None:
    _rewrite(saved, lambda content: vars(content["cfg"]["model"]).update(options))

    with pytest.raises(ImportFormatError, match=message):
        read_fairseq(saved)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda it: it["cfg"]["task"].update(_name="translation_multi_simple_epoch"), "_name is 'translation_multi"),
        (lambda it: it["cfg"]["task"].update(source_lang=None), "source_lang is None: expected a value of type str"),
        (lambda it: it["cfg"]["task"].update(target_lang="../de"), "'../de'"),
        (lambda it: it.pop("cfg"), "neither args nor cfg"),
        (lambda it: it.pop("model"), "NoneType: expected tensors by name"),
        (lambda it: it["model"].update(step=torch.tensor(1)), r"step is torch.int64: expected a tensor of floats"),
        (lambda it: it["model"].update({"decoder.embed_out": torch.ones(2, 2)}), r"unknown tensor model\."),
    ],
)
def test_foreign_checkpoint_is_rejected(saved: Path, alter: Callable[[dict[str, Any]], object], message: str) -> None:
    _rewrite(saved, alter)

    with pytest.raises(ImportFormatError, match=message):
        read_fairseq(saved)


def test_all_formats_of_options_are_equal(saved: Path) -> None:
    expected = read_fairseq(saved).config

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
        _rewrite(saved, alter)

        assert read_fairseq(saved).config == expected


def test_pre_norm_without_final_norm_is_rejected(tmp_path: Path) -> None:
    save_fairseq(tmp_path / "saved", FAIRSEQ["pre-norm, two dictionaries"])
    _rewrite(tmp_path / "saved", lambda content: content["model"].pop("decoder.version"))

    with pytest.raises(ImportFormatError, match=r"decoder\.version"):
        read_fairseq(tmp_path / "saved")


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
def test_invalid_dictionary_line_is_rejected(saved: Path, line: str, message: str) -> None:
    with (saved / "dict.de.txt").open("a", encoding="utf-8") as file:
        file.write(line + "\n")

    with pytest.raises(ImportFormatError, match=message):
        read_fairseq(saved)


def test_two_dictionaries_cannot_share_a_table(saved: Path) -> None:
    lines = (saved / "dict.en.txt").read_text(encoding="utf-8").splitlines()
    (saved / "dict.en.txt").write_text("\n".join(lines[::-1]) + "\n", encoding="utf-8")

    with pytest.raises(ImportFormatError, match="share_all_embeddings is True, but the dictionaries differ"):
        read_fairseq(saved)


def test_token_ids_equal_the_dictionary(saved: Path, tmp_path: Path) -> None:
    imported = read_fairseq(saved)
    imported.tokenizer.write(tmp_path)
    ids = SpecialIds(pad=1, bos=2, eos=2, unk=3)
    tokenizer = SentencePieceTokenizer(tmp_path / "target.spm", imported.tokenizer.description.tokenization, ids)
    theirs = SentencePieceProcessor(model_file=str(saved / "spm.model"))
    words = ["<s>", "<pad>", "</s>", "<unk>", *pieces(trained(SENTENCES, size=70))[3:]]

    for text in SOURCES:
        expected = [words.index(piece) if piece in words else 3 for piece in theirs.EncodeAsPieces(text)]
        assert tokenizer.encode_pair(text, "")[0] == [*expected, 2]


def test_sentencepiece_models_are_found_by_language(saved: Path, tmp_path: Path) -> None:
    (saved / "spm.model").rename(tmp_path / "elsewhere.model")
    with pytest.raises(ImportFormatError, match=r"has no SentencePiece model .*subword-nmt or fastBPE"):
        read_fairseq(saved)
    given = dict.fromkeys(("source_spm", "target_spm"), tmp_path / "elsewhere.model")
    expected = read_fairseq(saved, **given).tokenizer
    for name in ("spm.en.model", "spm.de.model"):
        (saved / name).write_bytes(given["source_spm"].read_bytes())
    assert read_fairseq(saved).tokenizer == expected
    (saved / "spm.de.model").rename(saved / "other.model")
    with pytest.raises(ImportFormatError, match=r"de \(other\.model, spm\.en\.model\)"):
        read_fairseq(saved)

    (saved / "checkpoint_best.pt").rename(tmp_path / "average.pt")
    with pytest.raises(ImportFormatError, match=r"has no model\.pt, checkpoint_best\.pt"):
        read_fairseq(saved)
    assert read_fairseq(tmp_path / "average.pt", text=saved, **given).tokenizer == expected


@pytest.mark.parametrize("option", sorted(fairseq._NEUTRAL))
def test_every_neutral_option_is_checked(saved: Path, option: str) -> None:
    _rewrite(saved, lambda content: setattr(content["cfg"]["model"], option, "other"))

    with pytest.raises(ImportFormatError, match=f"{option} is 'other'"):
        read_fairseq(saved)
