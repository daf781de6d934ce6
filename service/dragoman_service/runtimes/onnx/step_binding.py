"""Bound inputs and outputs of decoder steps, reused while the shapes stay the same."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from dragoman_service.bundle.architecture import FloatType
from dragoman_service.decoding.step_model import BoolArray, IntArray, StepOutput
from dragoman_service.runtimes.onnx.kv_pool import HIDDEN
from dragoman_service.runtimes.onnx.step_batch import MIN_QUERIES, StepShape

_MASK = (HIDDEN, 0.0)  # added to the attention scores of hidden and of visible slots

MAX_SHAPES = 64  # maximum number of step shapes whose bindings are cached

RESULTS: Final[Mapping[str, Any]] = {"log_probs": np.float32, "candidate_ids": np.int64}
"""Names and element types of the outputs that the search reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BoundTensor:
    array: NDArray[Any]
    value: onnxruntime.OrtValue


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    binding: onnxruntime.IOBinding
    tensors: Mapping[str, _BoundTensor]  # inputs and results


class StepBinding:
    """Runs the decoder steps of one batch on the CPU; bindings are reused until the buffers move.

    ONNX Runtime reads and writes the numpy arrays directly, without copies.
    """

    def __init__(self, decoder: onnxruntime.InferenceSession, float_type: FloatType) -> None:
        self._decoder = decoder
        self._mask = np.array(_MASK, dtype=float_type)
        self._layout: Hashable = None
        self._known: dict[StepShape, _Bound] = {}
        self._shape: StepShape | None = None
        self._bound: _Bound | None = None

    def is_bound_to(self, shape: StepShape) -> bool:
        """Return whether the current binding has this shape."""
        return self._bound is not None and shape == self._shape

    def bind(
        self,
        shape: StepShape,
        *,
        layout: Hashable,
        pools: Mapping[str, NDArray[Any]],
        cross: Mapping[str, NDArray[Any]],
        source_lengths: NDArray[np.int32],
    ) -> None:
        """Bind all tensors for steps of a shape; `pools` and `cross` must not move until `release`.

        Args:
            shape: shape of the steps.
            layout: identifies addresses and shapes of `pools` and `cross`; bindings are reused while it is equal.
            pools: `self_key_pool.i` and `self_value_pool.i`, each [B, L, H * D], or `state_pool.i` [B, L, d_model];
                steps write to them.
            cross: `cross_key.i` and `cross_value.i`, each [B, H, S, D].
            source_lengths: [B]
        """
        if layout != self._layout or len(self._known) >= MAX_SHAPES:
            self._known.clear()
        if shape not in self._known:
            self._known[shape] = self._new_bound(shape, pools=pools, cross=cross)
        self._layout, self._shape, self._bound = layout, shape, self._known[shape]
        self._bound.tensors["source_lengths"].array[:] = source_lengths

    def run(
        self,
        token_ids: IntArray,
        *,
        positions: IntArray,
        parents: IntArray,
        slots: IntArray,
        visible: BoolArray | None,
    ) -> StepOutput:
        """Run one step after `bind`; the next step can overwrite the returned arrays.

        Args:
            token_ids: [B, K]
            positions: [B] number of previous tokens of each segment.
            parents: [B, K] row that each row continues.
            slots: [B, K] slot that each row writes to.
            visible: [B, K, L] slots that each row sees, including its own; None: the decoder is recurrent.
        """
        bound = self._bound
        if bound is None:
            raise RuntimeError("run() called before bind()")
        tensors = bound.tensors
        tensors["token_ids"].array[:] = token_ids
        tensors["positions"].array[:, 0] = positions
        tensors["slots"].array[:, :, 1] = slots
        if visible is None:
            tensors["parents"].array[:, :, 1] = parents
        else:
            mask = tensors["ancestor_mask"].array[:, 0]
            seen = np.broadcast_to(visible.view(np.uint8), mask.shape)  # the copy of a single row sees the same slots
            self._mask.take(seen, out=mask, mode="clip")
        self._decoder.run_with_iobinding(bound.binding)
        return StepOutput(log_probs=tensors["log_probs"].array, token_ids=tensors["candidate_ids"].array)

    def release(self) -> None:
        """Allow changes of the buffers until the next `bind`."""
        self._bound = None

    def _new_bound(
        self, shape: StepShape, *, pools: Mapping[str, NDArray[Any]], cross: Mapping[str, NDArray[Any]]
    ) -> _Bound:
        results = {name: np.zeros(shape.outputs, dtype=dtype) for name, dtype in RESULTS.items()}
        inputs = {**_own_inputs(shape, self._mask.dtype, is_recurrent="state_pool.0" in pools), **cross, **pools}
        tensors = {
            name: _BoundTensor(array=array, value=onnxruntime.OrtValue.ortvalue_from_numpy(array))
            for name, array in {**inputs, **results}.items()
        }
        binding = self._decoder.io_binding()
        for name in inputs:
            binding.bind_ortvalue_input(name, tensors[name].value)
        for name in results:
            binding.bind_ortvalue_output(name, tensors[name].value)
        for name in pools:  # written in place
            kind, layer = name.split(".")
            binding.bind_ortvalue_output(f"{kind}.written.{layer}", tensors[name].value)
        return _Bound(binding=binding, tensors=tensors)


def _own_inputs(shape: StepShape, mask_type: np.dtype[Any], *, is_recurrent: bool) -> dict[str, NDArray[Any]]:
    num_queries = max(shape.num_rows, MIN_QUERIES)
    slots = np.zeros((shape.num_segments, shape.num_rows, 2), dtype=np.int64)
    slots[:, :, 0] = np.arange(shape.num_segments)[:, None]
    if is_recurrent:
        ancestors = {"parents": slots.copy()}
    else:
        mask_shape = (shape.num_segments, 1, num_queries, shape.num_slots)
        ancestors = {"ancestor_mask": np.zeros(mask_shape, dtype=mask_type)}
    return {
        "token_ids": np.zeros((shape.num_segments, shape.num_rows), dtype=np.int64),
        "positions": np.zeros((shape.num_segments, 1), dtype=np.int64),
        "slots": slots,
        **ancestors,
        "query_rows": np.arange(num_queries) % shape.num_rows,
        "num_candidates": np.array([shape.num_candidates]),
        "source_lengths": np.zeros(shape.num_segments, dtype=np.int32),
    }
