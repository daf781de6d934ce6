import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from export.graph.quantize import quantize_rows

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
