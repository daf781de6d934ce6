"""Describes the int8 weights of graphs, for runtimes that do not read ONNX."""

from collections.abc import Collection, Mapping
from typing import Literal

import onnx_ir as ir
from pydantic import ValidationError

from dragoman_export.errors import ImportFormatError
from dragoman_export.onnx_export.write import WeightsFile
from dragoman_service.bundle.architecture import Architecture, Limits
from dragoman_service.bundle.int8_weights import (
    WEIGHTS_ALIGNMENT_BYTES,
    ActivationScale,
    Int8Weights,
    NetworkWeights,
    StoredTensor,
    decoder_arrays,
    decoder_products,
    encoder_arrays,
    encoder_products,
)


def describe_weights(
    encoder: ir.Model, decoder: ir.Model, weights: WeightsFile, architecture: Architecture, limits: Limits
) -> Int8Weights | None:
    """Return the location of the arrays of two graphs, appending inline arrays to the file of weights.

    None if a decoder product is not int8. An encoder with a product that is not int8 is omitted. ImportFormatError if
    an array or a product was not written by this package.
    """
    described = _describe(decoder, decoder_arrays(architecture, limits), decoder_products(architecture), weights)
    if described is None:
        return None
    arrays, products = encoder_arrays(architecture, limits), encoder_products(architecture)
    return Int8Weights(decoder=described, encoder=_describe(encoder, arrays, products, weights))


def _describe(
    model: ir.Model,
    expected: Mapping[str, tuple[str, tuple[int, ...]]],
    products: Collection[str],
    weights: WeightsFile,
) -> NetworkWeights | None:
    # None if an expected array is missing or a product is not int8.
    stored, scales = model.graph.initializers, int8_scales(model)
    if not (expected.keys() <= stored.keys() and scales.keys() >= set(products)):
        return None
    try:
        return NetworkWeights(
            tensors={name: _place(stored[name], kind, weights) for name, kind in expected.items()},
            activations={path: scales[path] for path in products},
        )
    except ValidationError as error:
        raise ImportFormatError(f"cannot describe the weights of the {model.graph.name}: {error}") from error


def int8_scales(model: ir.Model) -> Mapping[str, ActivationScale | None]:
    """Return the activation scales of the int8 products of a graph by path; None: one scale per row.

    Raises:
        ImportFormatError: if a product rounds its activations in another way.
    """
    return dict(_scale(node) for node in model.graph if node.op_type == "MatMulIntegerToFloat")


def _scale(product: ir.Node) -> tuple[str, ActivationScale | None]:
    # Returns the path of a product and its activation scale.
    rounded, weight, scale, _, zero_point, *_ = product.inputs
    table = weight.producer() if weight is not None else None  # the Transpose of a table
    name = str((table.inputs[0] if table else weight).name)  # type: ignore[union-attr]
    path = name.removesuffix(".weight.int8")
    rounding = rounded.producer() if rounded is not None else None
    levels: Literal[127, 255] = 255
    if rounding is not None and rounding.op_type == "Clip":  # of integers, to 127
        levels, rounding = 127, rounding.inputs[0].producer()  # type: ignore[union-attr]
    if rounding is None or rounding.op_type != "QuantizeLinear" or scale is None or zero_point is None:
        raise ImportFormatError(f"the input of the product with {name} is not quantized")
    if rounding.inputs[1] is not scale:  # a scale per row multiplies the product instead
        return path, None
    if scale.const_value is None or zero_point.const_value is None:
        raise ImportFormatError(f"the scale of the product with {name} is not a constant")
    numbers = scale.const_value.numpy().item(), zero_point.const_value.numpy().item()
    try:
        return path, ActivationScale(scale=numbers[0], zero_point=numbers[1], levels=levels)
    except ValidationError as error:
        raise ImportFormatError(f"the product with {name} has scale and zero point {numbers}: {error}") from error


def _place(value: ir.Value, expected: tuple[str, tuple[int, ...]], weights: WeightsFile) -> StoredTensor:
    # Returns the location of an array; appends it to the file unless it is there at an aligned offset.
    tensor = value.const_value
    if tensor is None or (kind := (tensor.dtype.numpy().name, tensor.shape.numpy())) != expected:
        raise ImportFormatError(f"{value.name} is {tensor and kind}: expected {expected}")
    if isinstance(tensor, ir.ExternalTensor) and str(tensor.location) != weights.name:
        raise ImportFormatError(f"{value.name} is in {tensor.location}: expected {weights.name}")
    if not isinstance(tensor, ir.ExternalTensor) or (tensor.offset or 0) % WEIGHTS_ALIGNMENT_BYTES:
        tensor = weights.store(tensor)
    return StoredTensor(dtype=kind[0], shape=kind[1], offset=tensor.offset or 0)  # type: ignore[arg-type]
