"""KV cache of a running batch: slot allocation and buffers."""

import math
import mmap
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dragoman_service.bundle.architecture import FloatType
from dragoman_service.decoding.step_model import BoolArray, IntArray

LENGTH_BUCKET = 32  # growth granularity of slots and source positions; larger values move buffers less often

_HUGE_PAGE_BYTES = 2 << 20

_COMPACTION_DELAY_STEPS = 8  # steps to tolerate a 2x oversized cache before compaction (measured break-even)

SEGMENT_BUCKET = 8  # growth granularity of the batch dimension

HIDDEN: Final = -3e4
"""Added to the attention score of a hidden slot, so that its weight is exactly 0; visible slots have 0. The value -inf
could give NaN, and the minimum in half precision is -65,504."""


def round_up(count: int, bucket: int) -> int:
    """Return the smallest positive multiple of `bucket` that is at least `count`."""
    return max(1, -(-count // bucket)) * bucket


def fitting_length(length: int, needed: int) -> int:
    """Return the current length if it is sufficient and less than twice the needed length, otherwise the needed length.

    Shrinking moves all buffers, and the next segments can need the space again.
    """
    return length if needed <= length < 2 * needed else needed


class SlotTable:
    """Visibility of slots: a row sees the slots of its segment that store the tokens of its hypothesis.

    A slot that is not visible to any row is free. New tokens are assigned to the lowest free slots in row order, so the
    slots of a segment depend only on its own rows: not on other segments, and not on padding rows at the end that
    copy the parent of one of its rows.
    """

    def __init__(self) -> None:
        self.visible: BoolArray = np.zeros((0, 1, LENGTH_BUCKET), dtype=np.bool_)
        """[B, K, L], True where row k of segment b sees slot l; methods replace the array and never modify it."""

        self._num_steps = 0
        self._excess_began: int | None = None  # the step since which at most half of the slots are needed

    @property
    def num_slots(self) -> int:
        """Number of slots of each segment, L, a multiple of `LENGTH_BUCKET`."""
        return int(self.visible.shape[2])

    def add_segments(self, count: int) -> None:
        """Append segments whose rows do not have tokens yet."""
        _, num_rows, num_slots = self.visible.shape
        self.visible = np.concatenate([self.visible, np.zeros((count, num_rows, num_slots), dtype=np.bool_)])

    def keep_segments(self, keep: Sequence[int]) -> None:
        """Keep only the given segments, in the given order, and drop trailing slots that were unused for long."""
        kept = self.visible[np.asarray(keep, dtype=np.int64)]
        used = np.flatnonzero(kept.any(axis=(0, 1)))
        needed = round_up(int(used[-1]) + 1 if used.size else 0, LENGTH_BUCKET)
        self.visible = kept[:, :, : self._fitting_slots(needed) if keep else needed]

    def append(self, parents: IntArray) -> IntArray:
        """Append one token to each row, which continues row `parents` [B, K]; return the slots of the tokens [B, K]."""
        num_segments, num_rows = parents.shape
        segments = np.arange(num_segments)[:, None]
        inherited = self.visible[segments, parents]  # [B, K, L]
        is_used = inherited.any(axis=1)  # [B, L]
        missing = int(is_used.sum(axis=1).max(initial=0)) + num_rows - self.num_slots
        if missing > 0:
            more = round_up(missing, LENGTH_BUCKET)
            self.visible = np.pad(self.visible, ((0, 0), (0, 0), (0, more)))
            return self.append(parents)
        slots: IntArray = is_used.argsort(axis=1, kind="stable")[:, :num_rows]  # free ones first, each part in order
        inherited[segments, np.arange(num_rows), slots] = True
        self.visible = inherited
        self._num_steps += 1
        return slots

    def _fitting_slots(self, needed: int) -> int:
        # A number of at least twice the needed slots is kept for a short time only.
        excess = self.num_slots - needed
        if excess < needed:
            self._excess_began = None
            return self.num_slots
        if self._excess_began is None:
            self._excess_began = self._num_steps
        is_lasting = (self._num_steps - self._excess_began) * excess >= _COMPACTION_DELAY_STEPS * needed
        return needed if is_lasting else self.num_slots


class RowTable:
    """Slots of the states of recurrent layers: row k of a segment writes to slot k."""

    visible: None = None  # rows have a parent instead of visible slots

    def __init__(self) -> None:
        self.num_slots = SEGMENT_BUCKET
        """Number of slots of each segment, L."""

    def add_segments(self, count: int) -> None:
        """Do nothing: the slots of new segments are zero."""

    def keep_segments(self, keep: Sequence[int]) -> None:
        """Drop the slots that only wider beams need when no segment is left."""
        if not keep:
            self.num_slots = SEGMENT_BUCKET

    def append(self, parents: IntArray) -> IntArray:
        """Return the slots that the rows [B, K] write to."""
        num_segments, num_rows = parents.shape
        self.num_slots = max(self.num_slots, round_up(num_rows, SEGMENT_BUCKET))
        return np.broadcast_to(np.arange(num_rows), (num_segments, num_rows))


class SegmentBuffers:
    """Named float arrays whose first axis is the segment; the parts of live segments are contiguous at the beginning.

    Values start as zeros and must stay finite, because attention multiplies masked values by zero. All arrays are in
    one block of memory. Changes of the layout alternate between two blocks, because allocating memory costs more than
    the copy.
    """

    def __init__(
        self, names: Sequence[str], part_shape: Callable[[int], tuple[int, ...]], float_type: FloatType
    ) -> None:
        """Initialize without memory; `part_shape` maps a length (slots or source positions) to the shape of a part."""
        self._names = tuple(names)
        self._part_shape = part_shape
        self._float_type = float_type
        self._arrays: NDArray[Any] = np.zeros((len(names), 0, *part_shape(0)), dtype=float_type)
        self._memory, self._spare = _zeros(0, float_type), _zeros(0, float_type)
        self._num_segments = 0
        self.length = 0  # slots or source positions of each part
        self.layout = 0  # number that changes when the parts move to other memory or change their shape

    @property
    def num_bytes(self) -> int:
        """Allocated memory, including spare capacity and the second block; any thread can read it."""
        return self._memory.nbytes + self._spare.nbytes

    def live(self) -> dict[str, NDArray[Any]]:
        """Return the parts of the live segments, each array contiguous; valid until the next change of size."""
        return {name: array[: self._num_segments] for name, array in zip(self._names, self._arrays, strict=True)}

    def resize(self, num_segments: int, length: int) -> None:
        """Resize to `num_segments` parts of `length`; values that fit are preserved, all others are zero."""
        capacity = self._arrays.shape[1]
        if num_segments > capacity or length != self.length:
            self._lay_out(max(capacity, round_up(num_segments, SEGMENT_BUCKET)), length, kept=num_segments)
        if num_segments > self._num_segments:
            self._arrays[:, self._num_segments : num_segments] = 0  # may contain values of dropped segments
        self._num_segments, self.length = num_segments, length

    def fill(self, segment: int, values: NDArray[Any]) -> None:
        """Write the leading values of a live segment's parts; `values` has one entry per name on its first axis."""
        self._arrays[:, segment][tuple(map(slice, values.shape))] = values

    def keep_segments(self, keep: Sequence[int]) -> None:
        """Keep only the parts of the given segments, which move to 0, 1, ... in the given order."""
        moved = {target: source for target, source in enumerate(keep) if target != source}
        if moved.keys().isdisjoint(moved.values()):
            for target, source in moved.items():
                self._arrays[:, target] = self._arrays[:, source]
        else:
            self._arrays[:, list(moved)] = self._arrays[:, list(moved.values())]
        self._num_segments = len(keep)

    def _lay_out(self, capacity: int, length: int, *, kept: int) -> None:
        shape = (len(self._names), capacity, *self._part_shape(length))
        size = math.prod(shape)
        if self._spare.size < size:
            self._spare = _zeros(size, self._float_type)
        moved = self._spare[:size].reshape(shape)
        kept = min(kept, self._num_segments)
        if kept:
            _copy(self._arrays[:, :kept], moved[:, :kept])
        self._memory, self._spare, self._arrays = self._spare, self._memory, moved
        self.layout += 1


def _copy(source: NDArray[Any], target: NDArray[Any]) -> None:
    # Copies the common part along each axis and sets the rest of the target to zero.
    common = tuple(slice(min(sizes)) for sizes in zip(source.shape, target.shape, strict=True))
    for axis, size in enumerate(source.shape):
        if size < target.shape[axis]:
            target[(*common[:axis], slice(size, None))] = 0
    target[common] = source[common]


def _zeros(size: int, float_type: FloatType) -> NDArray[Any]:
    # Uses huge pages where available, because each new page of 4 KB costs up to 10 us.
    num_bytes = size * np.dtype(float_type).itemsize
    if num_bytes < _HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, dtype=float_type)
    memory = mmap.mmap(-1, num_bytes)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=float_type)
