"""The network: encoder, decoder and embeddings."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman_export.model.config import ModelConfig
from dragoman_export.model.layers import (
    DecoderLayer,
    DecoderState,
    Dropout,
    EncoderLayer,
    KeysValues,
    MultiHeadAttention,
    make_norm,
)
from dragoman_export.model.positions import rotary_positions, sinusoidal_positions

_INITIAL_POSITIONS = 512  # position encodings computed on creation; extended for longer sequences
# of queries, keys and values: Xavier's bound of one matrix for all three, as in PyTorch and fairseq
_ATTENTION_GAIN = 2**-0.5


@dataclass(slots=True, kw_only=True)
class DecoderCache:
    """Keys, values and cells between the steps of a decoding batch; `Transformer.step` replaces `layers`."""

    cross_attention: tuple[KeysValues, ...]  # of the memory, per layer; fixed
    layers: tuple[DecoderState, ...]  # of the target positions so far
    mask: Tensor | None  # [B, 1, 1, S], True at real source tokens; None: no padding


class Stack(nn.Module):
    """Base class of encoder and decoder: layers, norms and own tables."""

    def __init__(self, config: ModelConfig, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.embedding: nn.Embedding | None = None
        self.norm = make_norm(config) if config.has_final_norm else None
        self.embedding_norm = make_norm(config) if config.embedding_norm else None
        num_positions = config.max_positions and config.position_offset + config.max_positions
        # Row `config.position_offset` of a learned table is that of the first token.
        self.positions = nn.Embedding(num_positions, config.d_model) if num_positions else None


class Encoder(Stack):
    """The encoder stack."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, (EncoderLayer(config) for _ in range(config.num_encoder_layers)))
        is_shared = config.tied_embeddings == "all"
        self.embedding = None if is_shared else nn.Embedding(config.num_source_tokens, config.d_model)

    def forward(self, states: Tensor, mask: Tensor | None, rotary: Tensor | None = None) -> Tensor:
        """Transform states [B, S, d_model]; mask [B, 1, 1, S] or None; rotary positions [S, D] or None."""
        for layer in self.layers:
            states = layer(states, mask, rotary)
        return states if self.norm is None else self.norm(states)


class Decoder(Stack):
    """The decoder stack."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, (DecoderLayer(config) for _ in range(config.num_decoder_layers)))

    def project(self, memory: Tensor) -> tuple[KeysValues, ...]:
        """Return each layer's cross-attention keys and values of memory [B, S, d_model]."""
        if torch.is_autocast_enabled(memory.device.type):  # cast once for the projections of all layers
            memory = memory.to(torch.get_autocast_dtype(memory.device.type))
        return tuple(layer.cross_attention.project(memory) for layer in self.layers)  # type: ignore[operator, union-attr]

    def forward(
        self,
        states: Tensor,
        cross: tuple[KeysValues, ...],
        mask: Tensor | None,
        past: tuple[DecoderState, ...] | None = None,
        rotary: Tensor | None = None,
    ) -> tuple[Tensor, tuple[DecoderState, ...]]:
        """Apply all layers, as `DecoderLayer.forward`; return states and the new cache."""
        present = []
        for index, layer in enumerate(self.layers):
            states, state = layer(states, cross[index], mask, None if past is None else past[index], rotary)
            present.append(state)
        return states if self.norm is None else self.norm(states), tuple(present)


class Projection(nn.Module):
    """Output projection; has its own table unless it is tied to the embedding, and optionally a bias."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        shape, is_tied = (config.vocabulary_size, config.d_model), config.tied_embeddings != "none"
        self.weight = None if is_tied else nn.Parameter(torch.randn(shape) * config.d_model**-0.5)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary_size)) if config.projection_bias else None

    def forward(self, states: Tensor, embedding: Tensor) -> Tensor:
        """Return logits [..., V] of states [..., d_model]; `embedding` [V, d_model] is the tied table."""
        return functional.linear(states, embedding if self.weight is None else self.weight, self.bias)


class Transformer(nn.Module):
    """The network of the paper with one embedding for source, target and output (section 3.4), or as configured.

    Sources end with EOS; the decoder's input starts with `config.start_id`.
    """

    _positions: Tensor

    def __init__(self, config: ModelConfig) -> None:
        """Create a network with random weights from torch's global generator."""
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary_size, config.d_model)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.dropout = Dropout(config.dropout)
        self.projection = Projection(config)
        self.register_buffer("_positions", _computed_positions(config, _INITIAL_POSITIONS), persistent=False)
        self._initialise()

    def encode(self, source_ids: Tensor, source_mask: Tensor | None) -> Tensor:
        """Return the memory [B, S, d_model] of source ids int64 [B, S], EOS-terminated, then padded.

        The mask, bool [B, S], is True at real tokens; None: no padding.
        """
        states, rotary = self._embed(source_ids, self.encoder)
        return self.encoder(states, _attention_mask(source_mask), rotary)  # type: ignore[no-any-return]

    def decode_states(self, target_ids: Tensor, memory: Tensor, source_mask: Tensor | None) -> Tensor:
        """Return the decoder's states [B, T, d_model] before the projection; arguments as of `decode`."""
        mask = _attention_mask(source_mask)
        states, rotary = self._embed(target_ids, self.decoder)
        states, _ = self.decoder(states, self.decoder.project(memory), mask, rotary=rotary)
        return states  # type: ignore[no-any-return]

    def decode(self, target_ids: Tensor, memory: Tensor, source_mask: Tensor | None) -> Tensor:
        """Return logits [B, T, V] of every next token of whole targets, without a cache.

        Target ids are int64 [B, T], `config.start_id` first; trailing padding does not influence earlier positions.
        """
        return self.project(self.decode_states(target_ids, memory, source_mask))

    def project(self, states: Tensor) -> Tensor:
        """Return logits [..., V] of decoder states [..., d_model]."""
        return self.projection(states, self.embedding.weight)  # type: ignore[no-any-return]

    def start(self, memory: Tensor, source_mask: Tensor | None) -> DecoderCache:
        """Return the initial cache for a memory [B, S, d_model]."""
        cross = self.decoder.project(memory)
        layers = zip(self.decoder.layers, cross, strict=True)
        states = tuple(layer.start(keys_values) for layer, keys_values in layers)  # type: ignore[operator]
        return DecoderCache(cross_attention=cross, layers=states, mask=_attention_mask(source_mask))

    def step(self, token_ids: Tensor, position: int, cache: DecoderCache) -> Tensor:
        """Append int64 tokens [B] at a position, counted from 0, and return log-probabilities [B, V].

        The cache is from `start` and changed in place; the token at position 0 is `config.start_id`.
        """
        states, rotary = self._embed(token_ids[:, None], self.decoder, first_position=position)
        states, cache.layers = self.decoder(states, cache.cross_attention, cache.mask, cache.layers, rotary)
        return torch.log_softmax(self.project(states[:, 0]).float(), dim=-1)

    def _embed(self, token_ids: Tensor, stack: Stack, first_position: int = 0) -> tuple[Tensor, Tensor | None]:
        # Returns the input of a stack, [B, T, d_model], and its rotary positions [T, D], if any.
        config, own, end = self.config, stack.embedding, first_position + token_ids.size(1)
        states = (own or self.embedding)(token_ids)
        if config.scale_embeddings:
            states = states * math.sqrt(config.d_model)
        if stack.positions is not None:
            places = torch.arange(first_position, end, device=token_ids.device) + config.position_offset
            states = states + stack.positions(places)
        elif config.positions == "sinusoidal":
            states = states + self._table(end)[first_position:end]
        if stack.embedding_norm is not None:
            states = stack.embedding_norm(states)
        rotary = self._table(end)[first_position:end] if config.positions == "rotary" else None
        return self.dropout(states), rotary

    def _table(self, end: int) -> Tensor:
        if end > self._positions.size(0):
            self._positions = _computed_positions(self.config, 2 * end).to(self._positions)
        return self._positions

    def _initialise(self) -> None:
        # Projections are Xavier-uniform, embeddings N(0, 1 / d_model), so that scaled ones have unit variance.
        attentions = [module for module in self.modules() if isinstance(module, MultiHeadAttention)]
        inputs = {layer for attention in attentions for layer in (attention.query, attention.key, attention.value)}
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, gain=_ATTENTION_GAIN if module in inputs else 1.0)
                nn.init.zeros_(module.bias)
        tables = (self.embedding, self.encoder.embedding, self.encoder.positions, self.decoder.positions)
        for table in tables:
            if table is not None:
                nn.init.normal_(table.weight, std=self.config.d_model**-0.5)


def _computed_positions(config: ModelConfig, length: int) -> Tensor:
    # Positions that are not learned: [length, d_model] to add, [length, D] to rotate by, or empty.
    if config.positions == "sinusoidal":
        offset, layout = config.position_offset, config.sinusoid_layout
        return torch.from_numpy(sinusoidal_positions(length, config.d_model, offset=offset, layout=layout))
    if config.positions == "rotary":
        return torch.from_numpy(rotary_positions(length, config.key_head_size))
    return torch.empty(length, 0)


def _attention_mask(source_mask: Tensor | None) -> Tensor | None:
    # [B, S] -> [B, 1, 1, S]
    return None if source_mask is None else source_mask[:, None, None, :]
