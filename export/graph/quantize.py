"""8-bit integer products: weights per output, activations with a fixed scale or one per row, sums exact.

Either way a row's result does not depend on the rows beside it, so the same text gets the same translation in any
batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from export.graph.arithmetic import FloatArray
from export.graph.blocks import projection_table
from export.graph.write import MICROSOFT, GraphBuilder
from export.model.transformer import Transformer
from service.bundle.architecture import PROJECTION_BIAS

_WEIGHT_MAX = 127
"""Largest magnitude of a quantized weight; -128 is left out to keep the range symmetric."""


_MEASURED_TOGETHER = 16
"""Sentences whose activations are measured at once: one alone reads all weights for a few rows."""

_SMALLEST_FACTOR = np.finfo(np.float32).tiny
"""Below it floats lose digits: such a row, and one of zeros, becomes zeros."""


def quantize_rows(matrix: FloatArray) -> tuple[NDArray[np.int8], FloatArray]:
    """Return int8 integers and the factor of each row that turns them back into (nearly) the matrix.

    Args:
        matrix: [rows, columns].

    Returns:
        Integers [rows, columns] between -127 and 127, and float32 factors [rows]; no element is off by more than
        half its row's factor.
    """
    factors = np.abs(matrix).max(axis=1).astype(np.float32) / np.float32(_WEIGHT_MAX)
    factors = np.where(factors >= _SMALLEST_FACTOR, factors, np.float32(1.0))
    return np.clip(np.rint(matrix / factors[:, None]), -_WEIGHT_MAX, _WEIGHT_MAX).astype(np.int8), factors


class Int8:
    """Weights as int8 with a factor an output, activations quantized to 8 bits on the fly, products summed in int32.

    An activation's scale is either fixed, if its range was measured when the graph was made, or that of its own row.
    ONNX Runtime's `DynamicQuantizeMatMul` would take one scale for all rows of a batch: a translation would depend on
    its neighbours.
    """

    def __init__(self, ranges: Mapping[str, float] | None = None) -> None:
        """Take the measured ranges; see `export.graph.quantize`.

        Args:
            ranges: the largest magnitude that enters a projection, by its path. One that is not there, or is 0, takes
                the scale of each row.
        """
        self._ranges = ranges or {}

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
        product = _Product(
            integers=graph.constant(f"{name}.weight.int8", integers.T),
            factors=graph.constant(f"{name}.weight.factors", factors),
            bias=graph.constant(f"{name}.bias", bias),
            num_inputs=weight.shape[1],
            rectifies=rectifies,
        )
        return self._multiply(graph, states, name, product)

    def lookup(
        self, graph: GraphBuilder, token_ids: ir.Value, name: str, table: FloatArray, *, factor: float
    ) -> ir.Value:
        """Gather integer rows and their factors."""
        integers, factors = _stored_table(graph, name, table)
        rows = graph.op("Cast", graph.op("Gather", integers, token_ids), to=ir.DataType.FLOAT)  # [..., d_model]
        scaled = factors if factor == 1 else graph.op("Mul", factors, graph.scalar(factor))
        scales = graph.op("Gather", scaled, token_ids)  # [..., 1]
        return graph.op("Mul", rows, scales)

    def project(
        self, graph: GraphBuilder, states: ir.Value, name: str, table: FloatArray, bias: FloatArray | None = None
    ) -> ir.Value:
        """Multiply by the integer table; ONNX Runtime transposes it once, when it loads the graph."""
        integers, factors = _stored_table(graph, name, table)
        product = _Product(
            integers=graph.op("Transpose", integers, perm=[1, 0]),
            factors=graph.op("Squeeze", factors, graph.shape(1)),
            bias=None if bias is None else graph.constant(PROJECTION_BIAS, bias),
            num_inputs=table.shape[1],
        )
        return self._multiply(graph, states, name, product)

    def _multiply(self, graph: GraphBuilder, states: ir.Value, name: str, product: "_Product") -> ir.Value:
        measured = self._ranges.get(name.removesuffix(".weight").removesuffix(".fused"))
        if measured is None or measured < 255 * _SMALLEST_FACTOR:  # nothing but zeros: no scale is known to fit
            return product.by_row(graph, states)
        return product.fixed(graph, states, measured)


def _stored_table(graph: GraphBuilder, name: str, table: FloatArray) -> tuple[ir.Value, ir.Value]:
    """Return the integers [V, d_model] and factors [V, 1] of an embedding table."""
    integers, factors = quantize_rows(table)
    return graph.constant(f"{name}.int8", integers), graph.constant(f"{name}.factors", factors[:, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """Activations [..., inputs] times integers [inputs, outputs] times factors [outputs], plus a bias.

    Activations are rounded to integers around a zero point of 128, because the product takes unsigned ones; rectified
    ones from zero up, where what is negative is cut off by the rounding itself.
    """

    integers: ir.Value
    factors: ir.Value
    num_inputs: int
    bias: ir.Value | None = None
    rectifies: bool = False

    @property
    def _levels(self) -> int:
        return 255 if self.rectifies else 127

    @property
    def _zero_point(self) -> int:
        return 0 if self.rectifies else 128

    def fixed(self, graph: GraphBuilder, states: ir.Value, measured: float) -> ir.Value:
        """Multiply with one scale for all rows: two nodes in all. What is beyond the measured range is cut to it."""
        scale, zero_point = graph.scalar(measured / self._levels), graph.scalar(self._zero_point, "uint8")
        rounded = graph.op("QuantizeLinear", states, scale, zero_point)
        return graph.op(
            "MatMulIntegerToFloat",
            *(rounded, self.integers, scale, self.factors, zero_point, None, self.bias),
            domain=MICROSOFT,
        )

    def by_row(self, graph: GraphBuilder, states: ir.Value) -> ir.Value:
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


@torch.inference_mode()
def measure_ranges(model: Transformer, pairs: Sequence[tuple[list[int], list[int]]]) -> dict[str, float]:
    """Return the largest magnitude that enters each projection while given sentences are translated.

    Args:
        model: in evaluation mode.
        pairs: source and target token ids, EOS last; a few hundred real sentences.

    Returns:
        By the path of the projection, such as `encoder.layers.0.self_attention.query`; the projection to the
        vocabulary under the path of its table.
    """
    ranges: dict[str, float] = {}
    masks: tuple[Tensor, Tensor]  # of the sources and targets at hand: True at real tokens

    def note(path: str, states: Tensor) -> None:
        is_source = path.startswith("encoder.") or path.endswith((".cross_attention.key", ".cross_attention.value"))
        largest = states.abs().amax(dim=-1)[masks[0 if is_source else 1]]
        ranges[path] = max(ranges.get(path, 0.0), float(largest.max()))

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, path=path: note(path, inputs[0]))
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    by_length = sorted(pairs, key=lambda pair: (len(pair[0]), len(pair[1])))
    try:
        for start in tqdm(range(0, len(pairs), _MEASURED_TOGETHER), desc="calibrating", unit="batch", leave=False):
            batch = by_length[start : start + _MEASURED_TOGETHER]
            source_ids, source_mask = _padded([source for source, _ in batch], model.config.pad_id)
            inputs, target_mask = _padded([[model.config.start_id, *target[:-1]] for _, target in batch], 0)
            masks = source_mask, target_mask
            states = model.decode_states(inputs, model.encode(source_ids, source_mask), source_mask)
            note(projection_table(model.config).removesuffix(".weight"), states)
    finally:
        for hook in hooks:
            hook.remove()
    return ranges


def _padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return token ids [B, T] and True where they are no padding."""
    lengths = torch.tensor([len(row) for row in rows])
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad_id)
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]
