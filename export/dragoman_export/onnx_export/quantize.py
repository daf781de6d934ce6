"""8-bit integer products, and mixed precision.

Weights have one scale per output, activations a fixed scale or one per row.

The result of a row does not depend on other rows, so a text has the same translation in any batch.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman_export.onnx_export.arithmetic import Arithmetic, FloatArray, Weights
from dragoman_export.onnx_export.blocks import EMBEDDING, PROJECTION, SOURCE_EMBEDDING
from dragoman_export.onnx_export.write import MICROSOFT, GraphBuilder
from dragoman_service.bundle.architecture import PROJECTION_BIAS

# smaller scales, as of all-zero states, are subnormal and count as zero
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
_WEIGHT_MAX = 127  # largest magnitude of a quantized weight; -128 is unused to keep the range symmetric
_SEVEN_BITS = 127  # `Rounding.levels`
_MAX_GROUP_SUM = (2**15 - 1) // 127  # largest sum of weights whose products with 7-bit activations fit into 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """Quantization of the input of a product: x / scale + zero_point, to nearest even, clipped to 0 to `levels`."""

    scale: float
    zero_point: int
    levels: Literal[127, 255] = 255  # CPUs without VNNI multiply integers up to 127 faster
    # of the input and of its quantized values, each [inputs], over the calibration text; None: unknown, as of an
    # imported bundle
    means: tuple[FloatArray, FloatArray] | None = None


def quantize_rows(matrix: FloatArray) -> tuple[NDArray[np.int8], FloatArray]:
    """Return int8 rows [rows, columns] from -127 to 127 of a matrix and float32 factors [rows].

    The error of an element is at most half the factor of its row.
    """
    factors = np.abs(matrix).max(axis=1).astype(np.float32) / np.float32(_WEIGHT_MAX)
    factors = np.where(factors >= SMALLEST_SCALE, factors, np.float32(1.0))
    return np.clip(np.rint(matrix / factors[:, None]), -_WEIGHT_MAX, _WEIGHT_MAX).astype(np.int8), factors


def limit_sums(integers: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return int8 weights [outputs, inputs] of which some are smaller, so that products with 7 bits fit into 16 bits.

    CPUs without VNNI add the products of inputs 8 i + 0, 1, 4 and 5, and of inputs 8 i + 2, 3, 6 and 7, in 16 bits. The
    sum cannot overflow if neither the positive nor the negative weights of such a group exceed 258 in total. The excess
    is taken evenly from all but the largest weight of the group, so that rows keep their largest magnitude.
    """
    outputs, inputs = integers.shape
    padded = np.pad(integers.astype(np.int16), ((0, 0), (0, -inputs % 8)))
    groups = padded.reshape(-1, 2, 2, 2).swapaxes(1, 2).reshape(-1, 4)  # four inputs each
    for sign in (1, -1):
        weights = np.maximum(sign * groups, 0)
        largest = np.arange(4) == weights.argmax(axis=1)[:, None]
        while (over := np.flatnonzero(weights.sum(axis=1) > _MAX_GROUP_SUM)).size:
            others = np.where(largest[over], 0, weights[over])
            excess = weights[over].sum(axis=1) - _MAX_GROUP_SUM
            cuts = -(-excess // (others > 0).sum(axis=1))  # rounded up
            weights[over] -= np.minimum(others, cuts[:, None])
        groups = np.where(sign * groups > 0, sign * weights, groups)
    limited = groups.reshape(-1, 2, 2, 2).swapaxes(1, 2).reshape(outputs, -1)[:, :inputs]
    return np.ascontiguousarray(limited, dtype=np.int8)


class Int8:
    """int8 weights with one factor per output, activations quantized to 8 bits at run time, sums in int32.

    The scale of activations is fixed if it was calibrated, otherwise computed per row. ONNX Runtime's
    `DynamicQuantizeMatMul` is not used: its single scale per batch makes translations depend on other segments.
    """

    def __init__(self, roundings: Mapping[str, Rounding] | None = None) -> None:
        """Use calibrated roundings by path of the projection; others use one scale per row."""
        self._roundings = roundings or {}

    def linear(self, graph: GraphBuilder, states: ir.Value, layer: Weights, *, rectifies: bool = False) -> ir.Value:
        """Multiply in int8; rectified rows use all 8 bits."""
        integers, factors, rounding = self._quantized(layer)
        bias = _corrected(layer, integers, factors, rounding)
        product = _Product(
            integers=graph.constant(f"{layer.name}.weight.int8", integers.T),
            factors=graph.constant(f"{layer.name}.weight.factors", factors),
            bias=None if bias is None else graph.constant(f"{layer.name}.bias", bias),
            num_inputs=layer.matrix.shape[1],
            rectifies=rectifies,
        )
        return product.multiply(graph, states, rounding)

    def lookup(self, graph: GraphBuilder, token_ids: ir.Value, table: Weights, *, factor: float) -> ir.Value:
        """Gather integer rows and their factors."""
        integers, factors = _stored_table(graph, table.name, *self._quantized(table)[:2])
        rows = graph.op("Cast", graph.op("Gather", integers, token_ids), to=ir.DataType.FLOAT)  # [..., d_model]
        scaled = factors if factor == 1 else graph.op("Mul", factors, graph.scalar(factor))
        scales = graph.op("Gather", scaled, token_ids)  # [..., 1]
        return graph.op("Mul", rows, scales)

    def project(self, graph: GraphBuilder, states: ir.Value, table: Weights) -> ir.Value:
        """Multiply by the integer table; ONNX Runtime transposes it once, at load time."""
        integers, factors, rounding = self._quantized(table)
        bias = _corrected(table, integers, factors, rounding)
        stored_integers, stored_factors = _stored_table(graph, table.name, integers, factors)
        product = _Product(
            integers=graph.op("Transpose", stored_integers, perm=[1, 0]),
            factors=graph.op("Squeeze", stored_factors, graph.shape(1)),
            bias=None if bias is None else graph.constant(PROJECTION_BIAS, bias),
            num_inputs=table.matrix.shape[1],
        )
        return product.multiply(graph, states, rounding)

    def _quantized(self, layer: Weights) -> tuple[NDArray[np.int8], FloatArray, Rounding | None]:
        # Returns integers [outputs, inputs], factors [outputs], and the rounding of the activations.
        integers, factors = quantize_rows(layer.matrix)
        rounding = self._roundings.get(layer.name.removesuffix(".weight").removesuffix(".fused"))
        if rounding is not None and rounding.levels == _SEVEN_BITS:
            integers = limit_sums(integers)
        return integers, factors, rounding


def _stored_table(
    graph: GraphBuilder, name: str, integers: NDArray[np.int8], factors: FloatArray
) -> tuple[ir.Value, ir.Value]:
    return graph.constant(f"{name}.int8", integers), graph.constant(f"{name}.factors", factors[:, None])


def _corrected(
    layer: Weights, integers: NDArray[np.int8], factors: FloatArray, rounding: Rounding | None
) -> FloatArray | None:
    # Bias correction (Nagel et al. 2019, arXiv:1906.04721, section 4.2): keeps the mean of each output of the float
    # product, which rounding of weights and clipping of activations shift.
    if layer.bias is None or rounding is None or rounding.means is None:
        return layer.bias
    mean, rounded_mean = rounding.means
    corrected: FloatArray = layer.bias + layer.matrix @ mean - (integers @ rounded_mean) * factors
    return corrected


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    # Activations [..., inputs] times integers [inputs, outputs] times factors [outputs], plus a bias. Activations are
    # uint8: by row around a zero point of 128, rectified ones from zero up.
    integers: ir.Value
    factors: ir.Value
    num_inputs: int
    bias: ir.Value | None = None
    rectifies: bool = False

    def multiply(self, graph: GraphBuilder, states: ir.Value, rounding: Rounding | None) -> ir.Value:
        return self._by_row(graph, states) if rounding is None else self._fixed(graph, states, rounding)

    @property
    def _zero_point(self) -> int:
        return 0 if self.rectifies else 128

    def _fixed(self, graph: GraphBuilder, states: ir.Value, rounding: Rounding) -> ir.Value:
        # One scale for all rows. Values outside the calibrated range are clipped.
        scale, zero_point = graph.scalar(rounding.scale), graph.scalar(rounding.zero_point, "uint8")
        rounded = graph.op("QuantizeLinear", states, scale, zero_point)
        if rounding.levels == _SEVEN_BITS:
            rounded = graph.op("Clip", rounded, None, graph.scalar(_SEVEN_BITS, "uint8"))
        return graph.op(
            "MatMulIntegerToFloat",
            *(rounded, self.integers, scale, self.factors, zero_point, None, self.bias),
            domain=MICROSOFT,
        )

    def _by_row(self, graph: GraphBuilder, states: ir.Value) -> ir.Value:
        # The largest magnitude of each row becomes the largest integer. A row of zeros is divided by zero; its scale of
        # zero makes the product zero whatever the integers are.
        magnitudes = graph.op("Relu" if self.rectifies else "Abs", states)
        largest = graph.op("ReduceMax", magnitudes, graph.shape(-1), keepdims=1)  # [..., 1]
        scale = graph.op("Mul", largest, graph.scalar(1 / (255 if self.rectifies else 127)))
        # One zero point per row, in the shape of `scale`, shared by all products of a graph.
        point = ir.tensor(np.array([self._zero_point], dtype=np.uint8))
        zero_points = None
        if not self.rectifies:
            shape = graph.op("Shape", scale)
            zero_points = graph.once("zero_points", lambda: graph.op("ConstantOfShape", shape, value=point))
        # A block is a row: one node divides and rounds in a single pass over the states.
        rounded = graph.op(
            "QuantizeLinear",
            *(states, scale, zero_points),
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


class ProductKind(StrEnum):
    """Kinds of weight products, which may overlap."""

    VOCABULARY = "vocabulary"  # output projection and embedding tables, which may be one array
    FEED_FORWARD = "feed-forward"  # both products of every feed-forward block
    FEED_FORWARD_OUTER = "feed-forward-outer"  # the second of the two, after the ReLU
    ATTENTION = "attention"  # queries, keys, values and outputs of self- and cross-attention
    ENCODER = "encoder"  # all products of the encoder graph, including keys and values of cross-attention
    DECODER = "decoder"  # all products of the decoder graph, including the output projection


_TABLES = "|".join(map(re.escape, (EMBEDDING, PROJECTION)))

# regular expressions for the names of weights
_NAMES = {
    ProductKind.VOCABULARY: rf"{_TABLES}|{re.escape(SOURCE_EMBEDDING)}",
    ProductKind.FEED_FORWARD: r".*\.feed_forward\.",
    ProductKind.FEED_FORWARD_OUTER: r".*\.feed_forward\.outer",
    ProductKind.ATTENTION: r".*_attention\.",
    ProductKind.ENCODER: r"encoder\.|.*\.cross_attention\.key",
    ProductKind.DECODER: rf"decoder\.(?!.*\.cross_attention\.key)|{_TABLES}",
}


class Mixed:
    """Products of some kinds in one arithmetic, the others in another; both use the same float type."""

    def __init__(self, kinds: Collection[ProductKind], *, kept: Arithmetic, others: Arithmetic) -> None:
        self._names = [re.compile(_NAMES[kind]) for kind in kinds]
        self._kept = kept
        self._others = others

    def linear(self, graph: GraphBuilder, states: ir.Value, layer: Weights, *, rectifies: bool = False) -> ir.Value:
        """Multiply with the arithmetic of the name."""
        return self._of(layer.name).linear(graph, states, layer, rectifies=rectifies)

    def lookup(self, graph: GraphBuilder, token_ids: ir.Value, table: Weights, *, factor: float) -> ir.Value:
        """Gather rows with the arithmetic of the name."""
        return self._of(table.name).lookup(graph, token_ids, table, factor=factor)

    def project(self, graph: GraphBuilder, states: ir.Value, table: Weights) -> ir.Value:
        """Multiply by the table with the arithmetic of the name."""
        return self._of(table.name).project(graph, states, table)

    def _of(self, name: str) -> Arithmetic:
        return self._kept if any(pattern.match(name) for pattern in self._names) else self._others
