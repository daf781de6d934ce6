"""Weights by the names that fairseq gave to the parts of a Transformer, kept by transformers for what came from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.model.config import ModelConfig
from dragoman_export.model.layers import sinusoidal_positions

_ATTENTION: Final = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
_LAYER: Final = {
    **{f"self_attn.{theirs}": f"self_attention.{ours}" for theirs, ours in _ATTENTION.items()},
    "self_attn_layer_norm": "self_attention_norm",
    "fc1": "feed_forward.inner",
    "fc2": "feed_forward.outer",
    "final_layer_norm": "feed_forward_norm",
}
_CROSS: Final = {
    **{f"encoder_attn.{theirs}": f"cross_attention.{ours}" for theirs, ours in _ATTENTION.items()},
    "encoder_attn_layer_norm": "cross_attention_norm",
}
"""Parts of a layer, theirs to ours; those of the decoder only."""

_SAME_POSITIONS: Final = 2e-3
"""Largest difference of stored position encodings from computed ones: they may be stored in half precision."""


class FairseqWeights:
    """The tensors of a model by names that begin with `model.`, each to be used once."""

    def __init__(self, weights: Mapping[str, Tensor], origin: Path) -> None:
        """Take tensors; `origin` is what errors name."""
        self._origin = origin
        self._left = dict(weights)

    def translated(self, config: ModelConfig) -> dict[str, Tensor]:
        """Return the weights by our names; ImportFormatError names a tensor that is missing, or left over."""
        weights = self._tables(config)
        for stack, num_layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
            parts = {**_LAYER, **(_CROSS if stack == "decoder" else {})}
            paths = {
                f"layers.{layer}.{theirs}": f"layers.{layer}.{ours}"
                for layer in range(num_layers)
                for theirs, ours in parts.items()
            }
            if config.has_final_norm:
                paths["layer_norm"] = "norm"
            if config.embedding_norm:
                paths["layernorm_embedding"] = "embedding_norm"
            for theirs, ours in paths.items():
                for part in ("weight", "bias"):
                    weights[f"{stack}.{ours}.{part}"] = self._take(f"model.{stack}.{theirs}.{part}")
            if config.positions == "learned":
                table = self._take(f"model.{stack}.embed_positions.weight")
                rows = config.position_offset + (config.max_positions or 0)
                weights[f"{stack}.positions.weight"] = table[:rows].contiguous()
            else:
                self._check_positions(stack, config)
        if self._left:
            raise ImportFormatError(f"{self._origin}: nothing is known of tensor {min(self._left)}")
        return weights

    def _tables(self, config: ModelConfig) -> dict[str, Tensor]:
        """Return embeddings and projection, of which those that are one may be stored under any of their names."""
        shared, projection = "model.shared.weight", "lm_head.weight"
        source, target = (f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
        if config.tied_embeddings == "all":
            names = {"embedding.weight": [shared, target, source, projection]}
        elif config.tied_embeddings == "decoder":
            names = {"encoder.embedding.weight": [source], "embedding.weight": [target, projection]}
        else:
            both = {"encoder.embedding.weight": [source, shared], "embedding.weight": [target, shared]}
            names = {**both, "projection.weight": [projection]}
        # Where nothing is tied, that of a stack is used if it is stored, and the shared one means nothing beside it.
        is_tied = config.tied_embeddings != "none"
        tables = {ours: self._one_of(theirs, is_tied=is_tied) for ours, theirs in names.items()}
        for name in {name for theirs in names.values() for name in theirs}:
            self._left.pop(name, None)
        if config.projection_bias:
            bias = self._left.pop("final_logits_bias", torch.zeros(config.vocabulary_size))
            tables["projection.bias"] = bias.flatten()
        return tables

    def _one_of(self, names: list[str], *, is_tied: bool) -> Tensor:
        """Return the first of these tensors that is stored; tied ones must be the same."""
        found = {name: self._left[name] for name in names if name in self._left}
        if not found:
            raise ImportFormatError(f"{self._origin}: there is no tensor {names[0]}")
        first, *others = found
        for other in others:
            if is_tied and not torch.equal(found[first], found[other]):
                raise ImportFormatError(f"{self._origin}: {other} is not {first}, though config.json ties them")
        return found[first]

    def _take(self, name: str) -> Tensor:
        if name not in self._left:
            raise ImportFormatError(f"{self._origin}: there is no tensor {name}")
        return self._left.pop(name)

    def _check_positions(self, stack: str, config: ModelConfig) -> None:
        """Leave out stored sinusoids after a look at them; ImportFormatError if they are none."""
        for name in (f"model.{stack}.embed_positions.weight", f"model.{stack}.embed_positions.weights"):
            stored = self._left.pop(name, None)
            if stored is None:
                continue
            offset, layout = config.position_offset, config.sinusoid_layout
            used = stored[offset:]
            expected = sinusoidal_positions(len(used), config.d_model, offset=offset, layout=layout)
            if used.shape != expected.shape or not torch.allclose(used, expected, rtol=0, atol=_SAME_POSITIONS):
                raise ImportFormatError(f"{self._origin}: {name} holds other positions than these models have")
