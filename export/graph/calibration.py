"""Measures the range of what enters each projection, which fixes the scales of 8-bit activations."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from tqdm import tqdm

from export.graph.blocks import EMBEDDING
from export.model.transformer import Transformer


@torch.inference_mode()
def measure_ranges(model: Transformer, pairs: Sequence[tuple[list[int], list[int]]]) -> dict[str, float]:
    """Return the largest magnitude that enters each projection while given sentences are translated.

    Args:
        model: in evaluation mode.
        pairs: source and target token ids, EOS last; a few hundred real sentences.

    Returns:
        By the path of the projection, such as `encoder.layers.0.self_attention.query`; the projection to the
        vocabulary under the path of the embedding.
    """
    ranges: dict[str, float] = {}

    def note(path: str, states: Tensor) -> None:
        ranges[path] = max(ranges.get(path, 0.0), float(states.abs().max()))

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, path=path: note(path, inputs[0]))
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        for source, target in tqdm(pairs, desc="calibrating", unit="sentence", leave=False):
            memory = model.encode(torch.tensor([source]), None)
            inputs = torch.tensor([[model.config.bos_id, *target[:-1]]])
            note(EMBEDDING.removesuffix(".weight"), model.decode_states(inputs, memory, None))
    finally:
        for hook in hooks:
            hook.remove()
    return ranges
