"""8-bit integer products: weights per output, activations per row, sums exact.

Quantizing activations per row and not per tensor makes a row's result independent of the rows beside it, so the
same text gets the same translation in any batch; it is also far more accurate.
"""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.graph.arithmetic import FloatArray
from export.graph.write import MICROSOFT, GraphBuilder

_WEIGHT_MAX = 127
"""Largest magnitude of a quantized weight; -128 is left out to keep the range symmetric."""

_SMALLEST_ROW_MAX = 1e-9
"""Added to the largest magnitude of a row, so that a row of zeros is divided by something."""


def quantize_rows(matrix: FloatArray) -> tuple[NDArray[np.int8], FloatArray]:
    """Return int8 integers and the factor of each row that turns them back into (nearly) the matrix.

    Args:
        matrix: [rows, columns].

    Returns:
        Integers [rows, columns] between -127 and 127, and float32 factors [rows]; no element is off by more than
        half its row's factor.
    """
    factors = np.abs(matrix).max(axis=1).astype(np.float32) / np.float32(_WEIGHT_MAX)
    factors = np.where(factors > 0, factors, np.float32(1.0))
    return np.clip(np.rint(matrix / factors[:, None]), -_WEIGHT_MAX, _WEIGHT_MAX).astype(np.int8), factors


class Int8:
    """Weights as int8, activations quantized on the fly to 8 bits a row, products summed in int32.

    ONNX Runtime's `DynamicQuantizeMatMul` would quantize activations per tensor, hence the nodes written out here.
    """

    def linear(
        self, graph: GraphBuilder, states: ir.Value, name: str, weight: FloatArray, *, is_nonnegative: bool = False
    ) -> ir.Value:
        """Multiply in int8; nonnegative rows get all of the 8 bits."""
        integers, factors = quantize_rows(weight)
        stored = graph.constant(f"{name}.int8", integers.T)
        return _product(graph, states, stored, graph.constant(f"{name}.factors", factors), is_nonnegative)

    def lookup(
        self, graph: GraphBuilder, token_ids: ir.Value, name: str, table: FloatArray, *, factor: float
    ) -> ir.Value:
        """Gather integer rows and their factors."""
        integers, factors = _stored_table(graph, name, table)
        rows = graph.op("Cast", graph.op("Gather", integers, token_ids), to=ir.DataType.FLOAT)  # [..., d_model]
        scales = graph.op("Gather", graph.op("Mul", factors, graph.scalar(factor)), token_ids)  # [..., 1]
        return graph.op("Mul", rows, scales)

    def project(self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray) -> ir.Value:
        """Multiply by the integer table; ONNX Runtime transposes it once, when it loads the graph."""
        integers, factors = _stored_table(graph, name, table)
        transposed = graph.op("Transpose", integers, perm=[1, 0])
        return _product(graph, states, transposed, graph.op("Squeeze", factors, graph.shape(1)), False)


def _stored_table(graph: GraphBuilder, name: str, table: FloatArray) -> tuple[ir.Value, ir.Value]:
    """Return the integers [V, d_model] and factors [V, 1] of an embedding table."""
    integers, factors = quantize_rows(table)
    return graph.constant(f"{name}.int8", integers), graph.constant(f"{name}.factors", factors[:, None])


def _product(
    graph: GraphBuilder, states: ir.Value, integers: ir.Value, factors: ir.Value, is_nonnegative: bool
) -> ir.Value:
    """Return states [..., inputs] times integers [inputs, outputs] times factors [outputs].

    A row x with largest magnitude m is rounded to integers x * 127 / m around a zero point of 128, because the
    product takes unsigned activations; where no element is negative, to x * 255 / m from zero up.
    """
    levels, zero_point = (255, 0) if is_nonnegative else (127, 128)
    magnitudes = states if is_nonnegative else graph.op("Abs", states)
    largest = graph.op("ReduceMax", magnitudes, graph.shape(-1), keepdims=1)  # [..., 1]
    largest = graph.op("Add", largest, graph.scalar(_SMALLEST_ROW_MAX))
    scaled = graph.op("Mul", states, graph.op("Div", graph.scalar(levels), largest))
    zero = graph.scalar(zero_point, "uint8")
    rounded = graph.op("QuantizeLinear", scaled, graph.scalar(1.0), zero)
    # The levels go into the factors, which are constant, to spare a node a product.
    per_level = graph.op("Div", factors, graph.scalar(levels))
    product = graph.op(
        "MatMulIntegerToFloat",
        *(rounded, integers, graph.scalar(1.0), per_level, zero),
        domain=MICROSOFT,
    )
    return graph.op("Mul", product, largest)
