"""Converts weights with the names of fairseq, which Hugging Face transformers also uses for its conversions."""

from typing import Final

import torch
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.files import Tensors
from dragoman_export.model.config import ModelConfig
from dragoman_export.model.positions import sinusoidal_positions

_ATTENTION: Final = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
_LAYER: Final = {
    **{f"self_attn.{foreign}": f"self_attention.{own}" for foreign, own in _ATTENTION.items()},
    "self_attn_layer_norm": "self_attention_norm",
    "fc1": "feed_forward.inner",
    "fc2": "feed_forward.outer",
    "final_layer_norm": "feed_forward_norm",
}
# further parts of decoder layers
_CROSS: Final = {
    **{f"encoder_attn.{foreign}": f"cross_attention.{own}" for foreign, own in _ATTENTION.items()},
    "encoder_attn_layer_norm": "cross_attention_norm",
}
# tolerance between stored and computed position encodings, which may be stored in half precision
_SAME_POSITIONS: Final = 2e-3


class FairseqWeights(Tensors):
    """Tensors by names that start with `model.`; each must be used once."""

    def translated(self, config: ModelConfig) -> dict[str, Tensor]:
        """Return the weights by the names of `Transformer`; ImportFormatError on missing or unknown tensors."""
        weights = self._tables(config)
        for stack, num_layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
            parts = {**_LAYER, **(_CROSS if stack == "decoder" else {})}
            paths = {
                f"layers.{layer}.{foreign}": f"layers.{layer}.{own}"
                for layer in range(num_layers)
                for foreign, own in parts.items()
            }
            if config.has_final_norm:
                paths["layer_norm"] = "norm"
            if config.embedding_norm:
                paths["layernorm_embedding"] = "embedding_norm"
            for foreign, own in paths.items():
                for part in ("weight", "bias"):
                    weights[f"{stack}.{own}.{part}"] = self.take(f"model.{stack}.{foreign}.{part}")
            if config.positions == "learned":
                table = self.take(f"model.{stack}.embed_positions.weight")
                rows = config.position_offset + (config.max_positions or 0)
                weights[f"{stack}.positions.weight"] = table[:rows].contiguous()
            else:
                self._check_positions(stack, config)
        self.finish()
        return weights

    def _tables(self, config: ModelConfig) -> dict[str, Tensor]:
        # Tied tables may be stored under any of their names.
        shared, projection = "model.shared.weight", "lm_head.weight"
        source, target = (f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
        if config.tied_embeddings == "all":
            names = {"embedding.weight": [shared, target, source, projection]}
        elif config.tied_embeddings == "decoder":
            names = {"encoder.embedding.weight": [source], "embedding.weight": [target, projection]}
        else:
            both = {"encoder.embedding.weight": [source, shared], "embedding.weight": [target, shared]}
            names = {**both, "projection.weight": [projection]}
        # Without tying, the table of a stack takes precedence over the shared one.
        is_tied = config.tied_embeddings != "none"
        tables = {own: self._one_of(foreign, is_tied=is_tied) for own, foreign in names.items()}
        for name in {name for foreign in names.values() for name in foreign}:
            self.left.pop(name, None)
        if config.projection_bias:
            bias = self.left.pop("final_logits_bias", torch.zeros(config.vocabulary_size))
            tables["projection.bias"] = bias.flatten()
        return tables

    def _one_of(self, names: list[str], *, is_tied: bool) -> Tensor:
        # The first stored tensor; tied ones must be equal.
        found = {name: self.left[name] for name in names if name in self.left}
        if not found:
            raise ImportFormatError(f"{self.path}: missing tensor {names[0]}")
        first, *others = found
        for other in others:
            if is_tied and not torch.equal(found[first], found[other]):
                raise ImportFormatError(f"{self.path}: {other} differs from {first}: expected tied weights")
        return found[first]

    def _check_positions(self, stack: str, config: ModelConfig) -> None:
        # Removes stored sinusoids after comparing them with computed ones.
        for name in (f"model.{stack}.embed_positions.weight", f"model.{stack}.embed_positions.weights"):
            stored = self.left.pop(name, None)
            if stored is None:
                continue
            offset, layout = config.position_offset, config.sinusoid_layout
            used = stored[offset:]
            expected = torch.from_numpy(sinusoidal_positions(len(used), config.d_model, offset=offset, layout=layout))
            if used.shape != expected.shape or not torch.allclose(used, expected, rtol=0, atol=_SAME_POSITIONS):
                raise ImportFormatError(f"{self.path}: {name} does not contain the expected sinusoids")
