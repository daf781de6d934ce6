"""The inputs and outputs of decoder steps, bound once for as long as their shapes last."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.decoding.step_model import FloatArray, IntArray, StepOutput
from service.runtime.kv_pool import BoolArray
from service.runtime.session import Sessions

_HIDDEN = np.float32(-1e9)
"""Added to an attention score to hide a slot: its weight becomes exactly 0, where -inf could make NaN."""

_MIN_QUERIES = 2
"""A lone row attends together with a copy of itself; the decoder graph says why."""


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


class StepBinding:
    """Runs decoder steps of one shape.

    On the CPU, ONNX Runtime reads and writes the numpy arrays themselves. On another device it works on copies, which
    `release` brings back.
    """

    def __init__(
        self,
        sessions: Sessions,
        shape: StepShape,
        *,
        pools: Mapping[str, FloatArray],
        cross: Mapping[str, FloatArray],
        source_lengths: NDArray[np.int32],
    ) -> None:
        """Bind everything; `pools`, `cross` and `source_lengths` must not be touched until `release`.

        Args:
            sessions: whose decoder is run.
            shape: of the steps.
            pools: `self_key_pool.i` and `self_value_pool.i`, each [B, L, H * D]; steps write to them.
            cross: `cross_key.i` and `cross_value.i`, each [B, H, S, D].
            source_lengths: [B]
        """
        self.shape = shape
        self._sessions = sessions
        self._pools = pools
        self._changing = _changing_inputs(shape)
        fixed: dict[str, NDArray[Any]] = {
            "query_rows": np.arange(max(shape.num_rows, _MIN_QUERIES)) % shape.num_rows,
            "num_candidates": np.array([shape.num_candidates]),
            "source_lengths": source_lengths,
        }
        inputs = {**self._changing, **fixed, **pools, **cross}
        self._values = {name: sessions.to_device(array) for name, array in inputs.items()}
        self._log_probs = sessions.to_device(np.zeros(shape.outputs, dtype=np.float32))
        self._candidate_ids = sessions.to_device(np.zeros(shape.outputs, dtype=np.int64))
        self._binding = self._bind()

    def run(self, token_ids: IntArray, positions: IntArray, slots: IntArray, visible: BoolArray) -> StepOutput:
        """Take one step.

        Args:
            token_ids: [B, K]
            positions: [B] tokens each segment has had.
            slots: [B, K] where each row's keys and values go.
            visible: [B, K, L] slots each row sees, its own included.
        """
        inputs = self._changing
        inputs["token_ids"][:] = token_ids
        inputs["positions"][:, 0] = positions
        inputs["slots"][:, :, 1] = slots
        np.multiply(~visible, _HIDDEN, out=inputs["ancestor_mask"][:, 0])  # the twin of a lone row sees as much as it
        if not self._sessions.shares_memory:
            for name, array in inputs.items():
                self._values[name].update_inplace(array)
        self._sessions.decoder.run_with_iobinding(self._binding)
        # Copies, as the next step overwrites what is bound.
        return StepOutput(log_probs=self._log_probs.numpy().copy(), token_ids=self._candidate_ids.numpy().copy())

    def release(self) -> None:
        """Bring the pools back to the arrays given; no step may follow."""
        if not self._sessions.shares_memory:
            for name, array in self._pools.items():
                array[:] = self._values[name].numpy()

    def _bind(self) -> Any:
        binding = self._sessions.decoder.io_binding()
        for name, value in self._values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("log_probs", self._log_probs)
        binding.bind_ortvalue_output("candidate_ids", self._candidate_ids)
        for name in self._pools:  # written where they are read: nothing is copied
            kind, layer = name.split(".")
            binding.bind_ortvalue_output(f"{kind}.written.{layer}", self._values[name])
        return binding


def _changing_inputs(shape: StepShape) -> dict[str, NDArray[Any]]:
    """Return room for the inputs that differ from step to step."""
    num_queries = max(shape.num_rows, _MIN_QUERIES)
    slots = np.zeros((shape.num_segments, shape.num_rows, 2), dtype=np.int64)
    slots[:, :, 0] = np.arange(shape.num_segments)[:, None]
    return {
        "token_ids": np.zeros((shape.num_segments, shape.num_rows), dtype=np.int64),
        "positions": np.zeros((shape.num_segments, 1), dtype=np.int64),
        "slots": slots,
        "ancestor_mask": np.zeros((shape.num_segments, 1, num_queries, shape.num_slots), dtype=np.float32),
    }
