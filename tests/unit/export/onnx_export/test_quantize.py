from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dragoman_export.onnx_export.arithmetic import Weights
from dragoman_export.onnx_export.quantize import Int8, Rounding, limit_sums, quantize_rows
from dragoman_export.onnx_export.write import GraphBuilder

_MATRICES = arrays.arrays(
    np.float32, arrays.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-1e4, 1e4, width=32)
)
_ROUNDING = 1.001  # Division and product in float32 may add a little to half a unit.


@given(_MATRICES)
def test_quantization_error_is_at_most_half_a_unit(matrix: np.ndarray) -> None:
    integers, factors = quantize_rows(matrix)

    error = np.abs(integers * factors[:, None] - matrix)
    assert (error <= _ROUNDING * factors[:, None] / 2).all()
    assert integers.dtype == np.int8
    assert np.abs(integers.astype(int)).max() <= 127


def test_largest_element_uses_the_whole_range() -> None:
    integers, factors = quantize_rows(np.array([[0.5, -1.0], [0.0, 4.0], [0.0, 0.0]], dtype=np.float32))

    assert integers.tolist() == [[64, -127], [0, 127], [0, 0]]
    np.testing.assert_allclose(factors[:2], [1 / 127, 4 / 127], rtol=1e-6)
    assert np.isfinite(factors).all()


@given(arrays.arrays(np.int8, st.tuples(st.integers(1, 4), st.integers(1, 20)), elements=st.integers(-127, 127)))
def test_sums_of_limited_weights_fit_into_16_bits(integers: np.ndarray) -> None:
    limited = limit_sums(integers)

    padded = np.pad(limited.astype(int), ((0, 0), (0, -limited.shape[1] % 8)))
    for group in ([0, 1, 4, 5], [2, 3, 6, 7]):
        weights = padded.reshape(len(padded), -1, 8)[:, :, group]
        for sign in (1, -1):
            assert (127 * np.maximum(sign * weights, 0).sum(axis=2) < 2**15).all()
    assert (np.abs(limited).max(axis=1) == np.abs(integers).max(axis=1)).all()
    assert (np.abs(limited) <= np.abs(integers)).all()
    assert (limited.astype(int) * integers >= 0).all()
    assert (limit_sums(limited) == limited).all()


def test_weights_with_small_sums_are_not_changed() -> None:
    weights = np.array([[127, 127, 127, 127, 4, 0, 4, 0], [64, -127, 64, -127, 64, -4, 64, -127]], np.int8)

    assert (limit_sums(weights) == weights).all()


_WEIGHT = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], np.float32)
_BIAS = np.array([0.25, -1.0], np.float32)
_HALF_A_STEP = 0.05  # Of products of 8-bit numbers as large as those here.


@pytest.mark.parametrize("rectifies", [False, True])
@pytest.mark.parametrize("is_measured", [False, True], ids=["by row", "measured"])
def test_product_is_close_to_floats(tmp_path: Path, *, is_measured: bool, rectifies: bool) -> None:
    rounding = Rounding(scale=2 / 255, zero_point=0) if rectifies else Rounding(scale=2 / 127, zero_point=128)
    states = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [-0.5, 0.1, 1.9]], np.float32)

    product = _multiplied(tmp_path, Int8({"layer": rounding} if is_measured else {}), states, rectifies=rectifies)

    entered = np.maximum(states, 0) if rectifies else states
    np.testing.assert_allclose(product, entered @ _WEIGHT.T + _BIAS, atol=_HALF_A_STEP)


@pytest.mark.parametrize(
    "rounding", [Rounding(scale=2 / 127, zero_point=128), Rounding(scale=2 / 63, zero_point=64, levels=127)]
)
def test_values_outside_the_range_are_clipped(tmp_path: Path, rounding: Rounding) -> None:
    states = np.array([[100.0, -100.0, 0.0]], np.float32)

    product = _multiplied(tmp_path, Int8({"layer": rounding}), states)

    np.testing.assert_allclose(product, np.array([[2.0, -2.0, 0.0]]) @ _WEIGHT.T + _BIAS, atol=2 * _HALF_A_STEP)


def test_bias_corrects_the_mean(tmp_path: Path) -> None:
    states = np.random.default_rng(1).exponential(size=(200, 3)).astype(np.float32)
    means = states.mean(axis=0), np.minimum(states, 1.0).mean(axis=0)
    cut = Rounding(scale=1 / 255, zero_point=0, means=means)

    product = _multiplied(tmp_path, Int8({"layer": cut}), states)

    np.testing.assert_allclose(product.mean(axis=0), (states @ _WEIGHT.T + _BIAS).mean(axis=0), atol=_HALF_A_STEP / 5)


def _multiplied(folder: Path, arithmetic: Int8, states: np.ndarray, *, rectifies: bool = False) -> np.ndarray:
    graph = GraphBuilder("product")
    entered = graph.input("states", "float32", ["R", 3])
    product = arithmetic.linear(graph, entered, Weights("layer", _WEIGHT, _BIAS), rectifies=rectifies)
    graph.output(product, "product", "float32", ["R", 2])
    ir.save(graph.build(), folder / "product.onnx")
    session = onnxruntime.InferenceSession(folder / "product.onnx", providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, {"states": states})[0]
    return result
