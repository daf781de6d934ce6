"""The layers of the network: dropout, attention (section 3.2 of Vaswani et al. 2017, arXiv:1706.03762), both stacks."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.model.config import ModelConfig

_LEVELS = 256
"""Values of the random byte drawn for each element."""

_BYTES_PER_DRAW = 8


class Dropout(nn.Module):
    """Zeroes elements at random while training and scales the others so that the mean stays.

    On a CPU one byte of torch's generator decides an element, which rounds the probability to 256ths and takes a third
    of the time of PyTorch's own, one draw an element. Elsewhere PyTorch's is used.
    """

    def __init__(self, probability: float) -> None:
        """Remember the probability, at least 0 and below 1."""
        super().__init__()
        self.probability = probability
        self._threshold = min(round(probability * _LEVELS), _LEVELS - 1)

    def forward(self, states: Tensor) -> Tensor:
        """Return states of the same shape and type."""
        if not self.training or self._threshold == 0:
            return states
        if states.device.type != "cpu":
            return functional.dropout(states, self.probability)
        num_draws = -(-states.numel() // _BYTES_PER_DRAW)
        draws = torch.empty(num_draws, dtype=torch.int64).random_(-(2**63), None)
        keep = draws.view(torch.uint8)[: states.numel()].view(states.shape) >= self._threshold
        return states * (keep.to(states.dtype) * (_LEVELS / (_LEVELS - self._threshold)))


KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one attention block, each [B, H, S, D]."""


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)) V, equation 1 of the paper, spelled out.

    The network calls this on a CPU, where it trains five times faster on sentences than PyTorch's fused kernel in
    bfloat16, and the fused kernel elsewhere.

    Args:
        query: [..., T, D].
        key: [..., S, D].
        value: [..., S, D].
        mask: broadcastable to [..., T, S], True where a query may look; each row needs one True. None: everywhere.

    Returns:
        [..., T, D]
    """
    scores = (query / math.sqrt(query.size(-1))) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return torch.softmax(scores, dim=-1) @ value


class MultiHeadAttention(nn.Module):
    """H attention heads over one width, with biased projections.

    The paper has no dropout on the attention weights, so neither has this.
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        """Make the four [d_model, d_model] projections."""
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def project(self, states: Tensor) -> KeysValues:
        """Return the keys and values [B, H, S, D] of states [B, S, d_model]."""
        return self._split(self.key(states)), self._split(self.value(states))

    def forward(
        self, states: Tensor, keys_values: KeysValues, mask: Tensor | None = None, *, is_causal: bool = False
    ) -> Tensor:
        """Let every position of `states` look at the keys and values.

        Args:
            states: [B, T, d_model].
            keys_values: what `project` gave for the S positions looked at.
            mask: bool, broadcastable to [B, H, T, S], True where a query may look; None: everywhere.
            is_causal: position t sees positions up to t only; then `mask` must be None and S equal T.

        Returns:
            [B, T, d_model]
        """
        key, value = keys_values
        query = self._split(self.query(states))
        if query.device.type == "cpu":
            heads = scaled_dot_product_attention(query, key, value, _causal_mask(key) if is_causal else mask)
        else:
            heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
        return self.output(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, states: Tensor) -> Tensor:
        # [B, T, H * D] -> [B, H, T, D]
        return states.view(*states.shape[:-1], self.num_heads, -1).transpose(1, 2)


def _causal_mask(key: Tensor) -> Tensor:
    # [S, S], True on and below the diagonal
    return torch.ones(key.size(-2), key.size(-2), dtype=torch.bool, device=key.device).tril()


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
