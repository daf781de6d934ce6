"""Models of eole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.foreign_checkpoints.building import (
    FFN,
    HEADS,
    LAYERS,
    NUM_SOURCE_TOKENS,
    NUM_TOKENS,
    POSITIONS,
    D,
    Draw,
    filled,
    sinusoids,
)
from tests.foreign_models import pieces, trained
from tests.tiny_bundle import SENTENCES

_BIASES = {"add_qkvbias": True, "add_final_linear_bias": True, "add_ffnbias": True}
_ROTARY = {"position_encoding_type": "Rotary"}
# options of a model by its special features
EOLE: Mapping[str, Mapping[str, Any]] = {
    "sinusoids, all shared": {"share_embeddings": True, "share_decoder_embeddings": True, **_BIASES},
    "rotary positions in pairs, grouped heads, gate": {
        "embeddings": _ROTARY,
        "rope_config": {"rotary_interleave": True},
        "heads": 4,
        "heads_kv": 2,
        "head_dim": 8,
        "layer_norm": "rms",
        "norm_eps": 1e-2,
        "mlp_activation_fn": "gated-silu",
        "share_decoder_embeddings": True,
    },
    "rotary positions in halves": {
        "embeddings": {**_ROTARY, "normalize": True},
        "rope_config": {"rotary_interleave": False},
        "mlp_activation_fn": "silu",
        **_BIASES,
        "add_key_bias": False,
    },
    "learned positions from 2, scaled": {
        "embeddings": {
            "position_encoding_type": "Learned",
            "n_positions": POSITIONS,
            "position_shift": 2,
            "normalize": True,
        },
        "mlp_activation_fn": "gelu",
    },
    "all sines before all cosines": {"embeddings": {"position_encoding_type": "SinusoidalConcat"}, **_BIASES},
    "no positions": {"embeddings": {"position_encoding_type": None}, "share_embeddings": True},
}


def save_eole(directory: Path, options: Mapping[str, Any], *, seed: int = 7) -> None:
    """Write a model as eole does, with weights in two files; all files except the configuration are links."""
    step = directory / "step_10"
    step.mkdir(parents=True)
    sizes = {"src": NUM_TOKENS if options.get("share_embeddings") else NUM_SOURCE_TOKENS, "tgt": NUM_TOKENS}
    model = trained(SENTENCES, size=70)
    (step / "spm.model").write_bytes(model)
    words = ["<unk>", "<blank>", "<s>", "</s>", *pieces(model)[3:]]
    special = {"unk_token": "<unk>", "pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>"}
    lists = {side: filled(words, size) for side, size in sizes.items()}
    vocab = {**lists, "decoder_start_token": "<s>", "specials": special}
    (step / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    weights = _weights(options, sizes["src"], sizes["tgt"], seed)
    half = len(weights) // 2
    for number, names in enumerate((list(weights)[:half], list(weights)[half:])):
        save_file({name: weights[name].contiguous() for name in names}, step / f"model.{number:02}.safetensors")
    for path in sorted(step.iterdir()):
        (directory / path.name).symlink_to(path.relative_to(directory))
    (directory / "config.json").write_text(json.dumps(eole_config(options)), encoding="utf-8")


def eole_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config.json` with these options of the model."""
    sizes = {"layers": LAYERS, "heads": HEADS, "hidden_size": D, "transformer_ff": FFN}
    embeddings = {"word_vec_size": D, **options.get("embeddings", {})}
    model = {"architecture": "transformer", **sizes, **options, "embeddings": embeddings}
    files = {f"{side}_subword_model": "${MODEL_PATH}/spm.model" for side in ("src", "tgt")}
    return {
        "seed": 1234,
        "share_vocab": bool(options.get("share_embeddings")),
        "src_vocab": "data/src.vocab",
        "tgt_vocab": "data/tgt.vocab",
        "transforms": ["sentencepiece", "filtertoolong"],
        "transforms_configs": {
            "sentencepiece": {**files, "src_subword_nbest": 1},
            "filtertoolong": {"src_seq_length": 96},
        },
        "training": {"dropout": [0.1], "batch_size": 8, "compute_dtype": "torch.float32"},
        "model": {
            **model,
            "encoder": {"encoder_type": "transformer", "layers": LAYERS, "src_word_vec_size": D, "n_positions": None},
            "decoder": {"decoder_type": "transformer", "layers": LAYERS, "tgt_word_vec_size": D},
        },
        "data": {"corpus_1": {"path_src": "train.en", "path_tgt": "train.de", "transforms": ["sentencepiece"]}},
    }


def _weights(options: Mapping[str, Any], num_source: int, num_target: int, seed: int) -> dict[str, Tensor]:
    draw = Draw(seed)
    kind = options.get("embeddings", {}).get("position_encoding_type", "SinusoidalInterleaved")
    state: dict[str, Tensor] = {}
    for stack, side, size in (("encoder", "src", num_source), ("decoder", "tgt", num_target)):
        state[f"{side}_emb.embeddings.weight"] = draw.matrix(size, D)
        if kind == "Learned":
            state[f"{side}_emb.pe.weight"] = draw.matrix(POSITIONS, D)
        elif str(kind).startswith("Sinusoidal"):
            state[f"{side}_emb.pe.pe"] = sinusoids(is_in_turn=kind == "SinusoidalInterleaved")
        for layer in range(LAYERS):
            state |= _layer(draw, options, f"{stack}.transformer_layers.{layer}")
        state |= draw.norm(f"{stack}.layer_norm", has_bias=options.get("layer_norm") != "rms")
    table = state["src_emb.embeddings.weight" if options.get("share_embeddings") else "tgt_emb.embeddings.weight"]
    projection = table if options.get("share_decoder_embeddings") else draw.matrix(num_target, D)
    state["decoder.layer_norm.weight"] *= torch.sign(draw.matrix(D))  # as in `end_by_itself`
    state["generator.weight"], state["generator.bias"] = projection, draw.projection_bias(num_target)
    copies = {"share_embeddings": "tgt_emb.embeddings.weight", "share_decoder_embeddings": "generator.weight"}
    omitted = [name for option, name in copies.items() if options.get(option)]  # like eole
    return {name: tensor for name, tensor in state.items() if name not in omitted}


def _layer(draw: Draw, options: Mapping[str, Any], path: str) -> dict[str, Tensor]:
    heads = options.get("heads", HEADS)
    head_dim = options.get("head_dim", D // heads)
    kv_size, size = options.get("heads_kv", heads) * head_dim, heads * head_dim
    qkv_bias, ffn_bias = options.get("add_qkvbias", False), options.get("add_ffnbias", False)
    products: dict[str, tuple[int, int, bool]] = {"mlp.gate_up_proj": (FFN, D, ffn_bias)}
    if options.get("mlp_activation_fn") == "gated-silu":
        products["mlp.up_proj"] = (FFN, D, ffn_bias)
    products["mlp.down_proj"] = (D, FFN, ffn_bias)
    norms = ["input_layernorm", "post_attention_layernorm"]
    state = {}
    if path.startswith("decoder"):
        norms.append("precontext_layernorm")
        state[f"{path}.layer_scalar"] = torch.ones(1)
    for attention in ("self_attn", "context_attn")[: len(norms) - 1]:
        products[f"{attention}.linear_query"] = (size, D, qkv_bias)
        products[f"{attention}.linear_keys"] = (kv_size, D, options.get("add_key_bias", qkv_bias))
        products[f"{attention}.linear_values"] = (kv_size, D, qkv_bias)
        products[f"{attention}.final_linear"] = (D, size, options.get("add_final_linear_bias", False))
    for name, (outputs, inputs, has_bias) in products.items():
        state |= draw.linear(f"{path}.{name}", outputs, inputs, has_bias=has_bias)
    for name in norms:
        state |= draw.norm(f"{path}.{name}", has_bias=options.get("layer_norm") != "rms")
    return state
