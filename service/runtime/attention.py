"""The attention graph of a model: loaded once, shared by all threads."""

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnxruntime

from service.bundle import layer_names
from service.decoding.step_model import FloatArray


class CrossAttention:
    """Tells with which weights given targets were chosen."""

    def __init__(self, load: Callable[[], onnxruntime.InferenceSession], *, num_layers: int, bos_id: int) -> None:
        """Load nothing yet.

        Args:
            load: opens the graph; called once, or again after it failed.
            num_layers: of the decoder.
            bos_id: token that every target begins with.
        """
        self._load = load
        self._outputs = layer_names(("cross_attention",), num_layers)
        self._inputs = layer_names(("cross_key", "cross_value"), num_layers)[:-1]
        self._bos_id = bos_id
        self._lock = threading.Lock()
        self._session: onnxruntime.InferenceSession | None = None

    def open(self) -> None:
        """Load the graph now, not when first asked: by then the directory of the bundle may be gone.

        Raises:
            BundleError: as `weights`.
        """
        self._opened()

    def weights(self, target_ids: Sequence[int], cross: Mapping[str, FloatArray]) -> FloatArray:
        """Return the weights with which the tokens of one target look at its source.

        Args:
            target_ids: T token ids, at least one, BOS not stored.
            cross: `cross_key.i` and `cross_value.i` [1, H, S, D] of every decoder layer, without padding.

        Returns:
            [L, H, T, S]

        Raises:
            BundleError: if the bundle has no attention graph, or one that does not fit the manifest.
        """
        cross_inputs = {name: cross[name] for name in self._inputs}
        inputs = {
            "token_ids": np.array([[self._bos_id, *target_ids[:-1]]], dtype=np.int64),
            "source_lengths": np.array([cross_inputs["cross_key.0"].shape[2]], dtype=np.int32),
            **cross_inputs,
        }
        return np.concatenate(self._opened().run(self._outputs, inputs))

    def _opened(self) -> onnxruntime.InferenceSession:
        with self._lock:
            if self._session is None:
                self._session = self._load()
            return self._session
