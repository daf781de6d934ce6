"""The inputs and outputs of decoder steps, bound once for as long as their shapes last."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from service.decoding.step_model import BoolArray, IntArray, StepOutput
from service.runtime.session import Sessions

_MASK = (-3e4, 0.0)
"""Added to the attention score of a slot that a row does not see, and of one that it sees: weights become exactly 0,
where -inf could give NaN. Half precision reaches to -65,504."""

_MIN_QUERIES = 2
"""A single row attends together with a copy of itself; `export.graph.decoder` says why."""

_MAX_SHAPES = 64
"""Shapes of steps whose inputs and outputs stay bound for the next step of the same shape."""

_RESULTS = {"log_probs": np.float32, "candidate_ids": np.int64}
"""Outputs that the search reads, and their element types."""

_CHANGING = ("token_ids", "positions", "slots", "ancestor_mask")
"""Inputs that differ from step to step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """The sizes on which the shapes of a step depend."""

    num_segments: int
    """B"""

    num_rows: int
    """K"""

    num_slots: int
    """L"""

    num_candidates: int
    """C"""

    @property
    def outputs(self) -> tuple[int, int, int]:
        """B, K, C."""
        return self.num_segments, self.num_rows, self.num_candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class _BoundTensor:
    """An array and the value that ONNX Runtime uses for it."""

    array: NDArray[Any]
    value: onnxruntime.OrtValue


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """A binding for steps of one shape."""

    binding: onnxruntime.IOBinding
    tensors: Mapping[str, _BoundTensor]
    """Inputs and results by name."""


class StepBinding:
    """Runs the decoder steps of one batch; shapes stay bound as long as the buffers are not moved.

    On the CPU, ONNX Runtime reads and writes the numpy arrays themselves. On another device it works on copies, which
    `release` copies back.
    """

    def __init__(self, sessions: Sessions, decoder: onnxruntime.InferenceSession) -> None:
        """Bind nothing yet; `sessions` give device and float type of the decoder to run."""
        self._sessions = sessions
        self._decoder = decoder
        self._mask = np.array(_MASK, dtype=sessions.float_type)
        self._layout: Hashable = None
        self._known: dict[StepShape, _Bound] = {}
        self._shape: StepShape | None = None
        self._bound: _Bound | None = None
        self._pool_names: tuple[str, ...] = ()

    def fits(self, shape: StepShape) -> bool:
        """Say whether the current binding is for this shape."""
        return self._bound is not None and shape == self._shape

    def fit(
        self,
        shape: StepShape,
        *,
        layout: Hashable,
        pools: Mapping[str, NDArray[Any]],
        cross: Mapping[str, NDArray[Any]],
        source_lengths: NDArray[np.int32],
    ) -> None:
        """Bind everything for steps of a shape; `pools` and `cross` are used until `release`.

        Args:
            shape: of the steps.
            layout: changes whenever pools or cross-attention have moved or have other shapes.
            pools: `self_key_pool.i` and `self_value_pool.i`, each [B, L, H * D]; steps write to them.
            cross: `cross_key.i` and `cross_value.i`, each [B, H, S, D].
            source_lengths: [B]
        """
        if layout != self._layout or len(self._known) >= _MAX_SHAPES:
            self._known.clear()
        if shape not in self._known:
            self._known[shape] = self._bind(shape, pools=pools, cross=cross)
        self._layout, self._shape, self._bound = layout, shape, self._known[shape]
        self._pool_names = tuple(pools)
        lengths = self._bound.tensors["source_lengths"]
        lengths.array[:] = source_lengths
        if not self._sessions.shares_memory:
            lengths.value.update_inplace(lengths.array)

    def run(self, token_ids: IntArray, positions: IntArray, slots: IntArray, visible: BoolArray) -> StepOutput:
        """Take one step, after `fit`; the next one may overwrite what is returned.

        Args:
            token_ids: [B, K]
            positions: [B] tokens each segment has had.
            slots: [B, K] where each row's keys and values go.
            visible: [B, K, L] slots each row sees, its own included.
        """
        bound = self._bound
        if bound is None:
            raise RuntimeError("a step before its buffers are bound")
        tensors = bound.tensors
        tensors["token_ids"].array[:] = token_ids
        tensors["positions"].array[:, 0] = positions
        tensors["slots"].array[:, :, 1] = slots
        mask = tensors["ancestor_mask"].array[:, 0]
        seen = np.broadcast_to(visible.view(np.uint8), mask.shape)  # the copy of a single row sees the same slots
        self._mask.take(seen, out=mask, mode="clip")
        if not self._sessions.shares_memory:
            for name in _CHANGING:
                tensors[name].value.update_inplace(tensors[name].array)
        self._decoder.run_with_iobinding(bound.binding)
        if not self._sessions.shares_memory:
            for name in _RESULTS:
                tensors[name].array[:] = tensors[name].value.numpy()
        return StepOutput(log_probs=tensors["log_probs"].array, token_ids=tensors["candidate_ids"].array)

    def release(self) -> None:
        """Copy the pools back to their arrays, which may be changed until the next `fit`."""
        if self._bound is not None and not self._sessions.shares_memory:
            for name in self._pool_names:
                self._bound.tensors[name].array[:] = self._bound.tensors[name].value.numpy()
            self._known.clear()  # copies, which do not follow changes of the arrays
        self._bound = None

    def _bind(
        self, shape: StepShape, *, pools: Mapping[str, NDArray[Any]], cross: Mapping[str, NDArray[Any]]
    ) -> _Bound:
        results = {name: np.zeros(shape.outputs, dtype=dtype) for name, dtype in _RESULTS.items()}
        inputs = {**_own_inputs(shape, self._mask.dtype), **cross, **pools}
        tensors = {
            name: _BoundTensor(array=array, value=self._sessions.to_device(array))
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


def _own_inputs(shape: StepShape, mask_type: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    """Return arrays for the inputs that differ from step to step, and the inputs that depend on the shape alone."""
    num_queries = max(shape.num_rows, _MIN_QUERIES)
    slots = np.zeros((shape.num_segments, shape.num_rows, 2), dtype=np.int64)
    slots[:, :, 0] = np.arange(shape.num_segments)[:, None]
    return {
        "token_ids": np.zeros((shape.num_segments, shape.num_rows), dtype=np.int64),
        "positions": np.zeros((shape.num_segments, 1), dtype=np.int64),
        "slots": slots,
        "ancestor_mask": np.zeros((shape.num_segments, 1, num_queries, shape.num_slots), dtype=mask_type),
        "query_rows": np.arange(num_queries) % shape.num_rows,
        "num_candidates": np.array([shape.num_candidates]),
        "source_lengths": np.zeros(shape.num_segments, dtype=np.int32),
    }
