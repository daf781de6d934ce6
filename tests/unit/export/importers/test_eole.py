import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceProcessor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.eole import read_eole
from dragoman_service.bundle.manifest import SpecialIds
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from tests.foreign_checkpoints.drawing import NUM_SOURCE_TOKENS, NUM_TOKENS, configure
from tests.foreign_checkpoints.eole import EOLE, save_eole
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
    ("path", "value", "told"),
    [
        ("model.architecture", "transformer_lm", "which cannot be served: it has no encoder, as language models"),
        ("model.architecture", "rnn", "it is a recurrent network"),
        ("model.architecture", ["x"], "only Transformers with encoder and decoder are"),
        ("model.encoder", None, "only Transformers with encoder and decoder are served"),
        ("model.encoder.encoder_type", "brnn", "is 'brnn': expected 'transformer'"),
        ("model.encoder.encoder_layer_style", "postnorm", "expected 'standard'"),
        ("model.encoder.final_encoder_layer_norm", False, "expected True"),
        ("model.decoder.layer_types", ["full_attention", "linear_attention"], "is 'linear_attention': expected"),
        ("model.decoder.heads", 4, "expected 2"),
        ("model.decoder.norm_eps", 1e-6, "expected 1e-05"),
        ("model.embeddings.position_encoding_type", "Alibi", "expected SinusoidalInterleaved, SinusoidalConcat"),
        ("model.position_encoding_typo", "Rotary", "an option that this importer knows"),
        ("model.decoder.position_encoding_type", "Rotary", "expected SinusoidalInterleaved"),
        ("model.embeddings.embedding_type", "roberta", "expected 'standard'"),
        ("model.embeddings.normalize", True, "expected False"),
        ("model.mlp_activation_fn", "gated-gelu", "expected relu, gelu, silu, gated-silu"),
        ("model.layer_norm", "gemma-rms", "expected 'standard'"),
        ("model.decoder.parallel_residual", True, "expected False"),
        ("model.relative_positions_buckets", 32, "expected 0"),
        ("model.sliding_window", 128, "expected 0"),
        ("model.num_experts", 8, "expected 0"),
        ("model.query_norm", True, "expected False"),
        ("model.attn_scaling", 4.0, "expected 8"),
        ("model.rope_config.scaling_type", "llama3", "expected none"),
        ("model.decoder.rope_config.rotary_theta", 1000000, "expected 10000"),
        ("model.encoder.rope_config.rotary_dim", 4, "expected 0 or 8"),
        ("model.add_estimator", True, "expected False"),
        ("model.heads", "8", "expected a value of type int"),
        ("training.lora_layers", ["linear_values"], "expected []"),
        ("training.quant_type", "bnb_8bit", "expected ''"),
        ("inference.optional_eos", ["<end>"], "expected []"),
        ("transforms", ["normalize"], "has 'normalize': expected sentencepiece, onmt_tokenize"),
        ("transforms", ["bpe"], "has 'bpe': expected sentencepiece"),
        ("transforms_configs.sentencepiece.src_vocab_threshold", 10, "expected 0"),
        ("transforms_configs.sentencepiece.sampling", True, "an option that this importer knows"),
        ("transforms_configs.sentencepiece.src_subword_model", "/elsewhere/other.model", "cannot read"),
    ],
)
def test_an_option_that_would_change_a_result_is_refused_by_name(
    saved: Path, path: str, value: object, told: str
) -> None:
    _configure(saved, path, value)

    with pytest.raises(ImportFormatError) as raised:
        read_eole(saved)
    assert told in str(raised.value)
    assert path.rpartition(".")[2].removeprefix("src_subword_") in str(raised.value)


def test_a_network_without_options_of_its_stacks_has_those_of_the_model(saved: Path) -> None:
    before = read_eole(saved)
    for stack in ("encoder", "decoder"):
        _configure(saved, f"model.{stack}", {f"{stack}_type": "transformer", "with_cross_attn": True})
    _configure(saved, "model.architecture", "custom")

    assert read_eole(saved).config == before.config


def test_a_stack_that_says_its_positions_does_not_take_the_models_rotation(tmp_path: Path) -> None:
    save_eole(tmp_path / "halves", EOLE[_HALVES])
    before = read_eole(tmp_path / "halves").weights
    _configure(tmp_path / "halves", "model.encoder.position_encoding_type", "Rotary")

    after = read_eole(tmp_path / "halves").weights

    differing = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name.split(".", 3)[3] for name in differing} == {
        "self_attention.query.weight",
        "self_attention.query.bias",
        "self_attention.key.weight",  # of which there is no bias
    }
    assert {name.partition(".")[0] for name in differing} == {"encoder"}


def test_two_vocabularies_and_what_is_special_in_a_network(tmp_path: Path) -> None:
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
    ("alter", "told"),
    [
        (lambda it: it.pop("encoder.layer_norm.weight"), "there is no tensor encoder.layer_norm.weight"),
        (lambda it: it.pop("src_emb.pe.pe"), "there is no tensor src_emb.pe.pe"),
        (lambda it: it.update(more=torch.ones(1)), "nothing is known of tensor more"),
        (lambda it: it.update(more=torch.tensor(1.0)), "more is a single number"),
        (lambda it: it.update({"decoder.transformer_layers.2.layer_scalar": torch.ones(1)}), "nothing is known of"),
        (
            lambda it: it.update({"generator.weight": torch.ones(NUM_TOKENS, 16)}),
            "model.share_decoder_embeddings is True",
        ),
        (
            lambda it: it.update({"encoder.transformer_layers.0.self_attn.linear_keys.weight": torch.ones(16, 8)}),
            "are not of inputs of the same width",
        ),
        (
            lambda it: it.update({"encoder.transformer_layers.0.self_attn.linear_keys.weight": torch.ones(8, 16)}),
            "40 rows: expected 48",
        ),
    ],
)
def test_tensors_of_another_network_are_refused(
    saved: Path, alter: Callable[[dict[str, Any]], object], told: str
) -> None:
    tensors = _merged(saved)
    alter(tensors)
    for path in saved.glob("model.*.safetensors"):
        path.unlink()
    save_file(tensors, saved / "model.00.safetensors")

    with pytest.raises(ImportFormatError, match=told):
        read_eole(saved)


def test_a_directory_without_its_parts_is_refused(saved: Path) -> None:
    parts = sorted(saved.glob("model.*.safetensors"))
    assert len(parts) == 2
    parts[1].unlink()
    save_file(load_file(parts[0]), parts[1])
    with pytest.raises(ImportFormatError, match="is in another file as well"):
        read_eole(saved)
    for part in parts:
        part.unlink()
    with pytest.raises(ImportFormatError, match=r"has no model\.00\.safetensors"):
        read_eole(saved)
    (saved / "vocab.json").unlink()
    with pytest.raises(ImportFormatError, match=r"cannot read .*vocab\.json"):
        read_eole(saved)
    (saved / "vocab.json").write_text('{"src": {}, "tgt": []}', encoding="utf-8")
    with pytest.raises(ImportFormatError, match=r"vocab\.json: vocab holds no lists of tokens"):
        read_eole(saved)
    (saved / "config.json").write_text('{"model_type": "marian"}', encoding="utf-8")
    with pytest.raises(ImportFormatError, match="has no model: not the configuration of a model of eole"):
        read_eole(saved)


def test_a_source_begins_with_its_prefix_and_ends_without_eos(saved: Path, tmp_path: Path) -> None:
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

    for piece, told in (("⦅x⦆", "which is not in the vocabulary"), ("▁a", "which texts have as well")):
        _configure(saved, "transforms_configs.prefix", {"src_prefix": piece})
        with pytest.raises(ImportFormatError, match=f"src_prefix has '{piece}', {told}"):
            read_eole(saved)
    _configure(saved, "transforms_configs.prefix", {"tgt_prefix": "▁a"})
    with pytest.raises(ImportFormatError, match=r"tgt_prefix is '▁a': expected ''"):
        read_eole(saved)


def test_onmt_tokenize_is_sentencepiece_if_it_does_nothing_else(saved: Path) -> None:
    expected = read_eole(saved).tokenizer
    options: dict[str, Any] = {}
    for side in ("src", "tgt"):
        options |= {f"{side}_subword_type": "sentencepiece", f"{side}_subword_model": "data/spm.model"}
        options |= {f"{side}_onmttok_kwargs": {"mode": "none"}, f"{side}_subword_alpha": 0.1}
    _configure(saved, "transforms", ["onmt_tokenize"])
    _configure(saved, "transforms_configs", {"onmt_tokenize": options})
    assert read_eole(saved).tokenizer == expected

    for key, value, told in (
        ("src_subword_type", "bpe", "is 'bpe': expected sentencepiece"),
        ("tgt_subword_type", None, "is 'none': expected sentencepiece"),
        ("src_onmttok_kwargs", {"mode": "space"}, "src_onmttok_kwargs.mode is 'space': expected 'none'"),
        ("src_onmttok_kwargs", {"mode": "none", "case_markup": True}, "src_onmttok_kwargs.case_markup is True"),
        ("mapped_tokens", [["<a>", "⦅a⦆"]], "mapped_tokens is"),
        ("gpt2_pretok", True, "gpt2_pretok is True: expected False"),
    ):
        _configure(saved, "transforms_configs", {"onmt_tokenize": {**options, key: value}})
        with pytest.raises(ImportFormatError, match=told):
            read_eole(saved)


def test_models_are_those_of_the_transform_or_given_or_found(saved: Path, tmp_path: Path) -> None:
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
    assert read_eole(saved).tokenizer == expected  # with one vocabulary, both sides have the source's
    _configure(saved, "share_vocab", value=False)
    assert read_eole(saved).tokenizer.files["target.spm"] == other.read_bytes()
