from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from service.errors import BundleError
from service.runtime.session import CrossAttention

_CROSS = {
    f"{kind}.{layer}": np.zeros((1, 2, 5, 4), dtype=np.float32)
    for kind in ("cross_key", "cross_value")
    for layer in range(2)
}


class FakeSession:
    """Remembers what it was fed and answers with the number of the layer."""

    def __init__(self) -> None:
        self.fed: Mapping[str, Any] = {}

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        self.fed = inputs
        shape = (1, 2, inputs["token_ids"].shape[1], 5)
        return [np.full(shape, float(name.rpartition(".")[2]), dtype=np.float32) for name in outputs]


def test_a_target_is_fed_from_bos_to_the_token_before_its_last() -> None:
    session = FakeSession()
    attention = CrossAttention(lambda: session, num_layers=2, bos_id=1)

    attention.weights([7, 8, 2], _CROSS)

    assert session.fed["token_ids"].tolist() == [[1, 7, 8]]
    assert session.fed["source_lengths"].tolist() == [5]
    assert set(session.fed) == {"token_ids", "source_lengths", "cross_key.0", "cross_value.0", "cross_key.1"}


def test_layers_come_in_order() -> None:
    weights = CrossAttention(FakeSession, num_layers=2, bos_id=1).weights([2], _CROSS)

    assert weights.shape == (2, 2, 1, 5)
    assert weights[:, 0, 0, 0].tolist() == [0, 1]


def test_nothing_is_loaded_before_it_is_asked_for_and_then_once() -> None:
    loaded: list[FakeSession] = []

    def load() -> FakeSession:
        loaded.append(FakeSession())
        return loaded[-1]

    attention = CrossAttention(load, num_layers=2, bos_id=1)
    assert not loaded

    for _ in range(3):
        attention.weights([2], _CROSS)

    assert len(loaded) == 1


def test_a_graph_that_could_not_be_loaded_is_tried_again() -> None:
    outcomes: list[FakeSession | None] = [None, FakeSession()]

    def load() -> FakeSession:
        if (session := outcomes.pop(0)) is None:
            raise BundleError("attention.int8.onnx", found="nothing", expected="a graph", what="graph")
        return session

    attention = CrossAttention(load, num_layers=2, bos_id=1)
    with pytest.raises(BundleError):
        attention.weights([2], _CROSS)

    assert attention.weights([2], _CROSS).shape == (2, 2, 1, 5)
