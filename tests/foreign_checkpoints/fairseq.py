"""Checkpoints of fairseq."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
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
)
from tests.foreign_models import pieces, trained
from tests.tiny_bundle import SENTENCES

# options of a model by its special features, and the standard deviation of its embeddings
FAIRSEQ: Mapping[str, Mapping[str, Any]] = {
    "post-norm, shared": {"share_all_embeddings": True},
    "pre-norm, two dictionaries": {
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "share_decoder_input_output_embed": True,
        "no_scale_embedding": True,
        "activation_fn": "gelu",
    },
    "learned positions, nothing shared": {
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "layernorm_embedding": True,
        "max_target_positions": POSITIONS - 8,
    },
    "no positions, small states": {
        "no_token_positional_embeddings": True,
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "no_scale_embedding": True,
        "tables_std": 0.01,
    },
}


def save_fairseq(directory: Path, options: Mapping[str, Any], *, seed: int = 24) -> None:
    """Write `checkpoint_best.pt`, two dictionaries and a SentencePiece model like fairseq."""
    directory.mkdir(parents=True)
    is_shared = options.get("share_all_embeddings", False)
    sizes = {"de": NUM_TOKENS, "en": NUM_TOKENS if is_shared else NUM_SOURCE_TOKENS}
    model = trained(SENTENCES, size=70)
    (directory / "spm.model").write_bytes(model)
    for language, size in sizes.items():
        lines = [f"{piece} 1\n" for piece in filled(pieces(model)[3:], size - 4)]
        (directory / f"dict.{language}.txt").write_text("".join(lines), encoding="utf-8")
    state = _fairseq_weights(options, sizes["en"], sizes["de"], seed)
    model_options = argparse.Namespace(**{**_FAIRSEQ_OPTIONS, **options})
    cfg = {"_name": None, "model": model_options, "task": {"_name": "translation", **_LANGUAGES}}
    stored = {"args": None, "cfg": cfg, "model": state, "extra_state": {"epoch": 1}, "last_optimizer_state": {}}
    torch.save(stored, directory / "checkpoint_best.pt")


_LANGUAGES = {"source_lang": "en", "target_lang": "de"}
_FAIRSEQ_OPTIONS: Mapping[str, Any] = {
    "arch": "transformer",
    "task": "translation",
    **dict.fromkeys(("encoder_embed_dim", "decoder_embed_dim", "decoder_output_dim"), D),
    **dict.fromkeys(("encoder_ffn_embed_dim", "decoder_ffn_embed_dim"), FFN),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers_to_keep", "decoder_layers_to_keep"), None),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), POSITIONS),
    "quant_noise_pq": 0,
    "lr": [0.0005],
}


def _fairseq_weights(options: Mapping[str, Any], num_source: int, num_target: int, seed: int) -> dict[str, Tensor]:
    draw = Draw(seed)
    is_pre = options.get("encoder_normalize_before", False)
    state: dict[str, Tensor] = {}
    for stack, size in (("encoder", num_source), ("decoder", num_target)):
        state[f"{stack}.version"] = torch.tensor([3.0])
        state[f"{stack}.embed_tokens.weight"] = draw.matrix(size, D, std=options.get("tables_std", 0.4))
        if options.get("encoder_learned_pos"):
            side = "source" if stack == "encoder" else "target"
            positions = {**_FAIRSEQ_OPTIONS, **options}[f"max_{side}_positions"]
            state[f"{stack}.embed_positions.weight"] = draw.matrix(positions + 2, D)
        elif not options.get("no_token_positional_embeddings"):
            state[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
        norms = ["layer_norm"] if is_pre else []
        norms += ["layernorm_embedding"] if "layernorm_embedding" in options else []
        for layer in range(LAYERS):
            path = f"layers.{layer}"
            norms += [f"{path}.self_attn_layer_norm", f"{path}.final_layer_norm"]
            attentions = ["self_attn"]
            if stack == "decoder":
                norms.append(f"{path}.encoder_attn_layer_norm")
                attentions.append("encoder_attn")
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    state |= draw.linear(f"{stack}.{path}.{attention}.{part}", D, D)
            state |= draw.linear(f"{stack}.{path}.fc1", FFN, D) | draw.linear(f"{stack}.{path}.fc2", D, FFN)
        for norm in norms:
            state |= draw.norm(f"{stack}.{norm}")
    table = state["decoder.embed_tokens.weight"]
    if options.get("share_all_embeddings"):
        state["encoder.embed_tokens.weight"] = table
    is_tied = options.get("share_all_embeddings") or options.get("share_decoder_input_output_embed")
    projection = table if is_tied else draw.matrix(num_target, D)
    state["decoder.output_projection.weight"] = projection
    last = "decoder.layer_norm" if is_pre else f"decoder.layers.{LAYERS - 1}.final_layer_norm"
    draw.end_by_itself(state, last, projection[2])
    return state
