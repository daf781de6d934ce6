"""The whole network: encoder, decoder and the one embedding they share."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.model.config import ModelConfig
from export.model.layers import DecoderLayer, Dropout, EncoderLayer, KeysValues, sinusoidal_positions

_INITIAL_POSITIONS = 512
"""Position encodings computed when a model is made; more are added when a longer sequence comes."""


@dataclass(slots=True, kw_only=True)
class DecoderCache:
    """Keys and values between the steps of one decoding batch; `Transformer.step` replaces `self_attention`."""

    cross_attention: tuple[KeysValues, ...]
    """For each layer, of the memory; fixed."""

    self_attention: tuple[KeysValues, ...] | None
    """For each layer, of the target positions so far; None before the first step."""

    mask: Tensor | None
    """[B, 1, 1, S], True at real source tokens; None: no padding."""


class Encoder(nn.Module):
    """The encoder stack; pre-norm adds a last normalisation."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the layers."""
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else None

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Transform states [B, S, d_model]; mask [B, 1, 1, S] or None."""
        for layer in self.layers:
            states = layer(states, mask)
        return states if self.norm is None else self.norm(states)


class Decoder(nn.Module):
    """The decoder stack; pre-norm adds a last normalisation."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the layers."""
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else None

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
        past: tuple[KeysValues, ...] | None = None,
    ) -> tuple[Tensor, tuple[KeysValues, ...]]:
        """Transform states as `DecoderLayer.forward` does, layer after layer; also return the new cache."""
        present = []
        for index, layer in enumerate(self.layers):
            states, keys_values = layer(states, cross[index], mask, None if past is None else past[index])
            present.append(keys_values)
        return states if self.norm is None else self.norm(states), tuple(present)


class Transformer(nn.Module):
    """The network of the paper with one embedding for source, target and output (section 3.4).

    Sources end with EOS; the decoder's input begins with BOS; positions count from 0.
    """

    _positions: Tensor

    def __init__(self, config: ModelConfig) -> None:
        """Make a network with random weights drawn from torch's global generator."""
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary_size, config.d_model)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.dropout = Dropout(config.dropout)
        positions = sinusoidal_positions(_INITIAL_POSITIONS, config.d_model)
        self.register_buffer("_positions", positions, persistent=False)
        self._initialise()

    def encode(self, source_ids: Tensor, source_mask: Tensor | None) -> Tensor:
        """Encode sources.

        Args:
            source_ids: int64 [B, S], each row EOS-terminated, then padded.
            source_mask: bool [B, S], True at real tokens; None: no row is padded.

        Returns:
            The memory, [B, S, d_model].
        """
        return self.encoder(self._embed(source_ids), _attention_mask(source_mask))  # type: ignore[no-any-return]

    def decode_states(self, target_ids: Tensor, memory: Tensor, source_mask: Tensor | None) -> Tensor:
        """Return the decoder's states [B, T, d_model], which `project` turns into logits; arguments as `decode`."""
        mask = _attention_mask(source_mask)
        states, _ = self.decoder(self._embed(target_ids), self.decoder.project(memory), mask)
        return states  # type: ignore[no-any-return]

    def decode(self, target_ids: Tensor, memory: Tensor, source_mask: Tensor | None) -> Tensor:
        """Score every next token of whole targets, without a cache.

        Args:
            target_ids: int64 [B, T], BOS first; padding may follow at the end and has no influence on what precedes it.
            memory: [B, S, d_model] from `encode`.
            source_mask: as given to `encode`.

        Returns:
            Logits [B, T, V].
        """
        return self.project(self.decode_states(target_ids, memory, source_mask))

    def project(self, states: Tensor) -> Tensor:
        """Return logits [..., V] of decoder states [..., d_model], by the shared embedding, without bias."""
        return functional.linear(states, self.embedding.weight)

    def start(self, memory: Tensor, source_mask: Tensor | None) -> DecoderCache:
        """Return the cache from which decoding of memory [B, S, d_model] begins."""
        cross = self.decoder.project(memory)
        return DecoderCache(cross_attention=cross, self_attention=None, mask=_attention_mask(source_mask))

    def step(self, token_ids: Tensor, position: int, cache: DecoderCache) -> Tensor:
        """Append one token to every row and score what may follow.

        Args:
            token_ids: int64 [B], the newest tokens; BOS at position 0.
            position: of these tokens, counted from 0.
            cache: from `start`, changed in place by every step.

        Returns:
            float32 [B, V] natural log-probabilities.
        """
        states = self._embed(token_ids[:, None], first_position=position)
        past = cache.self_attention or self._empty_past(cache)
        states, cache.self_attention = self.decoder(states, cache.cross_attention, cache.mask, past)
        return torch.log_softmax(self.project(states[:, 0]).float(), dim=-1)

    def _empty_past(self, cache: DecoderCache) -> tuple[KeysValues, ...]:
        return tuple((key[:, :, :0], value[:, :, :0]) for key, value in cache.cross_attention)

    def _embed(self, token_ids: Tensor, first_position: int = 0) -> Tensor:
        end = first_position + token_ids.size(1)
        if end > self._positions.size(0):
            self._positions = sinusoidal_positions(2 * end, self.config.d_model).to(self._positions)
        embedded = self.embedding(token_ids) * math.sqrt(self.config.d_model)
        return self.dropout(embedded + self._positions[first_position:end])  # type: ignore[no-any-return]

    def _initialise(self) -> None:
        """Draw projections Xavier-uniform, embeddings N(0, 1 / d_model) so that scaled ones have unit variance."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=self.config.d_model**-0.5)


def _attention_mask(source_mask: Tensor | None) -> Tensor | None:
    # [B, S] -> [B, 1, 1, S]
    return None if source_mask is None else source_mask[:, None, None, :]
