"""Layers of the network: dropout, attention (section 3.2 of Vaswani et al. 2017, arXiv:1706.03762), feed-forward."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman_export.model.config import ModelConfig
from dragoman_service.bundle.architecture import Activation

_LEVELS = 256  # values of the random byte drawn for each element
_BYTES_PER_DRAW = 8

DecoderState = tuple[
    Tensor, ...
]  # of one decoder layer after a step: `KeysValues`, or the cell of an SSRU [B, d_model]
KeysValues = tuple[
    Tensor, Tensor
]  # keys and values of one attention block, [B, key heads, S, size of key or value head]
# by name in the configuration; SwiGLU applies its activation to the gate
ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "swish": functional.silu,
    "swiglu": functional.silu,
}


class Dropout(nn.Module):
    """Dropout that is faster than PyTorch's on a CPU.

    On a CPU each element uses one byte of a random draw, which rounds the probability to 1/256 and takes a third of the
    time of PyTorch's implementation. Other devices use PyTorch's.
    """

    def __init__(self, probability: float) -> None:
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


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, dropout: Dropout | None = None
) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)) V [..., T, D], equation 1 of the paper, without a fused kernel.

    Used on a CPU, where it trains five times faster on sentences than PyTorch's fused kernel in bfloat16. The mask,
    broadcastable to [..., T, S], is True where a query may attend; each row needs one True. `dropout` is of the
    softmax.
    """
    scores = (query / math.sqrt(query.size(-1))) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    return (weights if dropout is None else dropout(weights)) @ value


def use_fast_attention() -> None:
    """Turn off cuDNN's attention on GPUs, which plans each new shape of a batch for 0.3 s."""
    torch.backends.cuda.enable_cudnn_sdp(False)


class MultiHeadAttention(nn.Module):
    """H attention heads with biased projections."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        head_size: int | None = None,
        key_head_size: int | None = None,
        num_kv_heads: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        """Create the projections; by default heads share the width, and each has its own keys and values.

        `key_head_size` is the size of a head of keys and queries, by default that of values, `head_size`. `dropout`
        applies to attention weights in training.
        """
        super().__init__()
        head_size = head_size or d_model // num_heads
        self.head_size, self.key_head_size = head_size, key_head_size or head_size
        self.num_groups = num_heads // (num_kv_heads or num_heads)  # query heads that share a head of keys and values
        num_key_heads = num_heads // self.num_groups
        self.query = nn.Linear(d_model, num_heads * self.key_head_size)
        self.key = nn.Linear(d_model, num_key_heads * self.key_head_size)
        self.value = nn.Linear(d_model, num_key_heads * head_size)
        self.output = nn.Linear(num_heads * head_size, d_model)
        self.dropout = Dropout(dropout)

    @classmethod
    def of(cls, config: ModelConfig) -> "MultiHeadAttention":
        """Create the attention of a configuration."""
        return cls(
            config.d_model,
            config.num_heads,
            head_size=config.head_size,
            key_head_size=config.key_head_size,
            num_kv_heads=config.num_key_heads,
            dropout=config.attention_dropout,
        )

    def project(self, states: Tensor, rotary: Tensor | None = None) -> KeysValues:
        """Return keys and values [B, H, S, D] of states [B, S, d_model], keys rotated by `rotary` if given."""
        key = _split(self.key(states), self.key_head_size)
        return _rotated(key, rotary), _split(self.value(states), self.head_size)

    def forward(
        self,
        states: Tensor,
        keys_values: KeysValues,
        mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        rotary: Tensor | None = None,
    ) -> Tensor:
        """Attend from states [B, T, d_model] to keys and values from `project`; return [B, T, d_model].

        The mask, broadcastable to [B, H, T, S], is True where a query may attend; None: everywhere. With `is_causal`
        position t attends to positions up to t; the mask must then be None and S equal to T.
        """
        # Query head h uses keys and values h modulo their number.
        key, value = (part.repeat(1, self.num_groups, 1, 1) if self.num_groups > 1 else part for part in keys_values)
        query = _rotated(_split(self.query(states), self.key_head_size), rotary)
        if query.device.type == "cpu":
            if is_causal:  # True on and below the diagonal
                mask = torch.ones(key.size(-2), key.size(-2), dtype=torch.bool, device=key.device).tril()
            heads = scaled_dot_product_attention(query, key, value, mask, dropout=self.dropout)
        else:
            share = self.dropout.probability if self.training else 0.0
            heads = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=share, is_causal=is_causal
            )
        return self.output(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _split(states: Tensor, head_size: int) -> Tensor:
    # [B, T, H * D] -> [B, H, T, D]
    return states.view(*states.shape[:-1], -1, head_size).transpose(1, 2)


def _rotated(heads: Tensor, rotary: Tensor | None) -> Tensor:
    if rotary is None:
        return heads
    (first, second), (cosine, sine) = heads.chunk(2, dim=-1), rotary.chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return turned.to(heads.dtype)


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, equation 2 of the paper, or another activation in place of the maximum."""

    def __init__(self, d_model: int, ffn_size: int, activation: Activation = "relu") -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, ffn_size)
        self.gate = nn.Linear(d_model, ffn_size) if activation == "swiglu" else None
        self.outer = nn.Linear(ffn_size, d_model)
        self._activate = ACTIVATIONS[activation]

    def forward(self, states: Tensor) -> Tensor:
        """[..., d_model] -> [..., d_model]."""
        inner = self.inner(states)
        activated = self._activate(inner) if self.gate is None else self._activate(self.gate(states)) * inner
        return self.outer(activated)  # type: ignore[no-any-return]


class SimpleRecurrence(nn.Module):
    """Simpler simple recurrent unit (Kim et al. 2019, https://aclanthology.org/D19-5632), as Marian computes it.

    The output is max(0, c), where the cell c(t) = f(t) c(t - 1) + (1 - f(t)) (W x(t) + b) starts as zero, and the
    forget gate f(t) is the sigmoid of another projection.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.input = nn.Linear(d_model, d_model)
        self.forget = nn.Linear(d_model, d_model)

    def forward(self, states: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Continue a cell [B, d_model] with states [B, T, d_model]; return the output [B, T, d_model] and the cell."""
        forget = torch.sigmoid(self.forget(states).float())
        cells = (1 - forget) * self.input(states).float()
        cells = torch.cat((cells[:, :1] + forget[:, :1] * cell[:, None], cells[:, 1:]), dim=1)
        # After each round, a cell contains the inputs of twice as many positions (Hillis and Steele 1986).
        distance = 1
        while distance < states.size(1):
            cells = cells + forget * _delayed(cells, distance)
            forget = forget * _delayed(forget, distance)
            distance *= 2
        return torch.relu(cells), cells[:, -1]


def _delayed(states: Tensor, distance: int) -> Tensor:
    # States [B, T, d_model] of earlier positions, and zeros before the first one.
    return functional.pad(states[:, :-distance], (0, 0, distance, 0))


def make_norm(config: ModelConfig) -> nn.Module:
    """Return a normalisation over `d_model`."""
    kind = nn.LayerNorm if config.norm_kind == "layer" else nn.RMSNorm
    return kind(config.d_model, eps=config.norm_epsilon)


class Layer(nn.Module):
    """Base class of encoder and decoder layers: position of the normalisation, and dropout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_pre_norm = config.norm == "pre"
        self.dropout = Dropout(config.dropout)

    def enter(self, states: Tensor, norm: nn.Module) -> Tensor:
        """Return the input of a sublayer; under autocast, cast once for all its projections."""
        entered: Tensor = norm(states) if self.is_pre_norm else states
        if torch.is_autocast_enabled(entered.device.type):
            return entered.to(torch.get_autocast_dtype(entered.device.type))
        return entered

    def leave(self, states: Tensor, output: Tensor, norm: nn.Module) -> Tensor:
        """Return the residual stream with the output of a sublayer added."""
        total = states + self.dropout(output)
        return total if self.is_pre_norm else norm(total)  # type: ignore[no-any-return]


class EncoderLayer(Layer):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.self_attention = MultiHeadAttention.of(config)
        self.self_attention_norm = make_norm(config)
        self.feed_forward = FeedForward(config.d_model, config.ffn_size, config.activation)
        self.feed_forward_norm = make_norm(config)

    def forward(self, states: Tensor, mask: Tensor | None, rotary: Tensor | None = None) -> Tensor:
        """Transform states [B, S, d_model]; mask [B, 1, 1, S] is True at real tokens, `rotary` [S, D]."""
        entered = self.enter(states, self.self_attention_norm)
        attended = self.self_attention(entered, self.self_attention.project(entered, rotary), mask, rotary=rotary)
        states = self.leave(states, attended, self.self_attention_norm)
        transformed = self.feed_forward(self.enter(states, self.feed_forward_norm))
        return self.leave(states, transformed, self.feed_forward_norm)


class DecoderLayer(Layer):
    """Causal self-attention or recurrence, attention over the encoder's memory, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.is_recurrent = config.decoder_type == "ssru"
        if self.is_recurrent:
            self.recurrence = SimpleRecurrence(config.d_model)
            self.recurrence_norm = make_norm(config)
        else:
            self.self_attention = MultiHeadAttention.of(config)
            self.self_attention_norm = make_norm(config)
        self.cross_attention = MultiHeadAttention.of(config)
        self.cross_attention_norm = make_norm(config)
        self.feed_forward = FeedForward(config.d_model, config.ffn_size, config.activation)
        self.feed_forward_norm = make_norm(config)

    def forward(
        self,
        states: Tensor,
        cross: KeysValues,
        mask: Tensor | None,
        past: DecoderState | None = None,
        rotary: Tensor | None = None,
    ) -> tuple[Tensor, DecoderState]:
        """Transform target positions; return the states and the self-attention keys and values so far, or the cell.

        States are [B, T, d_model] of all positions, or [B, 1, d_model] of the newest if `past` is given. `cross` are
        the keys and values of the memory, from `cross_attention.project`; mask [B, 1, 1, S] is True at real source
        tokens.
        """
        present: DecoderState
        if not self.is_recurrent:
            states, present = self._attend(states, past, rotary)
        else:
            cell = states.new_zeros(states.size(0), states.size(2)) if past is None else past[0]
            recurred, cell = self.recurrence(self.enter(states, self.recurrence_norm), cell)
            states, present = self.leave(states, recurred, self.recurrence_norm), (cell,)
        attended = self.cross_attention(self.enter(states, self.cross_attention_norm), cross, mask)
        states = self.leave(states, attended, self.cross_attention_norm)
        transformed = self.feed_forward(self.enter(states, self.feed_forward_norm))
        return self.leave(states, transformed, self.feed_forward_norm), present

    def start(self, cross: KeysValues) -> DecoderState:
        """Return the state before the first step, for keys and values of the memory."""
        key, value = cross
        if self.is_recurrent:
            width = self.recurrence.input.in_features
            return (torch.zeros(key.size(0), width, device=key.device),)
        return key[:, :, :0], value[:, :, :0]

    def _attend(self, states: Tensor, past: DecoderState | None, rotary: Tensor | None) -> tuple[Tensor, DecoderState]:
        entered = self.enter(states, self.self_attention_norm)
        present = self.self_attention.project(entered, rotary)
        if past is not None:
            present = (torch.cat((past[0], present[0]), dim=2), torch.cat((past[1], present[1]), dim=2))
        attended = self.self_attention(entered, present, is_causal=past is None, rotary=rotary)
        return self.leave(states, attended, self.self_attention_norm), present
