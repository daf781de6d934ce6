import argparse
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from sentencepiece import SentencePieceProcessor

from dragoman_export.errors import ImportFormatError
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
    ("options", "told"),
    [
        ({"arch": "transformer_align"}, "arch is 'transformer_align': expected 'transformer' or"),
        ({"arch": "fconv"}, "arch is 'fconv'"),
        ({"activation_fn": "gelu_accurate"}, "activation_fn is 'gelu_accurate': expected 'relu' or 'gelu'"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads is 4: expected 2"),
        ({"decoder_ffn_embed_dim": 32}, "decoder_ffn_embed_dim is 32: expected 24"),
        ({"decoder_normalize_before": True}, "decoder_normalize_before is True: expected False"),
        ({"decoder_learned_pos": True}, "decoder_learned_pos is True: expected False"),
        ({"adaptive_softmax_cutoff": "50,80"}, "adaptive_softmax_cutoff is '50,80'"),
        ({"adaptive_input": True}, "adaptive_input is True"),
        ({"cross_self_attention": True}, "cross_self_attention is True"),
        ({"no_cross_attention": True}, "no_cross_attention is True"),
        ({"no_decoder_final_norm": True}, "no_decoder_final_norm is True"),
        ({"encoder_layers_to_keep": "0"}, "encoder_layers_to_keep is '0'"),
        ({"base_layers": 1}, "base_layers is 1"),
        ({"quant_noise_scalar": 0.5}, "quant_noise_scalar is 0.5"),
        ({"scale_heads": True}, "scale_heads is True"),
        ({"char_inputs": True}, "char_inputs is True"),
        ({"user_dir": "plugins"}, "user_dir is 'plugins'"),
        ({"encoder_rotary": True}, "encoder_rotary is True: expected an option that this importer knows"),
        ({"encoder_layers": "2"}, "encoder_layers is '2': expected a value of type int"),
        ({"encoder_layers": 3}, r"there is no tensor model\.encoder\.layers\.2"),
        ({"encoder_layers": 1}, r"nothing is known of tensor model\.encoder\.layers\.1"),
        ({"encoder_normalize_before": True, "decoder_normalize_before": True}, r"no tensor model\.encoder\.layer_norm"),
        ({"encoder_embed_dim": 1 << 40, "decoder_embed_dim": 1 << 40}, "d_model is 1099511627776"),
    ],
)
def test_an_option_that_would_make_another_network_is_refused_by_name(
    saved: Path, options: dict[str, Any], told: str
) -> None:
    _rewrite(saved, lambda content: vars(content["cfg"]["model"]).update(options))

    with pytest.raises(ImportFormatError, match=told):
        read_fairseq(saved)


@pytest.mark.parametrize(
    ("alter", "told"),
    [
        (lambda it: it["cfg"]["task"].update(_name="translation_multi_simple_epoch"), "_name is 'translation_multi"),
        (lambda it: it["cfg"]["task"].update(source_lang=None), "source_lang is None: expected a value of type str"),
        (lambda it: it["cfg"]["task"].update(target_lang="../de"), "'../de' is no name of a language"),
        (lambda it: it.pop("cfg"), "neither args nor cfg"),
        (lambda it: it.pop("model"), "holds NoneType: expected tensors by name"),
        (lambda it: it["model"].update(step=torch.tensor(1)), r"step is torch.int64: expected a tensor of floats"),
        (lambda it: it["model"].update({"decoder.embed_out": torch.ones(2, 2)}), r"nothing is known of tensor model\."),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    saved: Path, alter: Callable[[dict[str, Any]], object], told: str
) -> None:
    _rewrite(saved, alter)

    with pytest.raises(ImportFormatError, match=told):
        read_fairseq(saved)


def test_a_checkpoint_that_wants_to_run_code_is_refused(saved: Path) -> None:
    _rewrite(saved, lambda content: content.update(meters=Fraction(1, 2)))

    with pytest.raises(ImportFormatError, match=r"it names fractions\.Fraction"):
        read_fairseq(saved)


def test_a_checkpoint_in_the_format_before_pytorch_1_6_is_read(saved: Path) -> None:
    path = saved / "checkpoint_best.pt"
    expected = read_fairseq(saved)
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(path, weights_only=True)
    torch.save(content, path, _use_new_zipfile_serialization=False)

    found = read_fairseq(saved)

    assert found.config == expected.config
    assert all(torch.equal(found.weights[name], tensor) for name, tensor in expected.weights.items())


def test_older_checkpoints_and_those_that_hydra_configured_say_the_same(saved: Path) -> None:
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


def test_pre_norm_of_the_first_versions_is_refused(tmp_path: Path) -> None:
    save_fairseq(tmp_path / "saved", FAIRSEQ["pre-norm, two dictionaries"])
    _rewrite(tmp_path / "saved", lambda content: content["model"].pop("decoder.version"))

    with pytest.raises(ImportFormatError, match=r"decoder\.version is that of networks without a final normalisation"):
        read_fairseq(tmp_path / "saved")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("▁again", r"dict\.de\.txt, line 98: '▁again' is no piece and its count"),
        ("▁again many", "is no piece and its count"),
        ("madeupword0000 1", "a piece stands twice"),
        ("<s> 1", "a piece stands twice, or is one of <s>"),
        ("▁a 1 #fairseq:overwrite", "is no piece and its count"),
    ],
)
def test_a_line_that_is_no_piece_of_its_own_is_refused(saved: Path, line: str, told: str) -> None:
    with (saved / "dict.de.txt").open("a", encoding="utf-8") as file:
        file.write(line + "\n")

    with pytest.raises(ImportFormatError, match=told):
        read_fairseq(saved)


def test_two_dictionaries_cannot_have_one_table(saved: Path) -> None:
    lines = (saved / "dict.en.txt").read_text(encoding="utf-8").splitlines()
    (saved / "dict.en.txt").write_text("\n".join(lines[::-1]) + "\n", encoding="utf-8")

    with pytest.raises(ImportFormatError, match="share_all_embeddings is True, but the dictionaries differ"):
        read_fairseq(saved)


def test_token_ids_are_those_of_the_dictionary(saved: Path, tmp_path: Path) -> None:
    imported = read_fairseq(saved)
    imported.tokenizer.write(tmp_path)
    ids = SpecialIds(pad=1, bos=2, eos=2, unk=3)
    tokenizer = SentencePieceTokenizer(tmp_path / "target.spm", imported.tokenizer.description.tokenization, ids)
    theirs = SentencePieceProcessor(model_file=str(saved / "spm.model"))
    words = ["<s>", "<pad>", "</s>", "<unk>", *pieces(trained(SENTENCES, size=70))[3:]]

    for text in SOURCES:
        expected = [words.index(piece) if piece in words else 3 for piece in theirs.EncodeAsPieces(text)]
        assert tokenizer.encode_pair(text, "")[0] == [*expected, 2]


def test_models_are_found_by_language_or_given(saved: Path, tmp_path: Path) -> None:
    (saved / "spm.model").rename(tmp_path / "elsewhere.model")
    with pytest.raises(ImportFormatError, match=r"has no SentencePiece model .*subword-nmt or fastBPE"):
        read_fairseq(saved)
    given = dict.fromkeys(("source_spm", "target_spm"), tmp_path / "elsewhere.model")
    expected = read_fairseq(saved, **given).tokenizer
    for name in ("spm.en.model", "spm.de.model"):
        (saved / name).write_bytes(given["source_spm"].read_bytes())
    assert read_fairseq(saved).tokenizer == expected
    (saved / "spm.de.model").rename(saved / "other.model")
    with pytest.raises(ImportFormatError, match=r"which of other\.model, spm\.en\.model is for de\?"):
        read_fairseq(saved)

    (saved / "checkpoint_best.pt").rename(tmp_path / "average.pt")
    with pytest.raises(ImportFormatError, match=r"has no model\.pt, checkpoint_best\.pt"):
        read_fairseq(saved)
    assert read_fairseq(tmp_path / "average.pt", text=saved, **given).tokenizer == expected
