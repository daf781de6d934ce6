"""`generate` of Transformers with our weights.

A post-norm network becomes a MarianMTModel, a pre-norm network an M2M100ForConditionalGeneration. Both get our position
encodings.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers import M2M100Config, M2M100ForConditionalGeneration, MarianConfig, MarianMTModel

from dragoman_export.importers.bundle import read_network
from dragoman_export.model.config import ModelConfig
from dragoman_export.model.positions import sinusoidal_positions
from dragoman_export.onnx_export.network import Network
from loadtests.benchmarks.interface import ModelFiles, Output, SearchOptions, SystemSettings, TokenIds

_NUM_POSITIONS: Final = 512
_NAMES: Final = {  # parts of names here and in Transformers, replaced in order
    "embedding.": "shared.",
    ".norm.": ".layer_norm.",
    "feed_forward_norm.": "final_layer_norm.",
    "attention_norm.": "attention_layer_norm.",
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    ".query.": ".q_proj.",
    ".key.": ".k_proj.",
    ".value.": ".v_proj.",
    ".output.": ".out_proj.",
    "feed_forward.inner.": "fc1.",
    "feed_forward.outer.": "fc2.",
}


class System:
    """`generate` in the thread pool of PyTorch; no streams, no int8."""

    def __init__(self, files: ModelFiles, settings: SystemSettings) -> None:
        precision = torch.float16 if settings.precision == "fp16" else torch.float32
        self._model = convert(read_network(files.open(), "fp32")).to(settings.device, precision)
        self._num_threads = settings.num_threads

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        """Return the best hypothesis of each source, in batches of similar length."""
        torch.set_num_threads(self._num_threads)
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
        outputs: dict[int, Output] = {}
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            with torch.inference_mode():
                outputs.update(zip(batch, self._search([sources[index] for index in batch], search), strict=True))
        return [outputs[index] for index in range(len(sources))]

    def _search(self, sources: Sequence[TokenIds], search: SearchOptions) -> list[Output]:
        config = self._model.config
        ids, mask = (part.to(self._model.device) for part in padded(sources, config.pad_token_id))
        generated = self._model.generate(
            input_ids=ids,
            attention_mask=mask.long(),
            num_beams=search.beam_size,
            min_new_tokens=search.min_target_tokens,
            max_new_tokens=search.longest_target(sources),
            length_penalty=search.length_penalty,
            suppress_tokens=list(search.suppressed_tokens) or None,
            early_stopping=True,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=search.beam_size > 1,
        )
        scores = generated.sequences_scores if search.beam_size > 1 else torch.zeros(len(sources))
        outputs = []
        for row, score in zip(generated.sequences[:, 1:].tolist(), scores, strict=True):  # BOS first
            end = row.index(config.eos_token_id) + 1 if config.eos_token_id in row else len(row)  # then padding
            outputs.append(Output(token_ids=tuple(row[:end]), score=float(score)))
        return outputs


def padded(sources: Sequence[TokenIds], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return token ids [B, S] and a mask [B, S] of real tokens."""
    longest = max(map(len, sources))
    ids = torch.tensor([[*source, *[pad_id] * (longest - len(source))] for source in sources])
    lengths = torch.tensor([len(source) for source in sources])
    return ids, torch.arange(longest) < lengths[:, None]


def convert(network: Network) -> Any:
    """Return the model of Transformers in evaluation mode."""
    config = network.config
    shape: dict[str, Any] = {
        "vocab_size": config.vocabulary_size,
        "d_model": config.d_model,
        "encoder_layers": config.num_encoder_layers,
        "decoder_layers": config.num_decoder_layers,
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), config.num_heads),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), config.ffn_size),
        "max_position_embeddings": _NUM_POSITIONS,
        "activation_function": "relu",
        "scale_embedding": True,
        "pad_token_id": config.pad_id,
        **dict.fromkeys(("bos_token_id", "decoder_start_token_id"), config.bos_id),
        "eos_token_id": config.eos_id,
        "forced_eos_token_id": None,
    }
    model: Any = (
        M2M100ForConditionalGeneration(M2M100Config(**shape))
        if config.norm == "pre"
        else MarianMTModel(MarianConfig(**shape))
    )
    weights = {_renamed(name): torch.tensor(array) for name, array in network.weights.items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = ("lm_head.weight", "final_logits_bias")
    expected = {name for name in missing if "embed_" not in name and name not in tied}
    if expected or unexpected:
        raise ValueError(f"weights differ: {sorted(expected)} missing, {sorted(unexpected)} unexpected")
    model.tie_weights()
    for stack in (model.model.encoder, model.model.decoder):
        _place_positions(stack.embed_positions, config)
    model.generation_config.forced_eos_token_id = None
    return model.eval()


def _renamed(name: str) -> str:
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    return f"model.{name}"


def _place_positions(module: Any, config: ModelConfig) -> None:
    """Replace concatenated sines and cosines by ours, which alternate."""
    if config.norm == "post":
        module.weight.data = torch.from_numpy(sinusoidal_positions(_NUM_POSITIONS, config.d_model))
        return
    module.offset = first = module.padding_idx + 1  # first position of M2M100
    table: Tensor = torch.zeros_like(module.weights)
    table[first:] = torch.from_numpy(sinusoidal_positions(len(table) - first, config.d_model))
    module.weights = table
