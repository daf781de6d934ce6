"""Describes an int8 decoder for a step without the graph: where its weights lie, and how it rounds activations."""

from collections.abc import Mapping

import onnx_ir as ir
from pydantic import ValidationError

from export.errors import ImportFormatError
from export.graph.write import WeightsFile
from service.bundle import (
    WEIGHTS_ALIGNMENT_BYTES,
    ActivationScale,
    Architecture,
    DecoderWeights,
    Limits,
    StoredTensor,
    decoder_arrays,
    decoder_products,
)


def describe_decoder(
    decoder: ir.Model, weights: WeightsFile, architecture: Architecture, limits: Limits
) -> DecoderWeights | None:
    """Return where the arrays of a decoder graph lie in the file of weights, appending those that only the graph has.

    None if one of its products is not int8, as the graph has no such arrays then.

    Raises:
        ImportFormatError: if an array or a product is not as `export.graph` makes them.
    """
    stored, expected, scales = decoder.graph.initializers, decoder_arrays(architecture, limits), int8_scales(decoder)
    products = decoder_products(architecture)
    if not (expected.keys() <= stored.keys() and products.keys() <= scales.keys()):
        return None
    try:
        return DecoderWeights(
            tensors={name: _place(stored[name], kind, weights) for name, kind in expected.items()},
            activations={path: scales[path] for path in products},
        )
    except ValidationError as error:
        raise ImportFormatError(f"the decoder cannot be described: {error}") from error


def int8_scales(model: ir.Model) -> Mapping[str, ActivationScale | None]:
    """Return what the int8 products of a graph round their activations with, by path; None: each row has its own scale.

    Raises:
        ImportFormatError: if a product rounds them in another way.
    """
    return dict(_scale(node) for node in model.graph if node.op_type == "MatMulIntegerToFloat")


def _scale(product: ir.Node) -> tuple[str, ActivationScale | None]:
    rounded, weight, scale, _, zero_point, *_ = product.inputs
    table = weight.producer() if weight is not None else None  # is transposed first
    name = str((table.inputs[0] if table else weight).name)  # type: ignore[union-attr]
    path = name.removesuffix(".weight.int8")
    rounding = rounded.producer() if rounded is not None else None
    if rounding is None or rounding.op_type != "QuantizeLinear" or scale is None or zero_point is None:
        raise ImportFormatError(f"the product with {name} does not take activations that were rounded before")
    if rounding.inputs[1] is not scale:  # that of each row multiplies what comes out
        return path, None
    if scale.const_value is None or zero_point.const_value is None:
        raise ImportFormatError(f"the product with {name} takes a scale that is not stored")
    numbers = scale.const_value.numpy().item(), zero_point.const_value.numpy().item()
    try:
        return path, ActivationScale(scale=numbers[0], zero_point=numbers[1])
    except ValidationError as error:
        raise ImportFormatError(f"the product with {name} takes scale and zero point {numbers}: {error}") from error


def _place(value: ir.Value, expected: tuple[str, tuple[int, ...]], weights: WeightsFile) -> StoredTensor:
    """Return the place of an array, which is appended to the file unless it is there, at an aligned offset."""
    tensor = value.const_value
    if tensor is None or (kind := (tensor.dtype.numpy().name, tensor.shape.numpy())) != expected:
        raise ImportFormatError(f"{value.name} is {tensor and kind}: expected {expected}")
    if isinstance(tensor, ir.ExternalTensor) and str(tensor.location) != weights.name:
        raise ImportFormatError(f"{value.name} is in {tensor.location}: expected {weights.name}")
    if not isinstance(tensor, ir.ExternalTensor) or (tensor.offset or 0) % WEIGHTS_ALIGNMENT_BYTES:
        tensor = weights.store(tensor)
    return StoredTensor(dtype=kind[0], shape=kind[1], offset=tensor.offset or 0)  # type: ignore[arg-type]
