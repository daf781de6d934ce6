"""The KV cache of a running batch: which slot of a pool holds which token, and the buffers."""

import math
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman_service.bundle.architecture import FloatType
from dragoman_service.decoding.step_model import BoolArray, IntArray

LENGTH_BUCKET = 32
"""Slots and source positions are added so many at a time, so that buffers are seldom moved."""

_HUGE_PAGE_BYTES = 2 << 20

_PATIENCE_STEPS = 8
"""On the model that ships so many steps with twice the slots needed cost as much as moving to fewer and back."""

SEGMENT_BUCKET = 8
"""Room for segments is added so many at a time."""


def round_up(count: int, bucket: int) -> int:
    """Return the smallest positive multiple of `bucket` that is at least `count`."""
    return max(1, -(-count // bucket)) * bucket


def fitting_length(length: int, needed: int) -> int:
    """Return the new length: what is needed, or the current one if that is enough and less than twice as much.

    Shrinking moves everything, and the next segments may need the room again.
    """
    return length if needed <= length < 2 * needed else needed


class SlotTable:
    """Which slots of its segment's pool each row sees: those that hold the tokens of its hypothesis.

    A slot that no row sees is free. New tokens take the lowest free slots in the order of rows, so the slots of a
    segment's tokens depend on its own rows alone: not on other segments, and not on rows behind its own that continue
    the parent of one of its own rows.
    """

    def __init__(self) -> None:
        self.visible: BoolArray = np.zeros((0, 1, LENGTH_BUCKET), dtype=np.bool_)
        """[B, K, L], True where row k of segment b sees slot l; replaced, not changed, by the methods."""

        self._num_steps = 0
        self._excess_began: int | None = None  # the step since which at most half of the slots are needed

    @property
    def num_slots(self) -> int:
        """L, slots of each segment's pool, a multiple of `LENGTH_BUCKET`."""
        return int(self.visible.shape[2])

    def add_segments(self, count: int) -> None:
        """Append segments whose rows have no tokens yet."""
        _, num_rows, num_slots = self.visible.shape
        self.visible = np.concatenate([self.visible, np.zeros((count, num_rows, num_slots), dtype=np.bool_)])

    def keep_segments(self, keep: Sequence[int]) -> None:
        """Forget every segment but those given, which take that order, and slots at the end long unused by any."""
        kept = self.visible[np.asarray(keep, dtype=np.int64)]
        used = np.flatnonzero(kept.any(axis=(0, 1)))
        needed = round_up(int(used[-1]) + 1 if used.size else 0, LENGTH_BUCKET)
        self.visible = kept[:, :, : self._fitting_slots(needed) if keep else needed]

    def append(self, parents: IntArray) -> IntArray:
        """Let every row continue that of `parents` [B, K] with one more token; return the slot of each, [B, K]."""
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
        """Return what is needed, or the current number if that is little more, or has been more for a short time."""
        excess = self.num_slots - needed
        if excess < needed:
            self._excess_began = None
            return self.num_slots
        if self._excess_began is None:
            self._excess_began = self._num_steps
        is_lasting = (self._num_steps - self._excess_began) * excess >= _PATIENCE_STEPS * needed
        return needed if is_lasting else self.num_slots


class SegmentBuffers:
    """Named float arrays whose first axis is the segment; the parts of live segments are contiguous and come first.

    Values start as zeros and must stay finite: attention multiplies masked ones by zero. All arrays are in one block of
    memory; a new layout moves them to a second block and the next one back, as new memory costs more than the copy.
    """

    def __init__(
        self, names: Sequence[str], part_shape: Callable[[int], tuple[int, ...]], float_type: FloatType
    ) -> None:
        """Allocate nothing yet; `part_shape` is that of a segment's part by length (slots or source positions)."""
        self._names = tuple(names)
        self._part_shape = part_shape
        self._float_type = float_type
        self._arrays: NDArray[Any] = np.zeros((len(names), 0, *part_shape(0)), dtype=float_type)
        self._memory, self._spare = _zeros(0, float_type), _zeros(0, float_type)
        self._num_segments = 0
        self.length = 0
        """Slots or source positions of each part."""
        self.layout = 0
        """A number that changes whenever the parts move to other memory or get another shape."""

    @property
    def num_bytes(self) -> int:
        """Memory allocated, room for more segments and for the next layout included; any thread may read it."""
        return self._memory.nbytes + self._spare.nbytes

    def live(self) -> dict[str, NDArray[Any]]:
        """Return the parts of the live segments, each array contiguous; valid until the next change of size."""
        return {name: array[: self._num_segments] for name, array in zip(self._names, self._arrays, strict=True)}

    def resize(self, num_segments: int, length: int) -> None:
        """Make room for segments and parts of this size; what fits keeps its values, all else is zero."""
        capacity = self._arrays.shape[1]
        if num_segments > capacity or length != self.length:
            self._lay_out(max(capacity, round_up(num_segments, SEGMENT_BUCKET)), length, kept=num_segments)
        if num_segments > self._num_segments:
            self._arrays[:, self._num_segments : num_segments] = 0  # which another segment may have used
        self._num_segments, self.length = num_segments, length

    def fill(self, segment: int, values: NDArray[Any]) -> None:
        """Set the beginning of a live segment's parts along every axis, all of them in one array, in order of names."""
        self._arrays[:, segment][tuple(map(slice, values.shape))] = values

    def keep_segments(self, keep: Sequence[int]) -> None:
        """Move the parts of the given segments to 0, 1, ... in that order, and forget the others."""
        moved = {target: source for target, source in enumerate(keep) if target != source}
        if moved.keys().isdisjoint(moved.values()):
            for target, source in moved.items():
                self._arrays[:, target] = self._arrays[:, source]
        else:
            self._arrays[:, list(moved)] = self._arrays[:, list(moved.values())]
        self._num_segments = len(keep)

    def _lay_out(self, capacity: int, length: int, *, kept: int) -> None:
        """Move what fits of the first `kept` live parts to arrays of another shape; the rest of these parts is zero."""
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
    """Copy what fits along every axis, and set the rest of the target to zero."""
    common = tuple(slice(min(sizes)) for sizes in zip(source.shape, target.shape, strict=True))
    for axis, size in enumerate(source.shape):
        if size < target.shape[axis]:
            target[(*common[:axis], slice(size, None))] = 0
    target[common] = source[common]


def _zeros(size: int, float_type: FloatType) -> NDArray[Any]:
    """Return zeros, in huge pages where the system has them: a new page of 4 KB costs up to 10 us."""
    num_bytes = size * np.dtype(float_type).itemsize
    if num_bytes < _HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, dtype=float_type)
    memory = mmap.mmap(-1, num_bytes)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=float_type)
