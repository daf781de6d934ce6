import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceProcessor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers import eole
from dragoman_export.importers.eole import read_eole
from dragoman_service.bundle.manifest import SpecialIds
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from tests.foreign_checkpoints.eole import EOLE, save_eole
from tests.foreign_checkpoints.random_weights import NUM_SOURCE_TOKENS, NUM_TOKENS, configure
from tests.foreign_models import SOURCES, trained
from tests.tiny_bundle import SENTENCES

_SHARED, _PAIRS, _HALVES, _LEARNED, *_ = EOLE


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_eole(tmp_path / "saved", EOLE[_SHARED])
    return tmp_path / "saved"


def _configure(directory: Path, option: str, value: object) -> None:
    configure(directory / "config.json", option, value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model.architecture", "transformer_lm", "'transformer_lm'"),
        ("model.architecture", "rnn", "'rnn'"),
        ("model.architecture", ["x"], "['x']"),
        ("model.encoder", None, "None"),
        ("model.encoder.encoder_type", "brnn", "is 'brnn': expected 'transformer'"),
        ("model.decoder.layer_types", ["full_attention", "linear_attention"], "is 'linear_attention': expected"),
        ("model.decoder.heads", 4, "expected 2"),
        ("model.decoder.norm_eps", 1e-6, "expected 1e-05"),
        ("model.embeddings.position_encoding_type", "Alibi", "expected SinusoidalInterleaved, SinusoidalConcat"),
        ("model.position_encoding_typo", "Rotary", "expected a supported option"),
        ("model.decoder.position_encoding_type", "Rotary", "expected SinusoidalInterleaved"),
        ("model.embeddings.normalize", True, "expected False"),
        ("model.mlp_activation_fn", "gated-gelu", "expected relu, gelu, silu, gated-silu"),
        ("model.attn_scaling", 4.0, "expected 8"),
        ("model.encoder.rope_config.rotary_dim", 4, "expected 0 or 8"),
        ("model.heads", "8", "expected a value of type int"),
        ("transforms", ["normalize"], "is 'normalize': expected sentencepiece, onmt_tokenize"),
        ("transforms", ["bpe"], "is 'bpe': expected sentencepiece"),
        ("transforms_configs.sentencepiece.src_vocab_threshold", 10, "expected 0"),
        ("transforms_configs.sentencepiece.sampling", True, "expected a supported option"),
        ("transforms_configs.sentencepiece.src_subword_model", "/elsewhere/other.model", "cannot read"),
    ],
)
def test_unsupported_option_is_rejected(saved: Path, path: str, value: object, message: str) -> None:
    _configure(saved, path, value)

    with pytest.raises(ImportFormatError) as raised:
        read_eole(saved)
    assert message in str(raised.value)
    assert path.rpartition(".")[2].removeprefix("src_subword_") in str(raised.value)


@pytest.mark.parametrize("place", ["model", "model.decoder"])
def test_every_required_option_is_checked(saved: Path, place: str) -> None:
    content = (saved / "config.json").read_text(encoding="utf-8")
    options = [f"{place}.{key}" for key in eole._REQUIRED] + list(eole._REQUIRED_ELSEWHERE)
    for option in options:
        (saved / "config.json").write_text(content, encoding="utf-8")
        _configure(saved, option, "other")
        with pytest.raises(ImportFormatError, match=rf"{re.escape(option)} is 'other'"):
            read_eole(saved)


def test_stack_options_default_to_the_model(saved: Path) -> None:
    before = read_eole(saved)
    for stack in ("encoder", "decoder"):
        _configure(saved, f"model.{stack}", {f"{stack}_type": "transformer", "with_cross_attn": True})
    _configure(saved, "model.architecture", "custom")

    assert read_eole(saved).config == before.config


def test_stack_positions_override_the_model(tmp_path: Path) -> None:
    save_eole(tmp_path / "halves", EOLE[_HALVES])
    before = read_eole(tmp_path / "halves").weights
    _configure(tmp_path / "halves", "model.encoder.position_encoding_type", "Rotary")

    after = read_eole(tmp_path / "halves").weights

    differing = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name.split(".", 3)[3] for name in differing} == {
        "self_attention.query.weight",
        "self_attention.query.bias",
        "self_attention.key.weight",  # without bias
    }
    assert {name.partition(".")[0] for name in differing} == {"encoder"}


def test_separate_vocabularies_and_special_features(tmp_path: Path) -> None:
    save_eole(tmp_path / "pairs", EOLE[_PAIRS])
    config = read_eole(tmp_path / "pairs").config
    assert (config.vocabulary_size, config.source_vocabulary_size) == (NUM_TOKENS, NUM_SOURCE_TOKENS)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 8)
    assert (config.norm, config.norm_kind, config.norm_epsilon) == ("pre", "rms", 1e-2)
    assert (config.positions, config.activation, config.scale_embeddings) == ("rotary", "swiglu", False)
    assert (config.tied_embeddings, config.pad_id, config.start_id, config.eos_id, config.unk_id) == (
        "decoder",
        1,
        2,
        3,
        0,
    )

    save_eole(tmp_path / "learned", EOLE[_LEARNED])
    imported = read_eole(tmp_path / "learned")
    stored = load_file(tmp_path / "learned" / "model.00.safetensors")["src_emb.pe.weight"]
    assert torch.equal(imported.weights["encoder.positions.weight"], stored[2:] * math.sqrt(16))
    assert imported.limits.max_source_tokens == imported.config.max_positions == len(stored) - 2
    for shift in (-1, len(stored)):
        _configure(tmp_path / "learned", "model.embeddings.position_shift", shift)
        with pytest.raises(ImportFormatError, match=f"position_shift is {shift}: expected a row of 64 positions"):
            read_eole(tmp_path / "learned")


def _merged(directory: Path) -> Any:
    paths = sorted(directory.glob("model.*.safetensors"))
    return {name: tensor for path in paths for name, tensor in load_file(path).items()}


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda it: it.pop("encoder.layer_norm.weight"), "missing tensor encoder.layer_norm.weight"),
        (lambda it: it.pop("src_emb.pe.pe"), "missing tensor src_emb.pe.pe"),
        (lambda it: it.update(more=torch.ones(1)), "unknown tensor more"),
        (lambda it: it.update(more=torch.tensor(1.0)), "more is a scalar"),
        (lambda it: it.update({"decoder.transformer_layers.2.layer_scalar": torch.ones(1)}), "unknown tensor"),
        (
            lambda it: it.update({"generator.weight": torch.ones(NUM_TOKENS, 16)}),
            "model.share_decoder_embeddings is True",
        ),
        (
            lambda it: it.update({"encoder.transformer_layers.0.self_attn.linear_keys.weight": torch.ones(16, 8)}),
            "linear_keys.*width",
        ),
        (
            lambda it: it.update({"encoder.transformer_layers.0.self_attn.linear_keys.weight": torch.ones(8, 16)}),
            "40 rows: expected 48",
        ),
    ],
)
def test_unexpected_tensors_are_rejected(saved: Path, alter: Callable[[dict[str, Any]], object], message: str) -> None:
    tensors = _merged(saved)
    alter(tensors)
    for path in saved.glob("model.*.safetensors"):
        path.unlink()
    save_file(tensors, saved / "model.00.safetensors")

    with pytest.raises(ImportFormatError, match=message):
        read_eole(saved)


def test_incomplete_directory_is_rejected(saved: Path) -> None:
    parts = sorted(saved.glob("model.*.safetensors"))
    assert len(parts) == 2
    parts[1].unlink()
    save_file(load_file(parts[0]), parts[1])
    with pytest.raises(ImportFormatError, match="duplicate"):
        read_eole(saved)
    for part in parts:
        part.unlink()
    with pytest.raises(ImportFormatError, match=r"has no model\.00\.safetensors"):
        read_eole(saved)
    (saved / "vocab.json").unlink()
    with pytest.raises(ImportFormatError, match=r"cannot read .*vocab\.json"):
        read_eole(saved)
    (saved / "vocab.json").write_text('{"src": {}, "tgt": []}', encoding="utf-8")
    with pytest.raises(ImportFormatError, match=r"vocab\.json: vocab has no lists"):
        read_eole(saved)
    (saved / "config.json").write_text('{"model_type": "marian"}', encoding="utf-8")
    with pytest.raises(ImportFormatError, match="has no model"):
        read_eole(saved)


def test_source_has_its_prefix_and_no_eos(saved: Path, tmp_path: Path) -> None:
    _configure(saved, "transforms", ["sentencepiece", "prefix", "tokendrop"])
    _configure(saved, "transforms_configs.prefix", {"src_prefix": "madeupword0001 madeupword0000"})
    imported = read_eole(saved)
    imported.tokenizer.write(tmp_path)
    ids = SpecialIds(pad=1, bos=2, eos=3, unk=0)
    tokenizer = SentencePieceTokenizer(tmp_path / "target.spm", imported.tokenizer.description.tokenization, ids)
    theirs = SentencePieceProcessor(model_file=str(saved / "spm.model"))
    words = json.loads((saved / "vocab.json").read_text(encoding="utf-8"))["src"]

    for text in SOURCES:
        pieces = ["madeupword0001", "madeupword0000", *theirs.EncodeAsPieces(text)]
        assert tokenizer.encode_pair(text, "")[0] == [words.index(piece) if piece in words else 0 for piece in pieces]

    for piece, message in (("⦅x⦆", "vocabulary"), ("▁a", "text")):
        _configure(saved, "transforms_configs.prefix", {"src_prefix": piece})
        with pytest.raises(ImportFormatError, match=f"src_prefix is '{piece}'.*{message}"):
            read_eole(saved)
    _configure(saved, "transforms_configs.prefix", {"tgt_prefix": "▁a"})
    with pytest.raises(ImportFormatError, match=r"tgt_prefix is '▁a': expected ''"):
        read_eole(saved)


def test_onmt_tokenize_must_be_plain_sentencepiece(saved: Path) -> None:
    expected = read_eole(saved).tokenizer
    options: dict[str, Any] = {}
    for side in ("src", "tgt"):
        options |= {f"{side}_subword_type": "sentencepiece", f"{side}_subword_model": "data/spm.model"}
        options |= {f"{side}_onmttok_kwargs": {"mode": "none"}, f"{side}_subword_alpha": 0.1}
    _configure(saved, "transforms", ["onmt_tokenize"])
    _configure(saved, "transforms_configs", {"onmt_tokenize": options})
    assert read_eole(saved).tokenizer == expected

    for key, value, message in (
        ("src_subword_type", "bpe", "is 'bpe': expected sentencepiece"),
        ("tgt_subword_type", None, "is 'none': expected sentencepiece"),
        ("src_onmttok_kwargs", {"mode": "space"}, "src_onmttok_kwargs.mode is 'space': expected 'none'"),
        ("src_onmttok_kwargs", {"mode": "none", "case_markup": True}, "src_onmttok_kwargs.case_markup is True"),
        ("mapped_tokens", [["<a>", "⦅a⦆"]], "mapped_tokens is"),
        ("gpt2_pretok", True, "gpt2_pretok is True: expected False"),
    ):
        _configure(saved, "transforms_configs", {"onmt_tokenize": {**options, key: value}})
        with pytest.raises(ImportFormatError, match=message):
            read_eole(saved)


def test_sentencepiece_models_are_found(saved: Path, tmp_path: Path) -> None:
    expected = read_eole(saved).tokenizer
    (saved / "spm.model").rename(saved / "source.model")
    with pytest.raises(ImportFormatError, match=r"cannot read .*spm\.model"):
        read_eole(saved)
    assert read_eole(saved, source_spm=saved / "source.model").tokenizer == expected
    _configure(saved, "transforms", [])
    assert read_eole(saved).tokenizer == expected
    _configure(saved, "transforms", ["sentencepiece"])
    other = tmp_path / "saved" / "other.model"
    other.write_bytes(trained(SENTENCES[:6], size=70))
    _configure(saved, "transforms_configs.sentencepiece.src_subword_model", "${MODEL_PATH}/source.model")
    _configure(saved, "transforms_configs.sentencepiece.tgt_subword_model", "${MODEL_PATH}/other.model")
    assert read_eole(saved).tokenizer == expected  # a shared vocabulary uses the source's model
    _configure(saved, "share_vocab", value=False)
    assert read_eole(saved).tokenizer.files["target.spm"] == other.read_bytes()
