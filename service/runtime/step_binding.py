"""The inputs and outputs of decoder steps, bound once for as long as their shapes last."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from service.decoding.step_model import IntArray, StepOutput
from service.runtime.kv_pool import BoolArray
from service.runtime.session import Sessions

_MASK = (-3e4, 0.0)
"""What is added to the attention score of a slot that a row does not see, and of one that it sees: a weight becomes
exactly 0, where -inf could make NaN. Half precision reaches to -65,504."""

_MIN_QUERIES = 2
"""A lone row attends together with a copy of itself; the decoder graph says why."""


_MAX_SHAPES = 64
"""Shapes of steps whose inputs and outputs are kept for the next step that has them."""

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
    """An array and what ONNX Runtime was given for it."""

    array: NDArray[Any]
    value: onnxruntime.OrtValue

    def starts_with(self, array: NDArray[Any]) -> bool:
        """Say whether an array begins where this one does."""
        return bool(self.array.__array_interface__["data"] == array.__array_interface__["data"])

    def upload(self) -> None:
        """Copy the array to the device."""
        self.value.update_inplace(self.array)

    def download(self) -> None:
        """Copy the device's values into the array."""
        self.array[:] = self.value.numpy()


class StepBinding:
    """Runs the decoder steps of one batch; what a step needs stays bound for as long as it lies where it did.

    On the CPU, ONNX Runtime reads and writes the numpy arrays themselves. On another device it works on copies, which
    `release` brings back.
    """

    def __init__(self, sessions: Sessions, decoder: onnxruntime.InferenceSession) -> None:
        """Bind nothing yet.

        Args:
            sessions: say where arrays go.
            decoder: is run.
        """
        self._sessions = sessions
        self._decoder = decoder
        self._mask = np.array(_MASK, dtype=sessions.float_type)
        self._binding = decoder.io_binding()
        self._shape: StepShape | None = None
        self._bound: dict[str, _BoundTensor] = {}
        self._own: dict[StepShape, dict[str, _BoundTensor]] = {}
        self._known: dict[str, dict[tuple[int, ...], _BoundTensor]] = {}
        self._pool_names: tuple[str, ...] = ()
        self._is_fitted = False

    def fits(self, shape: StepShape) -> bool:
        """Say whether a step of this shape can be run as things are bound."""
        return self._is_fitted and shape == self._shape

    def fit(
        self,
        shape: StepShape,
        *,
        pools: Mapping[str, NDArray[Any]],
        cross: Mapping[str, NDArray[Any]],
        source_lengths: NDArray[np.int32],
    ) -> None:
        """Bind everything for steps of a shape; `pools`, `cross` and `source_lengths` are used until `release`.

        Args:
            shape: of the steps.
            pools: `self_key_pool.i` and `self_value_pool.i`, each [B, L, H * D]; steps write to them.
            cross: `cross_key.i` and `cross_value.i`, each [B, H, S, D].
            source_lengths: [B]
        """
        self._bind_own(shape)
        for name, array in {**cross, "source_lengths": source_lengths}.items():
            self._bind_input(name, self._given(name, array))
        for name, array in pools.items():
            tensor = self._given(name, array)
            if self._bind_input(name, tensor):  # written where it is read: nothing is copied
                kind, layer = name.split(".")
                self._binding.bind_ortvalue_output(f"{kind}.written.{layer}", tensor.value)
        self._pool_names = tuple(pools)
        self._is_fitted = True

    def run(self, token_ids: IntArray, positions: IntArray, slots: IntArray, visible: BoolArray) -> StepOutput:
        """Take one step.

        Args:
            token_ids: [B, K]
            positions: [B] tokens each segment has had.
            slots: [B, K] where each row's keys and values go.
            visible: [B, K, L] slots each row sees, its own included.

        Returns:
            Arrays that the next step may overwrite.
        """
        bound = self._bound
        bound["token_ids"].array[:] = token_ids
        bound["positions"].array[:, 0] = positions
        bound["slots"].array[:, :, 1] = slots
        mask = bound["ancestor_mask"].array[:, 0]
        seen = np.broadcast_to(visible.view(np.uint8), mask.shape)  # the twin of a lone row sees as much as it
        self._mask.take(seen, out=mask, mode="clip")
        if not self._sessions.shares_memory:
            for name in _CHANGING:
                bound[name].upload()
        self._decoder.run_with_iobinding(self._binding)
        return StepOutput(log_probs=self._result("log_probs"), token_ids=self._result("candidate_ids"))

    def release(self) -> None:
        """Bring the pools back to the arrays given; they may change now; `fit` comes before a step."""
        self._is_fitted = False
        if self._sessions.shares_memory:
            return
        for name in self._pool_names:
            self._bound[name].download()
        self._bound, self._known, self._pool_names = {}, {}, ()  # copies: what changes meanwhile is not in them

    def _bind_own(self, shape: StepShape) -> None:
        """Bind what only the shape decides; what was made for a shape is kept for the next step that has it."""
        if shape not in self._own:
            if len(self._own) >= _MAX_SHAPES:
                self._own.clear()
            self._own[shape] = {name: self._tensor(array) for name, array in self._own_arrays(shape).items()}
        for name, tensor in self._own[shape].items():
            if name in _RESULTS:
                self._bound[name] = tensor
                self._binding.bind_ortvalue_output(name, tensor.value)
            else:
                self._bind_input(name, tensor)
        self._shape = shape

    def _own_arrays(self, shape: StepShape) -> dict[str, NDArray[Any]]:
        results = {name: np.zeros(shape.outputs, dtype=dtype) for name, dtype in _RESULTS.items()}
        return {**_own_inputs(shape, self._mask.dtype), **results}

    def _given(self, name: str, array: NDArray[Any]) -> _BoundTensor:
        """Return an array with its value, the one made before if it is the same memory in the same shape."""
        known = self._known.setdefault(name, {})
        tensor = known.get(array.shape)
        if tensor is None or not tensor.starts_with(array):
            if any(not other.starts_with(array) for other in known.values()):
                known.clear()  # the buffer has moved: nobody else shall keep the old one
            tensor = known[array.shape] = self._tensor(array)
        return tensor

    def _tensor(self, array: NDArray[Any]) -> _BoundTensor:
        return _BoundTensor(array=array, value=self._sessions.to_device(array))

    def _bind_input(self, name: str, tensor: _BoundTensor) -> bool:
        """Bind an input, unless it is what is bound already; return whether it was not."""
        if self._bound.get(name) is tensor:
            return False
        self._bound[name] = tensor
        self._binding.bind_ortvalue_input(name, tensor.value)
        return True

    def _result(self, name: str) -> NDArray[Any]:
        tensor = self._bound[name]
        return tensor.array if self._sessions.shares_memory else tensor.value.numpy()


def _own_inputs(shape: StepShape, mask_type: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    """Return room for the inputs that differ from step to step, and those that only the shape decides."""
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
    }
