"""Running batch on a device: keys, values and masks stay in device memory from encoding to the last step.

Numbers of segments, slots and source positions are rounded up to buckets. Within a bucket, bindings and addresses do
not change. Padding segments are computed like others, and their results are ignored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from dragoman_service.decoding.step_model import EncodedSource, FloatArray, IntArray, StepOutput
from dragoman_service.runtimes.onnx.kv_pool import LENGTH_BUCKET, SEGMENT_BUCKET, fitting_length, round_up
from dragoman_service.runtimes.onnx.session import Sessions
from dragoman_service.runtimes.onnx.step_batch import MIN_QUERIES, CachingBatch, StepShape
from dragoman_service.runtimes.onnx.step_binding import MAX_SHAPES, RESULTS
from dragoman_service.runtimes.onnx_cuda.cuda_graphs import GraphCaptures, StepGraph
from dragoman_service.runtimes.onnx_cuda.device import BoundGraph, DeviceArray, DeviceMemory, DeviceSource, HostArray

_NEW = -1  # former index of a segment that was not in the previous step

KEPT_LENGTHS: Final = 8
"""Maximum number of lengths whose buffers stay allocated with CUDA graphs, which require constant addresses."""


def bucket_of_segments(count: int) -> int:
    """Round a number of segments up to a bucket: a power of 2 up to 8, then a multiple of 8."""
    return 1 << (count - 1).bit_length() if count <= SEGMENT_BUCKET else round_up(count, SEGMENT_BUCKET)


class DeviceBuffers:
    """Named arrays with one part per segment, in one array [N, capacity + 1, ...] on a device.

    The last part is always zero. Parts of new segments are initialized from it, so that values of former segments, such
    as infinity, do not affect them.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        names: Sequence[str],
        part_shape: Callable[[int], tuple[int, ...]],
        *,
        axis: int,
        num_kept: int = 1,
    ) -> None:
        """Initialize without memory; `axis` is the axis of the length in a part.

        Arrays of the last `num_kept` lengths are kept, so that a length that was used before gets the same addresses.
        """
        self._memory = memory
        self._names = tuple(names)
        self._part_shape = part_shape
        self._axis = 2 + axis
        self._capacity = 0
        self._num_kept, self._num_layouts = num_kept, 0
        self._kept: tuple[tuple[int, DeviceArray], ...] = ()  # layout and array, the current one last
        self.length = 0  # slots or source positions of each part

    @property
    def layout(self) -> int:
        """Number that identifies addresses and shapes of the parts; an equal number means equal addresses."""
        return self._kept[-1][0] if self._kept else 0

    @property
    def layouts(self) -> frozenset[int]:
        """Layouts that can be used again."""
        return frozenset(layout for layout, _ in self._kept)

    @property
    def num_bytes(self) -> int:
        """Allocated memory, including spare capacity; any thread can read it."""
        return sum(array.num_bytes for _, array in self._kept)

    @property
    def array(self) -> DeviceArray:
        """The current array; raises RuntimeError before the first `arrange`."""
        if not self._kept:
            raise RuntimeError("array used before arrange()")
        return self._kept[-1][1]

    def parts(self, count: int) -> dict[str, DeviceArray]:
        """Return the parts of the first `count` segments by name, [count, ...]; valid until `layout` changes."""
        shape = (count, *self._part_shape(self.length))
        return {name: self.array.part(shape, index=(index,)) for index, name in enumerate(self._names)}

    def parts_of(self, source: DeviceSource) -> dict[str, DeviceArray]:
        """Return the parts of one source, [1, ...] each, of any length."""
        shape = (1, *source.group.shape[2:])
        return {name: source.group.part(shape, index=(place, source.index)) for place, name in enumerate(self._names)}

    def arrange(self, former: Mapping[int, int], *, num_segments: int, length: int) -> None:
        """Move the parts to their new segments, set the parts of new segments to zero, and resize to `length`.

        `former` maps each segment to its former index, or -1 for a new segment. The capacity is at least
        `num_segments`; parts of segments that are not in `former` have arbitrary values.
        """
        if num_segments > self._capacity or length != self.length:
            self._lay_out(former, capacity=max(num_segments, self._capacity), length=length)
            return
        zero = self._capacity
        if moved := {i: zero if before == _NEW else before for i, before in former.items() if i != before}:
            self._memory.write(self.array, self.array, moved, axis=self._axis)

    def place(self, group: DeviceArray, segments: Mapping[int, int]) -> None:
        """Copy parts of an array [N, B, ...] of any length; `segments` maps each target segment to its part in B."""
        self._memory.write(self.array, group, segments, axis=self._axis)

    def _lay_out(self, former: Mapping[int, int], *, capacity: int, length: int) -> None:
        kept = self._kept if capacity == self._capacity else ()
        layout, array = next(((key, other) for key, other in kept if other.shape[self._axis] == length), (0, None))
        taken = {index: before for index, before in former.items() if before != _NEW}
        if array is None:
            array = self._memory.zeros((len(self._names), capacity + 1, *self._part_shape(length)))
            self._num_layouts = layout = self._num_layouts + 1
        else:  # new segments must not get old values of the array
            taken = {index: self._capacity if before == _NEW else before for index, before in former.items()}
        if taken:
            self._memory.write(array, self.array, taken, axis=self._axis)
        others = (entry for entry in kept if entry[0] != layout)
        self._kept = (*others, (layout, array))[-self._num_kept :]
        self._capacity, self.length = capacity, length


class DeviceStepBatch(CachingBatch[DeviceBuffers]):
    """Caches and bindings of one running batch on a device; not safe for concurrent use."""

    def __init__(self, sessions: Sessions, memory: DeviceMemory) -> None:
        captures = sessions.graph_captures
        num_kept = KEPT_LENGTHS if captures else 1
        super().__init__(
            sessions,
            lambda names, part_shape, axis: DeviceBuffers(memory, names, part_shape, axis=axis, num_kept=num_kept),
        )
        self._memory = memory
        self._former: list[int] = []  # index of each segment in the previous step
        self._joining: list[DeviceSource | None] = []  # encoder output of each segment that was not in a step yet
        self._steps = _DeviceSteps(memory, sessions.opened("decoder"), captures)

    def start(self, sources: Sequence[EncodedSource]) -> None:
        """Append new segments, in order."""
        super().start(sources)
        self._former += [_NEW] * len(sources)
        self._joining += [source.cross for source in sources]

    def drop(self, keep: Sequence[int]) -> None:
        """Keep only the segments at the given indices, which become 0, 1, ... in the given order."""
        super().drop(keep)
        self._former = [self._former[index] for index in keep]
        self._joining = [self._joining[index] for index in keep]

    def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
        """Append one token to each row and return the next candidates with their log-probabilities."""
        parents = self._continued(parents)
        slots = self._slots.append(parents)
        shape = self._shape(bucket_of_segments(self.num_segments), token_ids.shape[1], num_candidates)
        former = np.array(self._former)
        self._arrange(shape.num_segments)
        self._steps.bind(shape, pools=self._pools, cross=self._cross)
        output = self._steps.run(
            token_ids,
            positions=self._positions,
            source_lengths=self._source_lengths,
            former=former,
            parents=parents,
            slots=slots,
        )
        self._positions += 1
        return output

    def cross_attention(self, segment: int, target_ids: Sequence[int]) -> FloatArray:
        """Implement `StepBatch.cross_attention`; raises BundleError if the bundle has no attention graph."""
        attention = self._sessions.opened_attention()
        source = self._joining[segment] or DeviceSource(group=self._cross.array, index=self._former[segment])
        return attention.weights_on_device(
            self._memory,
            target_ids,
            self._cross.parts_of(source),
            num_heads=self._sessions.bundle.manifest.architecture.num_heads,
            source_length=int(self._source_lengths[segment]),
        )

    def _arrange(self, num_segments: int) -> None:
        # Reorders the caches of present segments and copies the encoder output of new segments to the caches.
        former = dict(enumerate(self._former))
        self._pools.arrange(former, num_segments=num_segments, length=self._slots.num_slots)
        present = {index: before for index, before in former.items() if before != _NEW}
        longest = round_up(int(self._source_lengths.max()), LENGTH_BUCKET)
        length = fitting_length(self._cross.length, longest)
        self._cross.arrange(present, num_segments=num_segments, length=length)
        groups: dict[int, tuple[DeviceArray, dict[int, int]]] = {}
        for segment, source in enumerate(self._joining):
            if source is not None:
                groups.setdefault(source.group.address, (source.group, {}))[1][segment] = source.index
        for group, segments in groups.values():
            self._cross.place(group, segments)
        self._former, self._joining = list(range(self.num_segments)), [None] * self.num_segments


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _BoundStep:
    shape: StepShape
    update: "_Update"
    arrays: dict[str, DeviceArray]  # the uploaded array and the results
    on_host: dict[str, HostArray]  # the downloaded results
    mask: DeviceArray  # [B * Q, L]
    advance: BoundGraph
    decode: BoundGraph | StepGraph


class _DeviceSteps:
    # Runs decoder steps on a device. Each step uploads one small array and downloads candidates and log-probabilities.

    def __init__(
        self, memory: DeviceMemory, decoder: onnxruntime.InferenceSession, captures: GraphCaptures | None
    ) -> None:
        self._memory, self._decoder, self._captures = memory, decoder, captures
        self._known: dict[tuple[int, int, StepShape], _BoundStep] = {}
        self._bound: _BoundStep | None = None
        self._mask: DeviceArray | None = None  # of the previous step, with `_num_queries` rows per segment
        self._num_queries = 0

    def bind(self, shape: StepShape, *, pools: DeviceBuffers, cross: DeviceBuffers) -> None:
        key = pools.layout, cross.layout, shape
        if key not in self._known:
            stale = [old for old in self._known if not (old[0] in pools.layouts and old[1] in cross.layouts)]
            for old in list(self._known) if len(self._known) >= MAX_SHAPES else stale:
                del self._known[old]
            self._known[key] = self._new_bound(shape, pools, cross)
        self._bound = self._known[key]

    def run(
        self,
        token_ids: IntArray,
        *,
        positions: IntArray,
        source_lengths: NDArray[np.int32],
        former: IntArray,
        parents: IntArray,
        slots: IntArray,
    ) -> StepOutput:
        # Arguments are as in `StepBinding.run`. `former` [B]: index of each segment in the previous step, -1 if it is
        # new. `parents` [B, K]: row of the segment in the previous step that each row continues.
        bound = self._bound
        if bound is None:
            raise RuntimeError("run() called before bind()")
        count = len(token_ids)
        rows = former[:, None] * self._num_queries + parents
        bound.update.fill(source_lengths, positions, token_ids, np.where(former[:, None] == _NEW, _NEW, rows), slots)
        self._memory.upload(bound.update.array, to=bound.arrays["update"])
        bound.advance.set_previous(self._mask or bound.mask, bound.shape.num_slots)
        bound.advance.run()
        bound.decode.run()
        self._mask, self._num_queries = bound.mask, len(bound.update.queries)
        log_probs, candidate_ids = (
            self._memory.download(bound.arrays[name], to=bound.on_host[name])[:count] for name in RESULTS
        )
        return StepOutput(log_probs=log_probs, token_ids=candidate_ids)

    def _new_bound(self, shape: StepShape, pools: DeviceBuffers, cross: DeviceBuffers) -> _BoundStep:
        memory, (num_segments, num_rows, _) = self._memory, shape.outputs
        update = _Update(memory, num_segments, num_rows)
        num_queries = len(update.queries)
        advanced_shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "token_ids": ((num_segments, num_rows), np.int64),
            "positions": ((num_segments, 1), np.int64),
            "row_slots": ((num_segments, 2 * num_rows), np.int64),
            "source_lengths": ((num_segments, 1), np.int32),
            "ancestor_mask": ((num_segments, num_queries, shape.num_slots), memory.float_type),
        }
        advanced = {name: memory.empty(*array) for name, array in advanced_shapes.items()}
        results = {name: memory.empty(shape.outputs, dtype) for name, dtype in RESULTS.items()}
        advance_inputs = {
            "update": memory.empty(update.array.shape, update.array.dtype),
            "slots": memory.upload(np.arange(shape.num_slots)),
        }
        pool_parts = pools.parts(num_segments)
        inputs = {
            "query_rows": memory.upload(update.queries),
            "token_ids": advanced["token_ids"],
            "positions": advanced["positions"],
            "slots": advanced["row_slots"].part((num_segments, num_rows, 2)),
            "source_lengths": advanced["source_lengths"].part((num_segments,)),
            "ancestor_mask": advanced["ancestor_mask"].part((num_segments, 1, num_queries, shape.num_slots)),
            **pool_parts,
            **cross.parts(num_segments),
        }
        written = {name.replace(".", ".written."): array for name, array in pool_parts.items()}
        decode = memory.bind(self._decoder, inputs, {**results, **written})
        decode.set_sizes("num_candidates", [shape.num_candidates])
        read_log_probs = partial(memory.download, results["log_probs"])
        return _BoundStep(
            shape=shape,
            update=update,
            arrays={**results, **advance_inputs},
            on_host={name: memory.host_array(shape.outputs, dtype) for name, dtype in RESULTS.items()},
            mask=advanced["ancestor_mask"].part((num_segments * num_queries, shape.num_slots)),
            advance=memory.bind_advance(advance_inputs, advanced, widths=update.widths),
            decode=self._captures.new_graph(decode, read_log_probs) if self._captures else decode,
        )


class _Update:
    # The array that is uploaded for a step, see `advance_graph`. A padding segment has a source of one token and does
    # not continue a row.

    def __init__(self, memory: DeviceMemory, num_segments: int, num_rows: int) -> None:
        self.queries = np.arange(max(num_rows, MIN_QUERIES)) % num_rows  # [Q] row of each query
        num_queries = len(self.queries)
        self.widths = (1, 1, num_rows, num_queries, num_queries, 2 * num_rows)
        self._on_host = memory.host_array((num_segments, sum(self.widths)), np.int32)
        self.array = self._on_host.array  # [B, W]
        *self._parts, pairs = np.split(self.array, np.cumsum(self.widths)[:-1], axis=1)  # views
        self._pairs = pairs.reshape(num_segments, num_rows, 2)
        self._pairs[:, :, 0] = np.arange(num_segments)[:, None]
        self._pairs[:, :, 1] = np.arange(num_rows)

    def fill(
        self,
        source_lengths: NDArray[np.int32],
        positions: IntArray,
        token_ids: IntArray,
        rows: IntArray,
        slots: IntArray,
    ) -> None:
        # `rows` [B, K] are the continued rows of the previous mask; for the others see `_DeviceSteps.run`.
        count = len(token_ids)
        lengths, _, _, continued, _ = self._parts
        lengths[count:], continued[count:] = 1, _NEW
        lone: tuple[NDArray[Any], ...] = (source_lengths[:, None], positions[:, None])
        values = (*lone, token_ids, rows[:, self.queries], slots[:, self.queries])
        for part, value in zip(self._parts, values, strict=True):
            part[:count] = value
        self._pairs[:count, :, 1] = slots
