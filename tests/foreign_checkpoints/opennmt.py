"""Checkpoints of OpenNMT-py."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.foreign_checkpoints.building import FFN, LAYERS, NUM_SOURCE_TOKENS, NUM_TOKENS, D, Draw, filled, sinusoids
from tests.foreign_models import pieces, trained
from tests.tiny_bundle import SENTENCES

_ROTARY = {"position_encoding": False, "max_relative_positions": -1}
# options of a model by its special features
OPENNMT: Mapping[str, Mapping[str, Any]] = {
    "sinusoids, all shared": {"share_embeddings": True, "share_decoder_embeddings": True, "add_qkvbias": True},
    "all sines before all cosines": {"position_encoding_type": "SinusoidalConcat", "norm_eps": 1e-2},
    "rotary positions in halves": {**_ROTARY, "rotary_interleave": False, "rotary_dim": 4, "add_qkvbias": True},
    "rotary positions in pairs, grouped heads, gate": {
        **_ROTARY,
        "rotary_interleave": True,
        "num_kv": 2,
        "layer_norm": "rms",
        "pos_ffn_activation_fn": "silu",
        "share_decoder_embeddings": True,
    },
}

_OPTIONS: Mapping[str, Any] = {
    "model_task": "seq2seq",
    "model_type": "text",
    "encoder_type": "transformer",
    "decoder_type": "transformer",
    "enc_layers": LAYERS,
    "dec_layers": LAYERS,
    "heads": 4,
    "transformer_ff": FFN,
    **dict.fromkeys(("hidden_size", "enc_hid_size", "dec_hid_size", "src_word_vec_size", "tgt_word_vec_size"), D),
    "position_encoding": True,
    "position_encoding_type": "SinusoidalInterleaved",
    "max_relative_positions": 0,
    "pos_ffn_activation_fn": "relu",
    "norm_eps": 1e-5,  # not converted by CTranslate2
    "dropout": [0.1],
    "attention_dropout": [0.1],
    **dict.fromkeys(("freeze_word_vecs_enc", "freeze_word_vecs_dec"), False),
    "optim": "adam",
    "train_steps": 100000,
}
# norms before the attentions of each stack
_NORMS: Mapping[str, Mapping[str, str]] = {
    "encoder": {"self_attn": "layer_norm"},
    "decoder": {"self_attn": "layer_norm_1", "context_attn": "layer_norm_2"},
}


def save_opennmt(directory: Path, options: Mapping[str, Any], *, seed: int = 9) -> None:
    """Write `model.pt` as OpenNMT-py does, and a SentencePiece model."""
    directory.mkdir(parents=True)
    (directory / "sentencepiece.model").write_bytes(trained(SENTENCES, size=70))
    torch.save(opennmt_checkpoint(options, seed=seed), directory / "model.pt")


def opennmt_checkpoint(options: Mapping[str, Any], *, seed: int = 9) -> dict[str, Any]:
    """Return a random checkpoint of OpenNMT-py."""
    known = ["<unk>", "<blank>", "<s>", "</s>", *pieces(trained(SENTENCES, size=70))[3:]]
    source = filled(known, NUM_TOKENS if options.get("share_embeddings") else NUM_SOURCE_TOKENS)
    target = filled(known, NUM_TOKENS)
    stored = Namespace(**{**_OPTIONS, **options})
    draw, has_norm_bias = Draw(seed), options.get("layer_norm") != "rms"
    model: dict[str, Tensor] = {}
    is_in_turn = stored.position_encoding_type == "SinusoidalInterleaved"
    for stack, layers, words in (("encoder", "transformer", source), ("decoder", "transformer_layers", target)):
        embeddings = f"{stack}.embeddings.make_embedding"
        model[f"{embeddings}.emb_luts.0.weight"] = draw.matrix(len(words), D)
        if stored.position_encoding:
            model[f"{embeddings}.pe.pe"] = sinusoids(is_in_turn=is_in_turn)
        for layer in range(LAYERS):
            model |= _layer(draw, stored, stack, f"{stack}.{layers}.{layer}")
        model |= draw.norm(f"{stack}.layer_norm", has_bias=has_norm_bias)
    tables = [f"{stack}.embeddings.make_embedding.emb_luts.0.weight" for stack in ("encoder", "decoder")]
    if options.get("share_embeddings"):
        model[tables[1]] = model[tables[0]]
    model["decoder.layer_norm.weight"] *= torch.sign(draw.matrix(D))  # as in `end_by_itself`
    projection = model[tables[1]] if options.get("share_decoder_embeddings") else draw.matrix(len(target), D)
    generator = {"weight": projection, "bias": draw.projection_bias(len(target))}
    vocab = {"src": source, "tgt": target, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    return {"model": model, "generator": generator, "vocab": vocab, "opt": stored}


def _layer(draw: Draw, options: Namespace, stack: str, path: str) -> dict[str, Tensor]:
    kv_size = D // options.heads * (getattr(options, "num_kv", 0) or options.heads)
    has_norm_bias = getattr(options, "layer_norm", "") != "rms"
    state: dict[str, Tensor] = {}
    for attention, norm in _NORMS[stack].items():
        state |= draw.norm(f"{path}.{norm}", has_bias=has_norm_bias)
        for part in ("linear_query", "linear_keys", "linear_values", "final_linear"):
            rows = kv_size if part in ("linear_keys", "linear_values") else D
            has_bias = getattr(options, "add_qkvbias", False)
            state |= draw.linear(f"{path}.{attention}.{part}", rows, D, has_bias=has_bias)
    state |= draw.norm(f"{path}.feed_forward.layer_norm", has_bias=has_norm_bias)
    has_gate = options.pos_ffn_activation_fn == "silu"
    for part, rows, columns in (("w_1", FFN, D), ("w_2", D, FFN), *((("w_3", FFN, D),) if has_gate else ())):
        state |= draw.linear(f"{path}.feed_forward.{part}", rows, columns)
    return state
