"""Every importer rejects models that it cannot represent, and names the option, tensor or entry."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers import eole, fairseq, opennmt
from dragoman_export.importers.ctranslate2.directory import read_ctranslate2
from dragoman_export.importers.eole import read_eole
from dragoman_export.importers.fairseq import read_fairseq
from dragoman_export.importers.huggingface import read_huggingface
from dragoman_export.importers.opennmt import read_opennmt
from tests.foreign_checkpoints.building import NUM_TOKENS
from tests.unit.export.importers.rewriting import rewrite, set_options

_READERS: Mapping[str, Callable[[Path], object]] = {
    **dict.fromkeys(("marian", "bart", "nllb"), read_huggingface),
    "ctranslate2": read_ctranslate2,
    "eole": read_eole,
    **dict.fromkeys(("fairseq", "fairseq pre-norm"), read_fairseq),
    **dict.fromkeys(("opennmt", "opennmt rotary"), lambda directory: read_opennmt(directory / "model.pt")),
}

_UNSUPPORTED: Mapping[tuple[str, str], Sequence[tuple[Mapping[str, object], str]]] = {
    ("marian", "config.json"): [
        ({"rope_theta": 10000.0}, "config.json: rope_theta is 10000.0"),
        ({"activation_function": "gelu_new"}, "activation_function is 'gelu_new': expected relu, gelu, swish"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads is 4: expected 2"),
        ({"decoder_ffn_dim": 32}, "decoder_ffn_dim is 32: expected 24"),
        ({"normalize_before": True}, "normalize_before is True: expected False"),
        ({"normalize_embedding": True}, "normalize_embedding is True"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm is True"),
        ({"static_position_embeddings": False}, "static_position_embeddings is False: expected True"),
        ({"layer_norm_eps": 1e-6}, "layer_norm_eps is 1e-06: expected 1e-05"),
        ({"bad_words_ids": [[3]]}, "bad_words_ids is [[3]]: expected [[8"),
        ({"forced_bos_token_id": 5}, "forced_bos_token_id is 5"),
        ({"force_bos_token_to_be_generated": True}, "force_bos_token_to_be_generated is True: expected False"),
        ({"suppress_tokens": [5]}, "suppress_tokens is [5]"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size is 3"),
        ({"min_length": 56}, "min_length is 56: expected 0"),
        ({"d_model": "16"}, "d_model is '16': expected a value of type int"),
        ({"encoder_layers": True}, "encoder_layers is True: expected a value of type int"),
        ({"eos_token_id": 2}, "eos_token_id is 2"),
        ({"decoder_vocab_size": 7}, "decoder_vocab_size is 7"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is False"),
        ({"vocab_size": 1 << 40, "decoder_vocab_size": None}, "vocabulary_size is 1099511627776"),
        ({"model_type": "t5"}, "type t5"),
        ({"model_type": "gpt2"}, "model_type is 'gpt2': expected marian, m2m_100, mbart"),
    ],
    ("marian", "tokenizer_config.json"): [
        ({"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs is {'enable_sampling': True}"),
        ({"tokenizer_class": "T5Tokenizer"}, "tokenizer_class is 'T5Tokenizer': expected MarianTokenizer"),
        ({"do_lower_case": True}, "tokenizer_config.json: do_lower_case is True"),
        ({"unk_token": "[UNK]"}, "unk_token: expected '<unk>'"),
    ],
    ("marian", "generation_config.json"): [
        ({"watermarking_config": {"seed": 1}}, "generation_config.json: watermarking_config is {'seed': 1}"),
    ],
    ("marian", "vocab.json"): [({"extra": 83}, "the id of 'extra' is 83: expected 0 to 82")],
    ("nllb", "tokenizer_config.json"): [({"legacy_behaviour": True}, "legacy_behaviour is True: expected False")],
    ("bart", "generation_config.json"): [({"forced_bos_token_id": 7}, "forced_bos_token_id is 7: expected 0")],
    ("bart", "tokenizer.json"): [
        ({"normalizer": {"type": "NFC"}}, "normalizer or pre_tokenizer"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "normalizer or pre_tokenizer"),
        ({"model": None}, "model or pre_tokenizer"),
        ({"pre_tokenizer.add_prefix_space": True}, "normalizer or pre_tokenizer"),
        ({"model.type": "WordPiece"}, "type is 'WordPiece': expected 'BPE'"),
        ({"model.dropout": 0.1}, "dropout is 0.1: expected none"),
        ({"model.end_of_word_suffix": "</w>"}, "end_of_word_suffix is '</w>'"),
        ({"model.ignore_merges": True}, "ignore_merges is True: expected False"),
    ],
    ("ctranslate2", "config.json"): [
        ({"quantization_type": 1}, "config.json: quantization_type is 1"),
        ({"decoder_start_token": None}, "decoder_start_token is None"),
        ({"add_source_eos": "yes"}, "add_source_eos is 'yes': expected a value of type bool"),
        ({"layer_norm_epsilon": "small"}, "layer_norm_epsilon is 'small'"),
        ({"eos_token": "</S>"}, "the vocabulary has no </S>"),
        ({"add_source_bos": True, "bos_token": "<S>"}, "the vocabulary has no <S>"),
    ],
    ("eole", "config.json"): [
        ({"model.architecture": "transformer_lm"}, "model.architecture 'transformer_lm'"),
        ({"model.architecture": "rnn"}, "model.architecture 'rnn'"),
        ({"model.architecture": ["x"]}, "model.architecture ['x']"),
        ({"model.encoder": None}, "encoder is None"),
        ({"model.encoder.encoder_type": "brnn"}, "encoder_type is 'brnn': expected 'transformer'"),
        ({"model.decoder.layer_types": ["full_attention", "linear_attention"]}, "is 'linear_attention': expected"),
        ({"model.decoder.heads": 4}, "heads of the decoder is 4: expected 2"),
        ({"model.decoder.norm_eps": 1e-6}, "norm_eps of the decoder is 1e-06: expected 1e-05"),
        (
            {"model.embeddings.position_encoding_type": "Alibi"},
            "position_encoding_type is 'Alibi': expected SinusoidalInterleaved, SinusoidalConcat",
        ),
        ({"model.position_encoding_typo": "Rotary"}, "position_encoding_typo is 'Rotary': expected a supported option"),
        (
            {"model.decoder.position_encoding_type": "Rotary"},
            "position_encoding_type is 'Rotary': expected SinusoidalInterleaved",
        ),
        ({"model.embeddings.normalize": True}, "normalize is True: expected False"),
        ({"model.mlp_activation_fn": "gated-gelu"}, "is 'gated-gelu': expected relu, gelu, silu, gated-silu"),
        ({"model.attn_scaling": 4.0}, "attn_scaling is 4.0: expected 8"),
        ({"model.encoder.rope_config.rotary_dim": 4}, "rotary_dim is 4: expected 0 or 8"),
        ({"model.heads": "8"}, "heads is '8': expected a value of type int"),
        ({"transforms": ["normalize"]}, "transforms is 'normalize': expected sentencepiece, onmt_tokenize"),
        ({"transforms": ["bpe"]}, "transforms is 'bpe': expected sentencepiece"),
        ({"transforms_configs.sentencepiece.src_vocab_threshold": 10}, "src_vocab_threshold is 10: expected 0"),
        ({"transforms_configs.sentencepiece.sampling": True}, "sampling is True: expected a supported option"),
        ({"transforms_configs.sentencepiece.src_subword_model": "/elsewhere/other.model"}, "cannot read"),
    ],
    ("fairseq", "checkpoint_best.pt"): [
        ({"arch": "transformer_align"}, "arch is 'transformer_align': expected 'transformer' or"),
        ({"arch": "fconv"}, "arch is 'fconv'"),
        ({"activation_fn": "gelu_accurate"}, "activation_fn is 'gelu_accurate': expected relu, gelu"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads is 4: expected 2"),
        ({"decoder_ffn_embed_dim": 32}, "decoder_ffn_embed_dim is 32: expected 24"),
        ({"decoder_normalize_before": True}, "decoder_normalize_before is True: expected False"),
        ({"decoder_learned_pos": True}, "decoder_learned_pos is True: expected False"),
        ({"encoder_rotary": True}, "encoder_rotary is True"),
        ({"encoder_layers": "2"}, "encoder_layers is '2': expected a value of type int"),
        ({"encoder_layers": 3}, "missing tensor model.encoder.layers.2"),
        ({"encoder_layers": 1}, "unknown tensor model.encoder.layers.1"),
        ({"encoder_normalize_before": True, "decoder_normalize_before": True}, "encoder.layer_norm"),
        ({"encoder_embed_dim": 1 << 40, "decoder_embed_dim": 1 << 40}, "d_model is 1099511627776"),
    ],
    ("opennmt", "model.pt"): [
        ({"max_relative_positions": 20}, "max_relative_positions is 20: expected 0"),
        ({"position_encoding": False}, "position_encoding is False"),
        ({"pos_ffn_activation_fn": "gated-gelu"}, "pos_ffn_activation_fn is 'gated-gelu': expected relu, gelu, silu"),
        ({"enc_layers": 3}, "missing tensor encoder.transformer.2"),
        ({"dec_layers": 1}, "unknown tensor decoder.transformer_layers.1"),
    ],
    ("opennmt rotary", "model.pt"): [
        ({"position_encoding": True}, "position_encoding is True: expected False"),
        ({"rotary_interleave": None}, "rotary_interleave is None: expected a value of type bool"),
        ({"rotary_theta": 500}, "rotary_theta is 500: expected 10000"),
        ({"rotary_dim": 2}, "rotary_dim is 2"),
    ],
}


@pytest.mark.parametrize(
    ("name", "file", "options", "message"),
    [(*place, *row) for place, rows in _UNSUPPORTED.items() for row in rows],
)
def test_unsupported_option_is_rejected(
    saved: Callable[[str], Path], name: str, file: str, options: Mapping[str, object], message: str
) -> None:
    directory = saved(name)
    set_options(directory / file, options)

    with pytest.raises(ImportFormatError, match=re.escape(message)):
        _READERS[name](directory)


_EOLE_REQUIRED = [f"{part}.{key}" for part in ("model", "model.decoder") for key in eole._REQUIRED]


@pytest.mark.parametrize(
    ("name", "file", "options"),
    [
        ("eole", "config.json", [*_EOLE_REQUIRED, *eole._REQUIRED_ELSEWHERE]),
        ("fairseq", "checkpoint_best.pt", fairseq._NEUTRAL),
        ("opennmt", "model.pt", opennmt._REQUIRED),
    ],
)
def test_every_option_with_a_single_supported_value_is_checked(
    saved: Callable[[str], Path], name: str, file: str, options: Iterable[str]
) -> None:
    directory = saved(name)
    content = (directory / file).read_bytes()
    for option in options:
        (directory / file).write_bytes(content)
        set_options(directory / file, {option: "other"})

        with pytest.raises(ImportFormatError, match=rf"{re.escape(option)} is 'other'"):
            _READERS[name](directory)


_KEYS = "encoder.transformer_layers.0.self_attn.linear_keys.weight"
_SCALAR = "decoder.transformer_layers.2.layer_scalar"
_POSITIONS = "model.encoder.embed_positions.weight"


@pytest.mark.parametrize(
    ("name", "alter", "message"),
    [
        ("marian", lambda it: it.pop("model.encoder.layers.1.fc1.bias"), "layers.1.fc1.bias"),
        ("marian", lambda it: it.update(adapter=torch.ones(2)), "unknown tensor adapter"),
        ("marian", lambda it: it.update({"lm_head.weight": torch.ones(83, 16)}), "lm_head.weight differs"),
        ("marian", lambda it: it.update({_POSITIONS: torch.ones(64, 16)}), "embed_positions.weight"),
        ("marian", lambda it: it.update(final_logits_bias=torch.zeros(83).long()), "is torch.int64: expected a tensor"),
        ("eole", lambda it: it.pop("encoder.layer_norm.weight"), "missing tensor encoder.layer_norm.weight"),
        ("eole", lambda it: it.pop("src_emb.pe.pe"), "missing tensor src_emb.pe.pe"),
        ("eole", lambda it: it.update(more=torch.ones(1)), "unknown tensor more"),
        ("eole", lambda it: it.update(more=torch.tensor(1.0)), "more is a scalar"),
        ("eole", lambda it: it.update({_SCALAR: torch.ones(1)}), "unknown tensor"),
        ("eole", lambda it: it.update({"generator.weight": torch.ones(NUM_TOKENS, 16)}), "share_decoder_embeddings is"),
        ("eole", lambda it: it.update({_KEYS: torch.ones(16, 8)}), "linear_keys.*width"),
        ("eole", lambda it: it.update({_KEYS: torch.ones(8, 16)}), "40 rows: expected 48"),
        ("fairseq", lambda it: it["cfg"]["task"].update(_name="multi_simple_epoch"), "_name is 'multi_simple_epoch'"),
        ("fairseq", lambda it: it["cfg"]["task"].update(source_lang=None), "source_lang is None: expected a value"),
        ("fairseq", lambda it: it["cfg"]["task"].update(target_lang="../de"), "'../de'"),
        ("fairseq", lambda it: it.pop("cfg"), "neither args nor cfg"),
        ("fairseq", lambda it: it.pop("model"), "NoneType: expected tensors by name"),
        ("fairseq", lambda it: it["model"].update(step=torch.tensor(1)), "step is torch.int64: expected a tensor of"),
        (
            "fairseq",
            lambda it: it["model"].update({"decoder.out": torch.ones(2, 2)}),
            "unknown tensor model.decoder",
        ),
        ("fairseq pre-norm", lambda it: it["model"].pop("decoder.version"), r"decoder\.version"),
        ("opennmt", lambda it: it.pop("opt"), r"no options \(opt\): not a checkpoint of OpenNMT-py"),
        ("opennmt", lambda it: it.update(vocab=[1]), "vocab has no lists"),
        ("opennmt", lambda it: it["vocab"].update(src_feats={"a": []}), "vocab has src_feats"),
        ("opennmt", lambda it: it["vocab"]["src"].remove("</s>"), "encoder/embeddings_0/weight has the shape"),
        ("opennmt", lambda it: it.update(vocab=Path("x")), r"pathlib\.\w*Path"),
    ],
)
def test_unexpected_content_is_rejected(
    saved: Callable[[str], Path], name: str, alter: Callable[[dict[str, Any]], object], message: str
) -> None:
    directory = saved(name)
    files = {"fairseq": "checkpoint_best.pt", "opennmt": "model.pt"}
    rewrite(directory / files.get(name.split(maxsplit=1)[0], ""), alter)

    with pytest.raises(ImportFormatError, match=message):
        _READERS[name](directory)
