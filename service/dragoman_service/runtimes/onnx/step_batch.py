"""Parts of a running batch that do not depend on the device of its caches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from dragoman_service.bundle.architecture import layer_names, pool_kinds
from dragoman_service.decoding.step_model import EncodedSource, IntArray
from dragoman_service.runtimes.onnx.kv_pool import RowTable, SlotTable
from dragoman_service.runtimes.onnx.session import Sessions

MIN_QUERIES = 2  # a single row is duplicated for attention; for the reason see `dragoman_export.onnx_export.decoder`


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """Sizes that determine the shapes of all inputs and outputs of a step."""

    num_segments: int  # B
    num_rows: int  # K
    num_slots: int  # L
    num_candidates: int  # C

    @property
    def outputs(self) -> tuple[int, int, int]:
        """Shape of the outputs, [B, K, C]."""
        return self.num_segments, self.num_rows, self.num_candidates


class Buffers(Protocol):
    """Memory for the keys and values of all segments."""

    @property
    def num_bytes(self) -> int:
        """Allocated memory; any thread can read it."""


_Buffers = TypeVar("_Buffers", bound=Buffers)


class CachingBatch(Generic[_Buffers]):
    """Base of the running batches: segments, their slots and their buffers; not safe for concurrent use."""

    def __init__(
        self,
        sessions: Sessions,
        new_buffers: Callable[[Sequence[str], Callable[[int], tuple[int, ...]], int], _Buffers],
    ) -> None:
        """Create an empty batch.

        `new_buffers` returns buffers for the arrays of some names, with parts of a shape whose length has a given axis.
        """
        shape = sessions.bundle.manifest.architecture
        num_layers = shape.num_decoder_layers
        self._sessions = sessions
        is_recurrent = shape.decoder_type == "ssru"
        self._slots = RowTable() if is_recurrent else SlotTable()
        width = shape.d_model if is_recurrent else shape.key_size
        self._pools = new_buffers(
            layer_names(pool_kinds(shape.decoder_type), num_layers), lambda length: (length, width), 0
        )
        self._cross = new_buffers(
            layer_names(("cross_key", "cross_value"), num_layers),
            lambda length: (shape.num_key_heads, length, shape.head_size),
            1,
        )
        self._source_lengths = np.zeros(0, dtype=np.int32)
        self._positions = np.zeros(0, dtype=np.int64)

    @property
    def num_segments(self) -> int:
        """Number of segments in the batch, B."""
        return len(self._positions)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache buffers; any thread can read it."""
        return self._pools.num_bytes + self._cross.num_bytes

    def start(self, sources: Sequence[EncodedSource]) -> None:
        """Append new segments, in order."""
        lengths = np.array([len(source.source_ids) for source in sources], dtype=np.int32)
        self._slots.add_segments(len(sources))
        self._positions = np.concatenate([self._positions, np.zeros(len(sources), dtype=np.int64)])
        self._source_lengths = np.concatenate([self._source_lengths, lengths])

    def drop(self, keep: Sequence[int]) -> None:
        """Keep only the segments at the given indices, which become 0, 1, ... in the given order."""
        indices = np.asarray(keep, dtype=np.int64)
        self._slots.keep_segments(keep)
        self._positions, self._source_lengths = self._positions[indices], self._source_lengths[indices]

    def _continued(self, parents: IntArray) -> IntArray:
        # The rows of new segments are empty, so all of them continue row 0.
        return np.where(self._positions[:, None] == 0, 0, parents)

    def _shape(self, num_segments: int, num_rows: int, num_candidates: int | IntArray) -> StepShape:
        return StepShape(
            num_segments=num_segments,
            num_rows=num_rows,
            num_slots=self._slots.num_slots,
            num_candidates=int(np.max(num_candidates)),
        )
