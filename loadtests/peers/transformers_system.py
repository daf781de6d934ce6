"""Transformers' `generate` with our weights, in the class of Transformers that computes what our network does.

MarianMTModel normalises after each sublayer only; a pre-norm network becomes an M2M100ForConditionalGeneration, which
has the same parts in the other order and a last normalisation. Both get our position encodings.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import M2M100Config, M2M100ForConditionalGeneration, MarianConfig, MarianMTModel

from export.graph.network import Network
from export.model.config import ModelConfig
from export.model.layers import sinusoidal_positions
from loadtests.peers.pytorch_system import TorchSystem, padded
from loadtests.peers.systems import Output, SearchOptions, TokenIds

_NUM_POSITIONS = 512

_PARTS = {
    "self_attention.query": "self_attn.q_proj",
    "self_attention.key": "self_attn.k_proj",
    "self_attention.value": "self_attn.v_proj",
    "self_attention.output": "self_attn.out_proj",
    "self_attention_norm": "self_attn_layer_norm",
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
"""Our names inside a layer, and those of Transformers."""


class TransformersSystem(TorchSystem):
    """Its `generate`, with our weights."""

    def load(self, network: Network) -> Any:
        """Return the converted model."""
        return convert(network)

    def search(self, sources: Sequence[TokenIds], search: SearchOptions) -> list[Output]:
        """Search a batch."""
        config = self.model.config
        ids, mask = padded(sources, config.pad_token_id)
        generated = self.model.generate(
            input_ids=ids,
            attention_mask=mask.long(),
            num_beams=search.beam_size,
            min_new_tokens=search.min_target_tokens,
            max_new_tokens=search.longest_target(max(map(len, sources))),
            length_penalty=search.length_penalty,
            suppress_tokens=list(search.suppressed_tokens) or None,
            early_stopping=True,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=search.beam_size > 1,
        )
        scores = generated.sequences_scores if search.beam_size > 1 else torch.zeros(len(sources))
        rows = generated.sequences[:, 1:].tolist()  # BOS first
        return [_output(row, float(score), config) for row, score in zip(rows, scores, strict=True)]


def _output(row: list[int], score: float, config: Any) -> Output:
    """Return a row without the padding behind it."""
    end = row.index(config.eos_token_id) + 1 if config.eos_token_id in row else len(row)
    return Output(token_ids=tuple(row[:end]), score=score)


def convert(network: Network) -> Any:
    """Return the model of Transformers with the weights of a network, in evaluation mode."""
    config = network.config
    is_pre_norm = config.norm == "pre"
    shape = _shape(config)
    model: Any = (
        M2M100ForConditionalGeneration(M2M100Config(**shape)) if is_pre_norm else MarianMTModel(MarianConfig(**shape))
    )
    weights = {_renamed(name): torch.tensor(array) for name, array in network.weights.items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    expected = {
        name for name in missing if "embed_" not in name and name not in ("lm_head.weight", "final_logits_bias")
    }
    if expected or unexpected:
        raise ValueError(f"weights do not fit: {sorted(expected)} missing, {sorted(unexpected)} left over")
    model.tie_weights()
    for stack in (model.model.encoder, model.model.decoder):
        _place_positions(stack.embed_positions, config)
    model.generation_config.forced_eos_token_id = None
    return model.eval()


def _shape(config: ModelConfig) -> Mapping[str, Any]:
    return {
        "vocab_size": config.vocabulary_size,
        "d_model": config.d_model,
        "encoder_layers": config.num_encoder_layers,
        "decoder_layers": config.num_decoder_layers,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.ffn_size,
        "decoder_ffn_dim": config.ffn_size,
        "max_position_embeddings": _NUM_POSITIONS,
        "activation_function": "relu",
        "scale_embedding": True,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
        "decoder_start_token_id": config.bos_id,
        "forced_eos_token_id": None,
    }


def _renamed(name: str) -> str:
    if name == "embedding.weight":
        return "model.shared.weight"
    stack, _, rest = name.partition(".")
    if not rest.startswith("layers."):
        return f"model.{stack}.layer_norm.{rest.rpartition('.')[2]}"
    _, index, inner = rest.split(".", 2)
    part, _, kind = inner.rpartition(".")
    return f"model.{stack}.layers.{index}.{_PARTS[part]}.{kind}"


def _place_positions(module: Any, config: ModelConfig) -> None:
    """Replace sines and cosines side by side by ours, which alternate."""
    if config.norm == "post":
        module.weight.data = sinusoidal_positions(_NUM_POSITIONS, config.d_model)
        return
    first = module.padding_idx + 1  # where M2M100 begins to count
    table: Tensor = torch.zeros_like(module.weights)
    table[first:] = sinusoidal_positions(len(table) - first, config.d_model)
    module.weights = table
