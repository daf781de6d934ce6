"""The parts of the network other than attention: positions, feed-forward block, encoder and decoder layer."""

import math

import torch
from torch import Tensor, nn

from export.model.attention import KeysValues, MultiHeadAttention
from export.model.config import ModelConfig
from export.model.dropout import Dropout


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """Return the position encodings of section 3.5 of the paper.

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same angle.

    Args:
        length: positions, counted from 0.
        d_model: width, even.

    Returns:
        float32 [length, d_model]
    """
    positions = torch.arange(length, dtype=torch.float64)
    frequencies = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
    angles = positions[:, None] * frequencies  # [length, d_model / 2]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, equation 2 of the paper."""

    def __init__(self, d_model: int, ffn_size: int) -> None:
        """Make both projections."""
        super().__init__()
        self.inner = nn.Linear(d_model, ffn_size)
        self.outer = nn.Linear(ffn_size, d_model)

    def forward(self, states: Tensor) -> Tensor:
        """[..., d_model] -> [..., d_model]."""
        return self.outer(torch.relu(self.inner(states)))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """What encoder and decoder layers share: where the normalisation goes around a sublayer."""

    def __init__(self, config: ModelConfig) -> None:
        """Remember whether to normalise before or after, and the dropout of sublayer outputs."""
        super().__init__()
        self.is_pre_norm = config.norm == "pre"
        self.dropout = Dropout(config.dropout)

    def enter(self, states: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return what the sublayer sees of the residual stream: under autocast, cast once for all its projections."""
        entered: Tensor = norm(states) if self.is_pre_norm else states
        if torch.is_autocast_enabled(entered.device.type):
            return entered.to(torch.get_autocast_dtype(entered.device.type))
        return entered

    def leave(self, states: Tensor, output: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return the residual stream after the sublayer's output was added to it."""
        total = states + self.dropout(output)
        return total if self.is_pre_norm else norm(total)  # type: ignore[no-any-return]


class EncoderLayer(Layer):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the two sublayers and their norms."""
        super().__init__(config)
        self.self_attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.self_attention_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config.d_model, config.ffn_size)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Transform states [B, S, d_model]; mask [B, 1, 1, S] is True at real tokens, None: no padding."""
        entered = self.enter(states, self.self_attention_norm)
        attended = self.self_attention(entered, self.self_attention.project(entered), mask)
        states = self.leave(states, attended, self.self_attention_norm)
        transformed = self.feed_forward(self.enter(states, self.feed_forward_norm))
        return self.leave(states, transformed, self.feed_forward_norm)


class DecoderLayer(Layer):
    """Causal self-attention, attention over the encoder's memory, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the three sublayers and their norms."""
        super().__init__(config)
        self.self_attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.self_attention_norm = nn.LayerNorm(config.d_model)
        self.cross_attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.cross_attention_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config.d_model, config.ffn_size)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)

    def forward(
        self, states: Tensor, cross: KeysValues, mask: Tensor | None, past: KeysValues | None = None
    ) -> tuple[Tensor, KeysValues]:
        """Transform target positions.

        Args:
            states: [B, T, d_model], all target positions; or [B, 1, d_model], the newest one, when `past` is given.
            cross: keys and values of the memory, from `cross_attention.project`.
            mask: [B, 1, 1, S], True at real source tokens; None: no padding.
            past: keys and values of the earlier target positions.

        Returns:
            The transformed states, and the self-attention keys and values of all positions so far.
        """
        entered = self.enter(states, self.self_attention_norm)
        present = self.self_attention.project(entered)
        if past is not None:
            present = (torch.cat((past[0], present[0]), dim=2), torch.cat((past[1], present[1]), dim=2))
        attended = self.self_attention(entered, present, is_causal=past is None)
        states = self.leave(states, attended, self.self_attention_norm)
        attended = self.cross_attention(self.enter(states, self.cross_attention_norm), cross, mask)
        states = self.leave(states, attended, self.cross_attention_norm)
        transformed = self.feed_forward(self.enter(states, self.feed_forward_norm))
        return self.leave(states, transformed, self.feed_forward_norm), present
