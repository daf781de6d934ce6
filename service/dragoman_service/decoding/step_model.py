"""The protocol between the search and a network: encode, start, step, drop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]


class Placeholder(NamedTuple):
    """The token ids of one placeholder piece."""

    source_id: int
    target_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularySpec:
    """Size, special ids and placeholders of a vocabulary."""

    size: int
    pad_id: int
    bos_id: int
    eos_id: int
    unk_id: int
    placeholders: tuple[Placeholder, ...] = ()
    """Pieces that the model copies; a target contains only those of its source and its prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What a network can take."""

    vocabulary: VocabularySpec
    max_source_tokens: int
    """Longest source, EOS counted."""

    max_target_tokens: int
    """Longest target, EOS counted, BOS not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The best next tokens of every row after a decoder step."""

    log_probs: FloatArray
    """[B, K, C] natural log-probability of each candidate token given its row's hypothesis, descending in C."""

    token_ids: IntArray
    """[B, K, C] the candidate tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedSource:
    """What a network made of a source; its own batches can start it, any number of times."""

    source_ids: tuple[int, ...]
    """EOS last."""

    cross: Any
    """What the decoder attends to, in whatever form the network uses: most often an array; not to be changed."""


class StepBatch(Protocol):
    """A running batch: the encoder outputs and the KV caches of B segments, in order.

    One thread at a time may use it. Segments may be at different lengths.
    """

    @property
    def num_segments(self) -> int:
        """B, segments in the batch."""

    def start(self, sources: Sequence[EncodedSource]) -> None:
        """Append new segments, encoded by the model of the batch, in order, behind those of the batch."""

    def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
        """Append one token to every row and score what may follow it.

        Row k of segment b becomes: the hypothesis that row `parents[b, k]` of the same segment held
        after the previous step, followed by `token_ids[b, k]`. On a segment's first step the token is BOS
        and `parents` is ignored (there is no hypothesis yet).

        Args:
            token_ids: [B, K] the newest token of every row; K may differ from step to step. Rows that the
                search considers dead repeat row 0, so that they keep nothing alive.
            parents: [B, K] in the range of the previous step's K.
            num_candidates: C, between 1 and the vocabulary size; or [B, K], of each row, then C is the greatest, and
                what a row has behind its own number is of no use.

        Returns:
            Arrays that hold until the next step, which may overwrite them.
        """

    def cross_attention(self, segment: int, target_ids: Sequence[int]) -> FloatArray:
        """Return the cross-attention weights with which given target tokens of a segment are chosen.

        Computed anew, without changing the batch; it costs about one decoder step of as many rows.

        Args:
            segment: index into the batch.
            target_ids: T token ids, at least one, BOS not stored.

        Returns:
            [L, H, T, S] over the decoder layers, heads, target tokens and the segment's own source tokens; each row
            adds up to 1.
        """

    def drop(self, keep: Sequence[int]) -> None:
        """Forget every segment but those at the given indices, which become 0, 1, ... in the order given."""


class StepModel(Protocol):
    """A network that can be stepped; safe to share between threads, each with its own batches."""

    @property
    def limits(self) -> ModelLimits:
        """What its batches take."""

    def encode(self, source_ids: Sequence[Sequence[int]]) -> list[EncodedSource]:
        """Encode sources, at least one, each ending with EOS; a result does not depend on the other sources."""

    def new_batch(self) -> StepBatch:
        """Return an empty running batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMemory:
    """Memory of a device for the caches and the steps of all batches."""

    available_bytes: int
    """Below 0 if not even the weights fit."""

    source_bytes: int
    """What a segment takes at most, whatever its beam."""

    row_bytes: int
    """What each row of it takes at most on top."""

    def segment_bytes(self, beam_size: int) -> int:
        """Return what a segment takes at most."""
        return self.source_bytes + beam_size * self.row_bytes

    def max_segments(self, beam_size: int, *, num_batches: int) -> int:
        """Return how many segments each of some batches may have; 0: not one.

        A batch has room for one more; a step on a device has a power of 2 of segments up to 8, then a multiple of 8.
        """
        count = self.available_bytes // (num_batches * self.segment_bytes(beam_size)) - 1
        if count < 1:
            return 0
        return 1 << (count.bit_length() - 1) if count < 8 else count - count % 8
