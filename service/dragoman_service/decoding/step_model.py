"""Protocol between the search and a model: encode sources, start segments, step, drop."""

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
    """Source and target token id of a placeholder."""

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
    placeholders: tuple[Placeholder, ...] = ()  # a target contains only placeholders of its source and its prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """Limits of a model."""

    vocabulary: VocabularySpec
    max_source_tokens: int  # including EOS
    max_target_tokens: int  # including EOS, excluding BOS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The best candidates for the next token of each row after a decoder step."""

    log_probs: FloatArray  # [B, K, C] natural log-probability of each candidate, descending in C
    token_ids: IntArray  # [B, K, C]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedSource:
    """Encoder output of a source; batches of the same model can start it any number of times."""

    source_ids: tuple[int, ...]  # ends with EOS
    cross: Any  # read-only input of the cross-attention, in a form that the model chooses


class StepBatch(Protocol):
    """A running batch: the encoder outputs and the KV caches of B segments, in order.

    One thread at a time may use it. Segments may be at different lengths.
    """

    @property
    def num_segments(self) -> int:
        """Number of segments, B."""

    def start(self, sources: Sequence[EncodedSource]) -> None:
        """Append new segments that the model of the batch has encoded, in order."""

    def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
        """Append one token to each row and return the candidates for the next token.

        Row k of segment b becomes the hypothesis of row `parents[b, k]` of the same segment after the previous step,
        followed by `token_ids[b, k]`. In the first step of a segment the token is BOS and `parents` is ignored.

        Args:
            token_ids: [B, K] the newest token of each row; K may change from step to step. Dead rows repeat row 0, so
                that they use no cache slots of their own.
            parents: [B, K] in the range of K of the previous step.
            num_candidates: C, between 1 and the vocabulary size; or [B, K] a number for each row. Then C is the
                largest number, and a row has undefined candidates beyond its own number.

        Returns:
            Arrays that are valid until the next step.
        """

    def cross_attention(self, segment: int, target_ids: Sequence[int]) -> FloatArray:
        """Return the cross-attention weights of given target tokens of a segment.

        This is a decoder run of its own, which does not change the batch and costs about one step of T rows.

        Args:
            segment: index into the batch.
            target_ids: T token ids, at least one, without BOS.

        Returns:
            [L, H, T, S] over decoder layers, heads, target tokens and source tokens; each row adds up to 1.
        """

    def drop(self, keep: Sequence[int]) -> None:
        """Keep only the segments at the given indices, which become 0, 1, ... in the order given."""


class StepModel(Protocol):
    """A model that decodes step by step; threads can share it, each with its own batches."""

    @property
    def limits(self) -> ModelLimits:
        """Limits of the model."""

    def encode(self, source_ids: Sequence[Sequence[int]]) -> list[EncodedSource]:
        """Encode sources, at least one, each ending with EOS; an output does not depend on the other sources."""

    def new_batch(self) -> StepBatch:
        """Return an empty running batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMemory:
    """Memory of a device for the KV caches and the steps of all batches."""

    available_bytes: int  # negative if the weights do not fit
    source_bytes: int  # maximum of a segment without rows
    row_bytes: int  # maximum of each row of a segment

    def segment_bytes(self, beam_size: int) -> int:
        """Return the maximum memory of a segment."""
        return self.source_bytes + beam_size * self.row_bytes

    def max_segments(self, beam_size: int, *, num_batches: int) -> int:
        """Return the maximum number of segments in each batch; 0 if the memory is too small.

        A batch reserves memory for one more segment. A step on a device has a power of 2 of segments up to 8, then a
        multiple of 8.
        """
        count = self.available_bytes // (num_batches * self.segment_bytes(beam_size)) - 1
        if count < 1:
            return 0
        return 1 << (count.bit_length() - 1) if count < 8 else count - count % 8
