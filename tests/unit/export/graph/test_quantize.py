from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from export.graph.quantize import Int8, measure_ranges, quantize_rows
from export.graph.write import GraphBuilder
from export.model.transformer import Transformer
from tests.tiny_bundle import tiny_model

_MATRICES = arrays.arrays(
    np.float32, arrays.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-1e4, 1e4, width=32)
)
_ROUNDING = 1.001
"""Division and product in float32 may add a little to half a unit."""


@given(_MATRICES)
def test_no_element_is_off_by_more_than_half_a_unit_of_its_row(matrix: np.ndarray) -> None:
    integers, factors = quantize_rows(matrix)

    error = np.abs(integers * factors[:, None] - matrix)
    assert (error <= _ROUNDING * factors[:, None] / 2).all()
    assert integers.dtype == np.int8
    assert np.abs(integers.astype(int)).max() <= 127


def test_the_largest_element_of_a_row_uses_the_whole_range() -> None:
    integers, factors = quantize_rows(np.array([[0.5, -1.0], [0.0, 4.0]], dtype=np.float32))

    assert integers.tolist() == [[64, -127], [0, 127]]
    np.testing.assert_allclose(factors, [1 / 127, 4 / 127], rtol=1e-6)


def test_a_row_of_zeros_stays_zero() -> None:
    integers, factors = quantize_rows(np.zeros((1, 3), dtype=np.float32))

    assert integers.tolist() == [[0, 0, 0]]
    assert np.isfinite(factors).all()


_PAIRS = [([5, 6, 7, 2], [8, 9, 2]), ([10, 11, 2], [12, 13, 14, 15, 2])]


@pytest.fixture(scope="module")
def model() -> Transformer:
    return tiny_model(40)


def test_there_is_a_range_for_every_projection_and_for_that_to_the_vocabulary(model: Transformer) -> None:
    ranges = measure_ranges(model, _PAIRS)

    linear = {name.removesuffix(".weight") for name in model.state_dict() if name.endswith(".weight")}
    assert set(ranges) == {name for name in linear if "norm" not in name}
    assert all(value > 0 for value in ranges.values())


def test_a_range_is_the_largest_magnitude_that_enters(model: Transformer) -> None:
    ranges = measure_ranges(model, _PAIRS)

    memories = [model.encode(torch.tensor([source]), None).detach() for source, _ in _PAIRS]
    largest = max(float(memory.abs().max()) for memory in memories)
    assert ranges["decoder.layers.0.cross_attention.key"] == pytest.approx(largest)


def test_padding_beside_other_sentences_enters_no_range(model: Transformer) -> None:
    together, alone = measure_ranges(model, _PAIRS), [measure_ranges(model, [pair]) for pair in _PAIRS]

    assert together == pytest.approx({name: max(each[name] for each in alone) for name in together}, rel=1e-5)


def test_measuring_leaves_the_model_as_it_was(model: Transformer) -> None:
    measure_ranges(model, _PAIRS)

    assert not any(module._forward_pre_hooks for module in model.modules())


_WEIGHT = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], np.float32)
_BIAS = np.array([0.25, -1.0], np.float32)
_HALF_A_STEP = 0.05
"""Of products of 8-bit numbers as large as those here."""


@pytest.mark.parametrize("rectifies", [False, True])
@pytest.mark.parametrize("ranges", [{}, {"layer": 2.0}, {"layer": 0.0}], ids=["by row", "measured", "saw zeros only"])
def test_a_product_is_nearly_that_of_floats(tmp_path: Path, *, ranges: dict[str, float], rectifies: bool) -> None:
    states = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [-0.5, 0.1, 1.9]], np.float32)

    product = _multiplied(tmp_path, Int8(ranges), states, rectifies=rectifies)

    entered = np.maximum(states, 0) if rectifies else states
    np.testing.assert_allclose(product, entered @ _WEIGHT.T + _BIAS, atol=_HALF_A_STEP)


def test_what_is_beyond_the_measured_range_is_cut_to_it(tmp_path: Path) -> None:
    states = np.array([[100.0, -100.0, 0.0]], np.float32)

    product = _multiplied(tmp_path, Int8({"layer": 2.0}), states)

    np.testing.assert_allclose(product, np.array([[2.0, -2.0, 0.0]]) @ _WEIGHT.T + _BIAS, atol=_HALF_A_STEP)


def _multiplied(folder: Path, arithmetic: Int8, states: np.ndarray, *, rectifies: bool = False) -> np.ndarray:
    graph = GraphBuilder("product")
    entered = graph.input("states", "float32", ["R", 3])
    product = arithmetic.linear(graph, entered, "layer", _WEIGHT, _BIAS, rectifies=rectifies)
    graph.output(product, "product", "float32", ["R", 2])
    ir.save(graph.build(), folder / "product.onnx")
    session = onnxruntime.InferenceSession(folder / "product.onnx", providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, {"states": states})[0]
    return result
