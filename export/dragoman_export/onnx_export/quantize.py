"""8-bit integer products: weights per output, activations with a fixed scale or one per row, sums exact.

Either way a row's result does not depend on the rows beside it, so the same text gets the same translation in any
batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_export.onnx_export.calibration import LARGEST_INTEGER, SMALLEST_SCALE, Rounding
from dragoman_export.onnx_export.write import MICROSOFT, GraphBuilder
from dragoman_service.bundle.architecture import PROJECTION_BIAS

_WEIGHT_MAX = 127
"""Largest magnitude of a quantized weight; -128 is left out to keep the range symmetric."""


def quantize_rows(matrix: FloatArray) -> tuple[NDArray[np.int8], FloatArray]:
    """Return int8 integers and the factor of each row that turns them back into (nearly) the matrix.

    Args:
        matrix: [rows, columns].

    Returns:
        Integers [rows, columns] between -127 and 127, and float32 factors [rows]; no element is off by more than
        half its row's factor.
    """
    factors = np.abs(matrix).max(axis=1).astype(np.float32) / np.float32(_WEIGHT_MAX)
    factors = np.where(factors >= SMALLEST_SCALE, factors, np.float32(1.0))
    return np.clip(np.rint(matrix / factors[:, None]), -_WEIGHT_MAX, _WEIGHT_MAX).astype(np.int8), factors


class Int8:
    """Weights as int8 with a factor an output, activations quantized to 8 bits on the fly, products summed in int32.

    An activation's scale is either fixed, if it was measured when the graph was made, or that of its own row.
    ONNX Runtime's `DynamicQuantizeMatMul` would take one scale for all rows of a batch: a translation would depend on
    its neighbours.
    """

    def __init__(self, roundings: Mapping[str, Rounding] | None = None) -> None:
        """Take what was measured.

        Args:
            roundings: of what enters a projection, by its path. One that is not there takes the scale of each row.
        """
        self._roundings = roundings or {}

    def linear(
        self,
        graph: GraphBuilder,
        states: ir.Value,
        name: str,
        weight: FloatArray,
        bias: FloatArray,
        *,
        rectifies: bool = False,
    ) -> ir.Value:
        """Multiply in int8; rectified rows get all of the 8 bits."""
        integers, factors = quantize_rows(weight)
        rounding = self._rounding(name)
        product = _Product(
            integers=graph.constant(f"{name}.weight.int8", integers.T),
            factors=graph.constant(f"{name}.weight.factors", factors),
            bias=graph.constant(f"{name}.bias", _corrected(bias, weight, integers, factors, rounding)),
            num_inputs=weight.shape[1],
            rectifies=rectifies,
        )
        return product.multiply(graph, states, rounding)

    def lookup(
        self, graph: GraphBuilder, token_ids: ir.Value, name: str, table: FloatArray, *, factor: float
    ) -> ir.Value:
        """Gather integer rows and their factors."""
        integers, factors = _stored_table(graph, name, *quantize_rows(table))
        rows = graph.op("Cast", graph.op("Gather", integers, token_ids), to=ir.DataType.FLOAT)  # [..., d_model]
        scaled = factors if factor == 1 else graph.op("Mul", factors, graph.scalar(factor))
        scales = graph.op("Gather", scaled, token_ids)  # [..., 1]
        return graph.op("Mul", rows, scales)

    def project(
        self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray, bias: FloatArray | None = None
    ) -> ir.Value:
        """Multiply by the integer table; ONNX Runtime transposes it once, when it loads the graph."""
        integers, factors = quantize_rows(table)
        rounding = self._rounding(name)
        if bias is not None:
            bias = _corrected(bias, table, integers, factors, rounding)
        stored_integers, stored_factors = _stored_table(graph, name, integers, factors)
        product = _Product(
            integers=graph.op("Transpose", stored_integers, perm=[1, 0]),
            factors=graph.op("Squeeze", stored_factors, graph.shape(1)),
            bias=None if bias is None else graph.constant(PROJECTION_BIAS, bias),
            num_inputs=table.shape[1],
        )
        return product.multiply(graph, states, rounding)

    def _rounding(self, name: str) -> Rounding | None:
        return self._roundings.get(name.removesuffix(".weight").removesuffix(".fused"))


def _stored_table(
    graph: GraphBuilder, name: str, integers: NDArray[np.int8], factors: FloatArray
) -> tuple[ir.Value, ir.Value]:
    """Return the integers [V, d_model] and factors [V, 1] of an embedding table, as they are stored."""
    return graph.constant(f"{name}.int8", integers), graph.constant(f"{name}.factors", factors[:, None])


def _corrected(
    bias: FloatArray, weight: FloatArray, integers: NDArray[np.int8], factors: FloatArray, rounding: Rounding | None
) -> FloatArray:
    """Return a bias [outputs] with which the mean of the outputs is that of the product of floats.

    Rounding weights, and activations whose largest are cut off, shifts an output's mean by what was measured (Nagel et
    al. 2019, arXiv:1906.04721, section 4.2); the bias takes it back at no cost.
    """
    if rounding is None or rounding.means is None:
        return bias
    mean, rounded_mean = rounding.means
    corrected: FloatArray = bias + weight @ mean - (integers @ rounded_mean) * factors
    return corrected


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """Activations [..., inputs] times integers [inputs, outputs] times factors [outputs], plus a bias.

    Activations are rounded to integers from 0 to 255, because the product takes unsigned ones: by row around a zero
    point of 128, rectified ones from zero up, where what is negative is cut off by the rounding itself.
    """

    integers: ir.Value
    factors: ir.Value
    num_inputs: int
    bias: ir.Value | None = None
    rectifies: bool = False

    def multiply(self, graph: GraphBuilder, states: ir.Value, rounding: Rounding | None) -> ir.Value:
        """Multiply with fixed scales if there are any."""
        return self._by_row(graph, states) if rounding is None else self._fixed(graph, states, rounding)

    @property
    def _levels(self) -> int:
        return LARGEST_INTEGER if self.rectifies else 127

    @property
    def _zero_point(self) -> int:
        return 0 if self.rectifies else 128

    def _fixed(self, graph: GraphBuilder, states: ir.Value, rounding: Rounding) -> ir.Value:
        """Multiply with one scale for all rows: two nodes in all. What is beyond the measured range is cut to it."""
        scale, zero_point = graph.scalar(rounding.scale), graph.scalar(rounding.zero_point, "uint8")
        rounded = graph.op("QuantizeLinear", states, scale, zero_point)
        return graph.op(
            "MatMulIntegerToFloat",
            *(rounded, self.integers, scale, self.factors, zero_point, None, self.bias),
            domain=MICROSOFT,
        )

    def _by_row(self, graph: GraphBuilder, states: ir.Value) -> ir.Value:
        """Multiply with a scale for each row, by which its largest magnitude becomes the largest integer.

        A row of zeros is divided by zero: whatever integers that gives, its scale of zero makes the product zero.
        """
        magnitudes = graph.op("Relu" if self.rectifies else "Abs", states)
        largest = graph.op("ReduceMax", magnitudes, graph.shape(-1), keepdims=1)  # [..., 1]
        scale = graph.op("Mul", largest, graph.scalar(1 / self._levels))
        # A block is a row: one node divides and rounds, where dividing first would be one more pass over the states.
        rounded = graph.op(
            "QuantizeLinear",
            *(states, scale, None if self.rectifies else self._zero_points(graph, scale)),
            axis=-1,
            block_size=self.num_inputs,
            output_dtype=ir.DataType.UINT8,
        )
        product = graph.op(
            "MatMulIntegerToFloat",
            *(rounded, self.integers, graph.scalar(1.0), self.factors, graph.scalar(self._zero_point, "uint8")),
            domain=MICROSOFT,
        )
        scaled = graph.op("Mul", product, scale)
        return scaled if self.bias is None else graph.op("Add", scaled, self.bias)

    def _zero_points(self, graph: GraphBuilder, scale: ir.Value) -> ir.Value:
        """Return one zero point a row, in the shape of `scale`, which is the same for all products of a graph."""
        value = ir.tensor(np.array([self._zero_point], dtype=np.uint8))
        return graph.once("zero_points", lambda: graph.op("ConstantOfShape", graph.op("Shape", scale), value=value))
